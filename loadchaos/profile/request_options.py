"""Bases of what fills `payload` and `behaviour` of a traffic. They declare all that the profile asks of an entry, with the
answer of one that says nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Self

from loadchaos.core.units import Size
from loadchaos.profile.base import ProfilePart


class PayloadOptions(ProfilePart):
    """Options of a payload.

    Attributes:
        ignores: payloads without effect beside this one; None: all others.
        can_kill: it may harm a server, so that it needs an authorisation.
        writes_turns: its prompts have earlier turns, whose cost in tokens has to be measured.
    """

    ignores: ClassVar[frozenset[str] | None] = frozenset()
    can_kill: ClassVar[bool] = False
    writes_turns: ClassVar[bool] = False

    @property
    def prompts_differ(self) -> bool:
        """True if no prompt repeats the beginning of another one."""
        return False

    @property
    def is_live(self) -> bool:
        """True if a step is a whole session."""
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

    def answers_per_request(self) -> float:
        return 1.0

    def per_request(self) -> Mapping[str, float]:
        """Average content of a request by its kind, for `explain`."""
        return {}

    def per_session(self, payloads: Collection[str]) -> Mapping[str, float]:  # noqa: ARG002 - for sessions
        """Average content of a session: `requests` in all, `in_a_row` one after the other, `think_s` between them. Empty
        where a step is a single request.
        """
        return {}

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
