"""The payload interface, and the draft of a request that payloads add to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import BaseModel

from loadchaos.core.model import Facts, Outcome, Output, Request, Step
from loadchaos.core.rng import Rng
from loadchaos.load.wire.contract import AnswerContract

DEFAULT_MAX_TOKENS = 128
SHORTEST_TEXT_TOKENS = 16


@dataclass(slots=True)
class Draft:
    """A request while its payloads add to it, before it is built.

    Attributes:
        nonce: Words that only this prompt has; with `secret_sent` they are its secret word (secret_word.py).
        owner: Owner of the secret word; `secret` is its code.
        quotes: How often the answer has to repeat the secret word; 0: not at all.
        parts: Content parts before the text, each as JSON bytes with a trailing comma.
        text_tokens: Tokens of template and text; None where the server's count is unknown.
        text_style: Style of the text (text.TextStyle).
        image_names: Numbers of images and videos that may repeat; None where some are unknown.
        length_known: False if the prompt holds more than text and images.
        edge: Margin of a near-limit rung (prompt tokens minus limit).
        fixed_length: A payload has set prompt and output itself, so nothing is fitted to the server.
        history: Earlier messages as JSON, each with a trailing comma; `history_tokens` is their cost.
        extra: More fields of the body.
        model: Model to ask for instead of the run's.
        contract: Rules that the answer must obey.
        request: A complete request that is sent as it is.
        image_file: Name of the file that a hostile image is.
        wanted_tokens: Tokens of the text as the profile has them, template included; None: no payload wrote one.
        audio: WAV files; they are among `parts`, too.
        more_texts: Further texts of a request of several; `results` are the answers' results.
        continues: The history is the whole prompt: the results of tools follow an answer, and no question.
        calls_over: The model may call no more tools.
        notes: What was reduced to fit the server, in words.
    """

    output: Output
    expect: Sequence[Outcome]
    parts: list[bytes] = field(default_factory=list)
    text: str | None = None
    text_tokens: int | None = None
    text_style: object = None
    nonce: str = ""
    owner: int | None = None
    secret: int = 0
    secret_sent: bool = False
    quotes: int = 0
    images: int = 0
    videos: int = 0
    image_names: list[int] | None = field(default_factory=list)
    image_tokens: int = 0
    image_tokens_known: bool = True
    length_known: bool = True
    edge: int | None = None
    fixed_length: bool = False
    history: list[bytes] = field(default_factory=list)
    history_tokens: int = 0
    extra: dict[str, object] = field(default_factory=dict)
    model: str | None = None
    contract: AnswerContract | None = None
    request: Request | None = None
    image_file: str = ""
    wanted_tokens: int | None = None
    audio: list[bytes] = field(default_factory=list)
    more_texts: list[str] = field(default_factory=list)
    results: int = 1
    continues: bool = False
    calls_over: bool = False
    notes: list[str] = field(default_factory=list)


class Payload(Protocol):
    """Interface of a payload; each module of the table implements it.

    `ORDER`: images add before text, because their cost is subtracted from the text's length.
    """

    @property
    def Options(self) -> type[BaseModel]:  # noqa: N802 - it is the name of a class
        """The pydantic model of its options."""

    @property
    def ORDER(self) -> int:  # noqa: N802 - a constant of a module
        """Payloads with lower numbers add first."""

    def add(self, draft: Draft, options: BaseModel, step: Step, facts: Facts, rng: Rng) -> None:
        """Add to the draft. Pure: equal arguments give equal bytes."""


def output_tokens(output: Output) -> int:
    """Return the tokens of output that a request asks for."""
    return output.exact or output.max or DEFAULT_MAX_TOKENS
