"""How the nouns are made that every request needs several of."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["slotted_dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as slotted_dataclass
else:
    from dataclasses import dataclass

    def slotted_dataclass(*, frozen: bool):
        """A dataclass that is frozen for the type checker alone: at run time that would cost 2 us for each."""
        assert frozen, "as far as anybody is concerned who reads or checks the code"
        return dataclass(slots=True)
