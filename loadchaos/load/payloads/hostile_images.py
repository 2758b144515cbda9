"""Images that servers stumble over, one a request, in turn: the shipped corpus, or a folder of your own.

Right is a 4xx or a right answer, as the corpus says for each; a 5xx or a death never is.
"""

from __future__ import annotations

import base64
import difflib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote_from_bytes

from pydantic import BaseModel, ConfigDict, model_validator

from loadchaos.core import resources
from loadchaos.core.errors import why_unread
from loadchaos.core.model import Facts, Outcome, Step
from loadchaos.core.rng import Rng
from loadchaos.load.payloads import image_corpus
from loadchaos.load.payloads.base import Draft

ORDER = 0
_NAMED = 5
_EXPECTED: Mapping[image_corpus.Right, Sequence[Outcome]] = {
    "image": ("ok",),
    "refusal": ("rejected",),
    "either": ("ok", "rejected"),
}


class Options(BaseModel):
    """`folder` of your own in place of the shipped corpus; `only` some files of it, whatever their names.

    Without a manifest, files whose names are no images' are left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    can_kill: ClassVar[bool] = True

    folder: str | None = None
    only: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _there(self) -> Options:
        known = [e.file for e in _read(self.folder)]
        if not known:
            raise ValueError(f"{self.folder} holds no file")
        for name in self.only:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"{name} is not among the images{hint}")
        if not self.chosen():
            raise ValueError(
                f"{self.folder} holds no image ({self._left_out()}); `only` sends a file whatever its name"
            )
        return self

    def chosen(self) -> Sequence[image_corpus.CorpusImage]:
        """What is sent, in this order."""
        entries = _read(self.folder)
        if self.only:
            return [e for e in entries if e.file in self.only]
        strange = _strange(self.folder)
        return [e for e in entries if e.file not in strange]

    def notes(self) -> Sequence[str]:
        """What is to be known before the load."""
        return [f"{self.folder}: {told}"] if (told := self._left_out()) else []

    def _left_out(self) -> str:
        strange = () if self.only else _strange(self.folder)
        more = f" and {len(strange) - _NAMED} more" if len(strange) > _NAMED else ""
        return (
            f"not sent, because their names are not those of images: {', '.join(strange[:_NAMED])}{more}"
            if strange
            else ""
        )

    def describe(self) -> str:
        """For `explain`."""
        whose = f"of {self.folder}" if self.folder else "of the shipped corpus"
        left_out = f" ({told})" if (told := self._left_out()) else ""
        return f"one of {len(self.chosen())} hostile images {whose}, in turn{left_out}"

    def per_request(self) -> dict[str, float]:
        """For `explain`: the mean of what one request carries; what these cost in tokens nobody knows."""
        return {"images": 1.0, "uncounted_images": 1.0}


def add(draft: Draft, options: BaseModel, step: Step, facts: Facts, rng: Rng) -> None:  # noqa: ARG001 - in turn, not drawn
    """Put the image in front of the text; what is expected is what its manifest calls right."""
    assert isinstance(options, Options)
    if facts.images is False:
        draft.notes.append("the model takes no images: sent as text only")
        return
    chosen = options.chosen()
    entry = chosen[step.ordinal % len(chosen)]
    draft.pieces.append(_part(_folder(options.folder), entry))
    draft.images += 1
    draft.image_tokens_known, draft.image_names = False, None
    if tuple(step.expect) == ("ok",):
        draft.expect = _EXPECTED[entry.right]


def _folder(given: str | None) -> Path:
    return Path(given) if given else resources.folder("images")


@functools.lru_cache(maxsize=8)
def _read(given: str | None) -> Sequence[image_corpus.CorpusImage]:
    try:
        return image_corpus.read(_folder(given))
    except (OSError, KeyError, TypeError) as e:
        why = why_unread(e) if isinstance(e, OSError) else e
        raise ValueError(f"{_folder(given)} cannot be read as a folder of images: {why}") from e


@functools.lru_cache(maxsize=8)
def _strange(given: str | None) -> Sequence[str]:
    return tuple(image_corpus.no_images(_folder(given)))


@functools.lru_cache(maxsize=512)
def _part(folder: Path, entry: image_corpus.CorpusImage) -> bytes:
    data = (folder / entry.file).read_bytes()
    mime = entry.mime.encode()
    if entry.form == "text":
        url = b"data:" + mime + b"," + quote_from_bytes(data).encode()
    else:
        url = b"data:" + mime + b";base64," + (base64.b64encode(data) if entry.form == "base64" else data)
    return b'{"type":"image_url","image_url":{"url":"' + url + b'"}},'
