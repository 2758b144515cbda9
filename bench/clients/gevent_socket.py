"""Bench client: a bare gevent socket per user, the least under Locust."""

from __future__ import annotations

from typing import Any

import gevent.monkey

_gevent: Any = gevent  # it ships no types
_gevent.monkey.patch_all()

import socket  # noqa: E402 - patched first

from bench.clients.common import Job, Marks, WholeAnswer, job, now_ns  # noqa: E402


def user(work: Job, marks: Marks, number: int, request: bytes, trust: Any) -> None:
    _gevent.sleep(number * work.stagger_s)
    sock = socket.create_connection(work.address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if trust is not None:
        sock = trust.wrap_socket(sock, server_hostname=work.address[0])
    while marks.more():
        sock.sendall(request)
        answer = WholeAnswer(stream=work.stream)
        pieces = marks.stream() if work.stream else None
        complete = False
        while not complete:
            data = sock.recv(65536)
            at_ns = now_ns()
            if not data:
                break
            if pieces is not None:
                pieces.append((at_ns, data))
            complete = answer.feed(data)
        marks.done(well=complete)
    sock.close()


def main() -> None:
    work = job()
    marks = Marks(work)
    request, trust = work.head() + work.body, work.context()
    users = [_gevent.spawn(user, work, marks, n, request, trust) for n in range(work.users)]
    _gevent.joinall(users)
    marks.write()


if __name__ == "__main__":
    main()
