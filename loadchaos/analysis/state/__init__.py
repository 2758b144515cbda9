"""The server's state, fused from several signals."""
