"""A request while payloads add to it: content parts as JSON bytes, and what the server should count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import BaseModel

from loadchaos.draws import Draws
from loadchaos.model import Facts, Outcome, Output, Step


@dataclass
class Draft:
    """Mutable, of one request only. `text_tokens` counts template and text, None where the server's count is unknown.

    `pieces` are the content parts before the text, each a run of JSON bytes with a comma behind it. `final` is set by a
    payload that has fixed prompt and output itself: nothing is fitted any more then.
    """

    output: Output
    expect: Sequence[Outcome]
    pieces: list[bytes] = field(default_factory=list)
    text: str | None = None
    text_tokens: int | None = None
    nonce: str = ""
    images: int = 0
    image_tokens: int = 0
    image_tokens_known: bool = True
    edge: int | None = None
    final: bool = False
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

    def add(self, draft: Draft, options: BaseModel, step: Step, facts: Facts, rng: Draws) -> None:
        """Add to the draft. Pure: the same arguments, the same bytes."""
