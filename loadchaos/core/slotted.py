"""Dataclass decorator for objects that every request creates."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["slotted_dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as slotted_dataclass
else:
    from dataclasses import dataclass

    def slotted_dataclass(*, frozen: bool):
        """Make a dataclass with slots, frozen for the type checker only. Freezing at run time would cost 2 us an
        object.
        """
        assert frozen, "the type checker treats the class as frozen"
        return dataclass(slots=True)
