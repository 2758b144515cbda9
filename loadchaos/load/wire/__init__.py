"""Bytes to outcomes: SSE, HTTP/1.1 and the outcome of a request, without I/O, and blocking sockets beside them."""
