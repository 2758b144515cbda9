"""The corpus of hostile images: files, expected answers, and their maker.

`loadchaos images build FOLDER` writes the files and manifest.json. Everything is small: images with many pixels are
flat, and files that unpack to a large size only claim it in a header. Your own folder may have the same manifest.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from loadchaos.load.payloads.png import SIGNATURE, chunk

CorrectAnswer = Literal["image", "refusal", "either"]
"""Correct answer: the image is accepted, it is refused with a 4xx, or either."""

Form = Literal["base64", "verbatim", "text"]
"""Form of the file in its data URL: base64, raw bytes after `;base64,`, or percent-encoded without it."""

MANIFEST = "manifest.json"
_SIDE = 64
_PILLOW_PIXEL_LIMIT = 178_956_970
"""Pillow refuses more pixels than this as a decompression bomb (2 x Image.MAX_IMAGE_PIXELS)."""


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


_Entry = tuple[CorpusImage, Callable[[], bytes]]
"""An image and the function that makes its bytes."""


def build(folder: Path) -> list[CorpusImage]:
    """Write every file that this Pillow can write, and the manifest; returns the images that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for image, make in _entries():
        try:
            data = make()
        except (KeyError, OSError):
            continue  # an optional codec (AVIF, WebP) this Pillow was built without
        (folder / image.file).write_bytes(data)
        details = {**asdict(image), "sha256": hashlib.sha256(data).hexdigest(), "pixels": _pixels(data)}
        written.append(CorpusImage(**details))
    manifest = {"about": __doc__.splitlines()[0] if __doc__ else "", "images": [asdict(e) for e in written]}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return written


def _pixels(data: bytes) -> str:
    if data[:8] == SIGNATURE and len(data) >= 24:
        return "{}x{}".format(*struct.unpack(">II", data[16:24]))
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            return f"{image.width}x{image.height}"
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        return ""


# --- the parts ----------------------------------------------------------------------------------------------------------


def _png(
    width: int, height: int, *, bits: int = 8, color: int = 2, data: bytes | None = None, extra: bytes = b""
) -> bytes:
    """Make a PNG by hand, of flat zeros unless `data` (already deflated) is given; `extra` chunks follow the header."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0))
    if data is None:
        channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
        row = b"\x00" * (1 + -(-width * channels * bits // 8))
        packer = zlib.compressobj(9)
        data = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    return SIGNATURE + header + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _gradient(mode: str = "RGB", size: tuple[int, int] = (_SIDE, _SIDE)) -> Any:
    from PIL import Image

    plain = Image.new("RGB", size)
    plain.putdata([(x * 255 // size[0], y * 255 // size[1], 90) for y in range(size[1]) for x in range(size[0])])
    if mode == "I;16":
        return Image.frombytes(
            "I;16", size, b"".join(struct.pack("<H", n * 13 % 65536) for n in range(size[0] * size[1]))
        )
    return plain.convert("L").convert(mode) if mode in ("LA", "1") else plain.convert(mode)


def _encode(image: Any, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def _in_mode(mode: str, kind: str = "PNG", **options: Any) -> Callable[[], bytes]:
    return lambda: _encode(_gradient(mode), kind, **options)


def _rotated() -> bytes:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation: to be turned by 90 degrees
    return _encode(_gradient(size=(96, 48)), "JPEG", exif=exif.tobytes())


def _animated(kind: str) -> bytes:
    frames = [_gradient().rotate(90 * n) for n in range(4)]
    return _encode(frames[0], kind, save_all=True, append_images=frames[1:], duration=100, loop=0)


def _wrong_crc() -> bytes:
    whole = _in_mode("RGB")()
    at = whole.index(b"IDAT") + 4
    length = struct.unpack(">I", whole[at - 8 : at - 4])[0]
    end = at + length
    return whole[:end] + bytes(b ^ 0xFF for b in whole[end : end + 4]) + whole[end + 4 :]


def _unpacking_text() -> bytes:
    """Make a PNG whose 20 kB comment unpacks to 20 MB. Pillow's limit for it is MAX_TEXT_CHUNK."""
    packer = zlib.compressobj(9)
    packed = b"".join([*(packer.compress(b"\x00" * 1_000_000) for _ in range(20)), packer.flush()])
    return _png(_SIDE, _SIDE, extra=chunk(b"zTXt", b"comment\x00\x00" + packed))


def _svg() -> bytes:
    return (
        b'<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64"><script>alert(1)</script>'
        b'<image href="file:///etc/passwd"/><rect width="64" height="64" fill="red"/></svg>'
    )


def _zip_behind() -> bytes:
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(zipfile.ZipInfo("inside.txt"), "an archive behind an image")
    return _in_mode("RGB")() + out.getvalue()


def _gif_and_script() -> bytes:
    """Make a GIF that is also JavaScript. Its width is "/*", and its comment closes what that begins."""
    whole = _encode(_gradient("P", (16, 16)), "GIF")
    return whole[:6] + b"/*" + whole[8:-1] + b"\x21\xfe\x08*/=1;//\n\x00\x3b"


def _entry(
    file: str, what: str, right: CorrectAnswer, make: Callable[[], bytes], form: Form = "base64", said: str = ""
) -> _Entry:
    """`said`: a MIME type that is not that of the file's suffix. What has no image's suffix is said to be a PNG."""
    return CorpusImage(file, said or _mime(file) or "image/png", what, right, form), make


def _entries() -> Sequence[_Entry]:
    whole = _in_mode("RGB")
    return [
        # modes: what a converter to RGB forgets
        _entry("rgb.png", "plain RGB, the control", "image", whole),
        _entry("l.png", "grey (L)", "image", _in_mode("L")),
        _entry("la.png", "grey with alpha (LA)", "image", _in_mode("LA")),
        _entry("p.png", "palette (P)", "image", _in_mode("P")),
        _entry("p_transparent.png", "palette with a transparent colour", "image", _in_mode("P", transparency=0)),
        _entry("rgba.png", "RGB with alpha (RGBA)", "image", _in_mode("RGBA")),
        _entry("1.png", "one bit a pixel (1)", "image", _in_mode("1")),
        _entry("i16.png", "sixteen bits of grey (I;16)", "image", _in_mode("I;16")),
        _entry("rgb48.png", "sixteen bits a channel", "image", lambda: _png(_SIDE, _SIDE, bits=16)),
        _entry("cmyk.jpg", "four colours for print (CMYK)", "image", _in_mode("CMYK", "JPEG")),
        _entry("grey.jpg", "a grey JPEG", "image", _in_mode("L", "JPEG")),
        _entry("progressive.jpg", "a progressive JPEG", "image", _in_mode("RGB", "JPEG", progressive=True)),
        _entry("exif_rotated.jpg", "to be turned by its EXIF orientation", "image", _rotated),
        # more than one frame, and other formats
        _entry("animated.png", "an animated PNG of four frames", "image", lambda: _animated("PNG")),
        _entry("animated.gif", "an animated GIF of four frames", "image", lambda: _animated("GIF")),
        _entry("animated.webp", "an animated WebP of four frames", "image", lambda: _animated("WEBP")),
        _entry("lossy.webp", "a WebP", "image", _in_mode("RGB", "WEBP")),
        _entry("picture.avif", "an AVIF, which not every server reads", "either", _in_mode("RGB", "AVIF")),
        _entry("picture.bmp", "a BMP", "either", _in_mode("L", "BMP")),
        _entry("picture.tiff", "a TIFF", "either", _in_mode("RGB", "TIFF", compression="tiff_deflate")),
        # sizes
        _entry("1x1.png", "one pixel", "image", lambda: _png(1, 1)),
        _entry("12x1.png", "twelve pixels: 3328 tokens where tiles follow the shape", "image", lambda: _png(12, 1)),
        _entry("1x200.png", "200 times as high as wide: the longest some models take", "either", lambda: _png(1, 200)),
        _entry("1x201.png", "one more: refused where the shape is bounded", "either", lambda: _png(1, 201)),
        _entry("2000x1.png", "2000 times as wide as high", "either", lambda: _png(2000, 1)),
        _entry("8000x8000.png", "64 megapixels in 8 kB", "either", lambda: _png(8000, 8000, bits=1, color=0)),
        _entry(
            "bomb.png",
            f"more than {_PILLOW_PIXEL_LIMIT} pixels in 24 kB: a decompression bomb",
            "either",
            lambda: _png(13400, 13400, bits=1, color=0),
        ),
        _entry(
            "bomb_header.png",
            "a header that promises 2.5 gigapixels, and nothing behind it",
            "refusal",
            lambda: _png(50_000, 50_000, data=zlib.compress(b"\x00" * 100)),
        ),
        _entry("bomb_text.png", "a comment that unpacks to 20 MB", "either", _unpacking_text),
        # broken
        _entry("truncated_half.png", "the first half of a file", "either", lambda: whole()[: len(whole()) // 2]),
        _entry("truncated_tail.png", "its last twelve bytes missing", "either", lambda: whole()[:-12]),
        _entry(
            "truncated.jpg",
            "the first half of a JPEG",
            "either",
            lambda: (f := _in_mode("RGB", "JPEG")())[: len(f) // 2],
        ),
        _entry("wrong_crc.png", "a wrong checksum over the pixels", "either", _wrong_crc),
        _entry(
            "garbled_pixels.png",
            "pixels that do not unpack",
            "either",
            lambda: _png(8, 8, data=b"\x78\x9c" + b"\xab" * 40),
        ),
        _entry("header_only.png", "signature and header, no pixels", "refusal", lambda: whole()[:33]),
        _entry("signature_only.png", "eight bytes of signature", "refusal", lambda: SIGNATURE),
        _entry("empty.png", "no byte at all", "refusal", lambda: b""),
        _entry("zero_wide.png", "no pixel wide", "refusal", lambda: _png(0, 8)),
        _entry("noise.png", "bytes that are no image", "refusal", lambda: hashlib.sha512(b"noise").digest() * 8),
        _entry(
            "broken_profile.png",
            "a colour profile that is none",
            "either",
            lambda: _png(_SIDE, _SIDE, extra=chunk(b"iCCP", b"x\x00\x00not a profile")),
        ),
        # not what it says
        _entry("png_as_jpeg.png", "a PNG that is said to be a JPEG", "either", whole, said="image/jpeg"),
        _entry("png_as_text.png", "a PNG that is said to be text", "either", whole, said="text/plain"),
        _entry("vector.svg", "an SVG with a script and a file reference", "refusal", _svg),
        _entry("vector_text.svg", "the same in a data URL that is not base64", "refusal", _svg, "text"),
        _entry("document.pdf", "the start of a PDF", "refusal", lambda: b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n"),
        _entry("zip_behind.png", "a polyglot: a PNG with a ZIP archive behind it", "image", _zip_behind),
        _entry("script.gif", "a polyglot: a GIF that is JavaScript, too", "either", _gif_and_script),
        # the data URL itself
        _entry("not_base64.txt", "characters that are not base64", "refusal", lambda: b"@@@not*base64@@@", "verbatim"),
        _entry("cut_base64.txt", "base64 that ends too early", "refusal", lambda: b"iVBORw0KGgoAAAANSUhEU", "verbatim"),
    ]


# --- read back ----------------------------------------------------------------------------------------------------------


def read(folder: Path) -> list[CorpusImage]:
    """Read the manifest, or list all files but dot files if there is none. Raises OSError or ValueError."""
    manifest = folder / MANIFEST
    if manifest.is_file():
        data = json.loads(manifest.read_text(encoding="utf-8"))
        return [
            CorpusImage(**{k: v for k, v in e.items() if k in CorpusImage.__dataclass_fields__}) for e in data["images"]
        ]
    import mimetypes

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
