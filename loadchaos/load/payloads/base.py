"""A request while payloads add to it: content parts as JSON bytes, and what the server should count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import BaseModel

from loadchaos.core.model import Facts, Outcome, Output, Request, Step
from loadchaos.core.rng import Rng


@dataclass(slots=True)
class Draft:
    """Mutable, of one request only. `text_tokens` counts template and text, None where the server's count is unknown.

    `pieces` are the content parts before the text, each a run of JSON bytes with a comma behind it. `final` is set by a
    payload that has fixed prompt and output itself: nothing is fitted any more then. `history` are earlier messages as
    JSON, each with a comma behind it, and `history_tokens` what they cost. `way` is how the text is made (text.Way),
    `countable` False: what stands in the prompt beside text and images is not known. `extra` are further fields of the
    body, `model` asks for another one than the run's. `request` is a complete one that is sent as it is. `image_names`
    are of images and videos that may come again; None where some were put in of which nothing is known.
    """

    output: Output
    expect: Sequence[Outcome]
    pieces: list[bytes] = field(default_factory=list)
    text: str | None = None
    text_tokens: int | None = None
    way: object = None
    nonce: str = ""
    images: int = 0
    videos: int = 0
    image_names: list[int] | None = field(default_factory=list)
    image_tokens: int = 0
    image_tokens_known: bool = True
    countable: bool = True
    edge: int | None = None
    final: bool = False
    history: list[bytes] = field(default_factory=list)
    history_tokens: int = 0
    extra: dict[str, object] = field(default_factory=dict)
    model: str | None = None
    request: Request | None = None
    notes: list[str] = field(default_factory=list)


class Payload(Protocol):
    """What an entry of the shelf offers; a module does.

    `order` says when it adds: images before text, because what they cost is taken off what the text may have.
    """

    @property
    def Options(self) -> type[BaseModel]:  # noqa: N802 - it is the name of a class
        """The pydantic model of its options."""

    @property
    def ORDER(self) -> int:  # noqa: N802 - a constant of a module
        """Lower adds first."""

    def add(self, draft: Draft, options: BaseModel, step: Step, facts: Facts, rng: Rng) -> None:
        """Add to the draft. Pure: the same arguments, the same bytes."""
