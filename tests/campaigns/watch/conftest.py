"""A proxy between raw sockets whose requests get ledger rows."""

from tests.campaigns.recorder.conftest import between

__all__ = ["between"]
