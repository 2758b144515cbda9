"""Create files that only this user may read. A run folder holds prompts, answers and logs. Servers that loadchaos
starts keep the user's own mask.
"""

from __future__ import annotations

import os

_MASK = 0o077
_users: list[int] = []  # the mask before `create_privately`


def create_privately() -> None:
    """Set the umask: files of this process and its children get mode 0600. Folders get mode 0700."""
    before = os.umask(_MASK)
    if not _users:
        _users.append(before)


def user_mask() -> int:
    """Return the umask of the user, for programs that are not ours."""
    if _users:
        return _users[0]
    mask = os.umask(_MASK)
    os.umask(mask)
    return mask
