"""Read a folder of hostile images: files, MIME types and expected answers. manifest.json lists them; every image of the
shipped folder is small: images with many pixels are flat, and files that unpack to a large size only claim it in a
header. A user's own folder may have the same manifest.
"""

from __future__ import annotations

import json
import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CorrectAnswer = Literal["image", "refusal", "either"]
"""Correct answer: the image is accepted, it is refused with a 4xx, or either."""

Form = Literal["base64", "verbatim", "text"]
"""Form of the file in its data URL: base64, raw bytes after `;base64,`, or percent-encoded without it."""

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class CorpusImage:
    """One image of manifest.json. `pixels` is the size in its header such as "64x64", "" where there is none."""

    file: str
    mime: str
    what: str
    right: CorrectAnswer
    form: Form = "base64"
    pixels: str = ""
    sha256: str = ""


def read(folder: Path) -> list[CorpusImage]:
    """Read the manifest, or list all files but dot files if there is none. Raises OSError or ValueError."""
    manifest = folder / MANIFEST
    if manifest.is_file():
        data = json.loads(manifest.read_text(encoding="utf-8"))
        return [
            CorpusImage(**{k: v for k, v in e.items() if k in CorpusImage.__dataclass_fields__}) for e in data["images"]
        ]
    files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    return [
        CorpusImage(
            p.name, _mime(p.name) or mimetypes.guess_type(p.name)[0] or "application/octet-stream", "yours", "either"
        )
        for p in files
    ]


_MIMES = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), "image/jpeg"), **dict.fromkeys((".tif", ".tiff"), "image/tiff"),
    **dict.fromkeys((".png", ".apng"), "image/png"), **dict.fromkeys((".bmp", ".dib"), "image/bmp"),
    ".gif": "image/gif", ".webp": "image/webp", ".avif": "image/avif", ".heic": "image/heic", ".heif": "image/heif",
    ".jxl": "image/jxl", ".jp2": "image/jp2", ".ico": "image/x-icon", ".svg": "image/svg+xml", ".tga": "image/x-tga",
    ".pbm": "image/x-portable-bitmap", ".pgm": "image/x-portable-graymap", ".ppm": "image/x-portable-pixmap",
}  # fmt: skip
"""MIME types by suffix. Tables of systems differ, but all workers must send the same images in the same order."""


def _mime(name: str) -> str | None:
    return _MIMES.get(Path(name).suffix.lower())


def non_images(folder: Path) -> list[str]:
    """List files without an image's suffix, in a folder without a manifest. Raises OSError."""
    return [] if (folder / MANIFEST).is_file() else [e.file for e in read(folder) if _mime(e.file) is None]
