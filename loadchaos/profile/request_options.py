"""Bases of what fills `payload` and `behaviour` of a traffic. They declare all that the profile asks of an entry, with the
answer of one that says nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Self

from loadchaos.core.units import Size
from loadchaos.profile.base import ProfilePart


@dataclass(frozen=True)
class RequestContent:
    """Average content of a request. `uncounted_images`: those of `images` whose tokens are not known, `whole_contexts`:
    prompts as long as the context, `bodies`: requests from a file.
    """

    tokens: float = 0.0
    images: float = 0.0
    uncounted_images: float = 0.0
    image_tokens: float = 0.0
    audio_files: float = 0.0
    audio_s: float = 0.0
    videos: float = 0.0
    frames: float = 0.0
    whole_contexts: float = 0.0
    bodies: float = 0.0

    def __add__(self, other: RequestContent) -> RequestContent:
        return RequestContent(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, part: float) -> RequestContent:
        return RequestContent(*(part * getattr(self, f.name) for f in fields(self)))


@dataclass(frozen=True)
class SessionContent:
    """Average content of a step: `requests` in all, `in_a_row` one after the other, and seconds to think between them."""

    requests: float = 1.0
    in_a_row: float = 1.0
    think_s: float = 0.0


class PayloadOptions(ProfilePart):
    """Options of a payload.

    Attributes:
        ignores: payloads without effect beside this one; None: all others.
        file_option: option that names a file or a folder; empty: none does.
        can_kill: it may harm a server, so that it needs an authorisation.
        writes_turns: its prompts have earlier turns, whose cost in tokens has to be measured.
    """

    ignores: ClassVar[frozenset[str] | None] = frozenset()
    file_option: ClassVar[str] = ""
    can_kill: ClassVar[bool] = False
    writes_turns: ClassVar[bool] = False

    @property
    def prompts_differ(self) -> bool:
        """True if no prompt repeats the beginning of another one."""
        return False

    @property
    def searches_limit(self) -> bool:
        """True if the longest prompt of the server has to be searched before the load."""
        return False

    @property
    def longest_text(self) -> int:
        """Most prompt tokens of its text, where the profile sets them."""
        return 0

    @property
    def most_images(self) -> int:
        """Most images of a request."""
        return 0

    def describe(self) -> str:
        """Description for `explain`; empty: the name of the payload."""
        return ""

    def notes(self) -> Sequence[str]:
        """Lines that a run prints before the load."""
        return ()

    def warning(self, in_flight: float, requests: float | None) -> str | None:  # noqa: ARG002 - of the load, for those that depend on it
        """Text if the options have no effect under the load, else None. `requests` is the number of requests in the
        longest phase; None if it is unknown.
        """
        return None

    def refusals(
        self,
        payloads: Collection[str],  # noqa: ARG002 - for those that depend on what is beside them
        behaviours: Collection[str],  # noqa: ARG002 - as above
        endpoint: str,  # noqa: ARG002 - as above
    ) -> Iterable[tuple[tuple[str, ...], str]]:
        """(key path in the traffic, mistake) of each part of a traffic that does not go with these options."""
        return ()

    def outputs(self, traffic_output: float) -> Sequence[float | None] | None:  # noqa: ARG002 - for those that set none
        """Most output tokens of each request in turn, None where there is no limit. None: the traffic's `output` holds."""
        return None

    def refuses_output(self, *, exact: bool) -> str:  # noqa: ARG002 - for those that set the length themselves
        """Mistake of an `output` beside this payload; empty: it goes with it. `exact`: it asks for an exact length."""
        return ""

    def answers_per_request(self) -> float:
        return 1.0

    def per_request(self) -> RequestContent:
        return RequestContent()

    def per_session(self, payloads: Collection[str]) -> SessionContent | None:  # noqa: ARG002 - for sessions
        """None: a step is a single request."""
        return None

    def scripts(self) -> Sequence[str]:
        """Scripts of its texts other than Latin."""
        return ()

    def sizes(self) -> Sequence[Size]:
        """Sizes of its images in pixels."""
        return ()

    def video(self) -> tuple[str, bytes] | None:
        """Kind of its videos, which have equal numbers of prompt tokens, and one to measure them. None: it has no video."""
        return None

    def in_turn(self) -> Sequence[Self]:
        """Options of the requests, sent one after the other."""
        return (self,)

    def replay(self, tokens: int, blocks: Sequence[int], block_tokens: int) -> Self:  # noqa: ARG002 - for prompts of text
        """Options for a prompt of a trace: of `tokens` tokens, beginning with `blocks`."""
        return self


class BehaviourOptions(ProfilePart):
    """Options of a client behaviour."""

    @property
    def needs_stream(self) -> bool:
        """True if it has no effect on answers that are not streamed."""
        return False
