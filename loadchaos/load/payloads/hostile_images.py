"""Hostile images from the shipped corpus or your folder, one per request.

A 4xx or a correct answer is right, as the corpus says for each image; a 5xx or a death never is.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote_from_bytes

from pydantic import model_validator

from loadchaos.core import resources
from loadchaos.core.errors import did_you_mean, why_unread
from loadchaos.core.model import SENT_AS_TEXT, Facts, Outcome
from loadchaos.core.rng import Rng
from loadchaos.load.payloads import image_folder, images_by_path
from loadchaos.load.payloads.base import Payload
from loadchaos.load.wire.request import Request
from loadchaos.profile.request_options import RequestContent

_MAX_NAMED = 5
_EXPECTED_OUTCOMES: Mapping[image_folder.CorrectAnswer, Sequence[Outcome]] = {
    "image": ("ok",),
    "refusal": ("rejected",),
    "either": ("ok", "rejected"),
}


class Options(Payload):
    """Your own `folder` instead of the shipped corpus; `only` selects files.

    Without a manifest, files without an image's suffix are not sent unless `only` names them.
    """

    ORDER: ClassVar[int] = 0
    file_option: ClassVar[str] = "folder"
    can_kill: ClassVar[bool] = True

    folder: str | None = None
    only: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_images(self) -> Options:
        known = [e.file for e in _corpus(self.folder)]
        if not known:
            raise ValueError(f"{self.folder} holds no file")
        for name in self.only:
            if name not in known:
                raise ValueError(f"{name} is not among the images{did_you_mean(name, known)}")
        if not self.selected():
            raise ValueError(f"{self.folder} holds no image ({self._skipped()}); `only` sends a file whatever its name")
        return self

    def selected(self) -> Sequence[image_folder.CorpusImage]:
        entries = _corpus(self.folder)
        if self.only:
            return [e for e in entries if e.file in self.only]
        non_images = _non_images(self.folder)
        return [e for e in entries if e.file not in non_images]

    def notes(self) -> Sequence[str]:
        return [f"{self.folder}: {skipped}"] if (skipped := self._skipped()) else []

    def _skipped(self) -> str:
        non_images = () if self.only else _non_images(self.folder)
        if not non_images:
            return ""
        rest = f" and {len(non_images) - _MAX_NAMED} more" if len(non_images) > _MAX_NAMED else ""
        return f"not sent, because their names are not those of images: {', '.join(non_images[:_MAX_NAMED])}{rest}"

    def describe(self) -> str:
        whose = f"of {self.folder}" if self.folder else "of the shipped corpus"
        note = f" ({skipped})" if (skipped := self._skipped()) else ""
        return f"one of {len(self.selected())} hostile images {whose}, in turn{note}"

    def per_request(self) -> RequestContent:
        return RequestContent(images=1.0, uncounted_images=1.0)

    def add(self, request: Request, facts: Facts, rng: Rng) -> None:  # noqa: ARG002 - in turn, not drawn
        """Put the image in front of the text. Its manifest decides the expected outcome."""
        if facts.images is False:
            request.notes.append(f"the model does not accept images: {SENT_AS_TEXT}")
            return
        selected = self.selected()
        entry = selected[request.step.ordinal % len(selected)]
        request.parts.append(_part(_folder(self.folder), entry))
        request.images += 1
        request.image_file = entry.file
        request.image_tokens_known, request.image_names = False, None
        if tuple(request.step.expect) == ("ok",):
            request.expect = list(_EXPECTED_OUTCOMES[entry.right])


def _folder(given: str | None) -> Path:
    return Path(given) if given else resources.folder("images")


@functools.lru_cache(maxsize=8)
def _corpus(given: str | None) -> Sequence[image_folder.CorpusImage]:
    folder = _folder(given)
    try:
        found = image_folder.read(folder)
    except (OSError, KeyError, TypeError) as e:
        why = why_unread(e) if isinstance(e, OSError) else e
        raise ValueError(f"{folder} cannot be read as a folder of images: {why}") from e
    for image in found:
        images_by_path.contained(folder, image.file)
    return found


@functools.lru_cache(maxsize=8)
def _non_images(given: str | None) -> Sequence[str]:
    return tuple(image_folder.non_images(_folder(given)))


@functools.lru_cache(maxsize=512)
def _part(folder: Path, entry: image_folder.CorpusImage) -> bytes:
    data = images_by_path.contained(folder, entry.file).read_bytes()
    mime = entry.mime.encode()
    if entry.form == "text":
        url = b"data:" + mime + b"," + quote_from_bytes(data).encode()
    else:
        url = b"data:" + mime + b";base64," + (base64.b64encode(data) if entry.form == "base64" else data)
    return b'{"type":"image_url","image_url":{"url":"' + url + b'"}},'
