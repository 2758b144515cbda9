"""Ids of the requests of a session, a conversation with live answers. The first request has the id of its step,
`lc-<tag>-17`. The next ones are `lc-<tag>-17-r1` and so on, and those of its second continuation `lc-<tag>-17-b2r1`.
A request of any kind that was refused and is sent again has its id with `-t1`, `-t2` and so on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PLACE = re.compile(r"(.+-\d+?)(?:-(?:b(\d+))?r(\d+))?(?:-t\d+)?")


class SessionPlace(NamedTuple):
    """Place of a request in its session. `first` is the id of the session's first request. `branch` 0 is the common
    beginning; `number` counts from 0 there and from 1 in a branch.
    """

    first: str
    branch: int
    number: int

    @property
    def is_later(self) -> bool:
        """True for a request after the session's first one."""
        return bool(self.branch or self.number)


def suffix(branch: int, number: int) -> str:
    """End of the id of a request, after that of the session's first one."""
    if branch:
        return f"-b{branch}r{number}"
    return f"-r{number}" if number else ""


def try_suffix(tries: int) -> str:
    """End of the id of a request that was refused `tries` times before."""
    return f"-t{tries}"


def place_of(request_id: str) -> SessionPlace:
    """Parse the id of a request. One without a session is the first of its own."""
    match = _PLACE.fullmatch(request_id)
    if match is None:
        return SessionPlace(request_id, 0, 0)
    return SessionPlace(match[1], int(match[2] or 0), int(match[3] or 0))
