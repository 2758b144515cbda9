"""What can be wrong with bytes as such: one exception, which the outcome of a request turns into `protocol_error`."""

from __future__ import annotations


class ProtocolError(Exception):
    """The bytes are not what the protocol says; the text tells what stood there. Caught where outcomes are made."""
