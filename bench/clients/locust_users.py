"""Bench client: Locust's own users, as a locustfile.

BENCH_JOB holds the options of a job as JSON; BENCH_USER names the user class.
"""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar

import gevent
from locust import FastHttpUser, HttpUser, constant, events

from bench.clients.common import PATH, Marks, job, now_ns

WORK = job(json.loads(os.environ["BENCH_JOB"]))
CHOSEN = os.environ["BENCH_USER"]
_DONE = b"data: [DONE]"
_HEADERS = {"Content-Type": "application/json"}
_events: Any = events
_gevent: Any = gevent  # neither ships types
marks = Marks(WORK)


def _one(user: Any) -> None:
    if not marks.more():
        _gevent.sleep(3600)
    if marks.done(well=user.stream() if WORK.stream else user.whole()):
        _gevent.spawn(user.environment.runner.quit)  # it ends this greenlet, too


class _Loop:
    """Base user: send until all requests are sent, then wait for the others."""

    tasks: ClassVar[list[Any]] = [_one]
    wait_time = constant(0)
    host: Any = WORK.url
    client: Any

    def whole(self) -> bool:
        """Send a small request without streaming."""
        return bool(self.client.post(PATH, data=WORK.body, headers=_HEADERS).status_code == 200)

    def stream(self) -> bool:
        """Stream a request; True when it is complete."""
        raise NotImplementedError


class FastLines(_Loop, FastHttpUser):
    """FastHttpUser with `iter_lines`, as in Locust's documentation."""

    abstract = CHOSEN != "FastLines"

    def stream(self) -> bool:
        """Read line by line."""
        pieces = marks.stream()
        for line in self.client.iter_lines(PATH, "POST", data=WORK.body, headers=_HEADERS):
            pieces.append((now_ns(), line.encode()))
        return any(piece.startswith(_DONE) for _, piece in pieces[-3:])


class FastRaw(_Loop, FastHttpUser):
    """FastHttpUser with `stream.readline`, without waiting for a full buffer."""

    abstract = CHOSEN != "FastRaw"

    def stream(self) -> bool:
        """Read line by line from the response beneath."""
        pieces = marks.stream()
        response = self.client.post(PATH, data=WORK.body, headers=_HEADERS, stream=True)
        while line := response.stream.readline(b"\n"):
            pieces.append((now_ns(), bytes(line)))
        return any(piece.startswith(_DONE) for _, piece in pieces[-3:])


class Requests(_Loop, HttpUser):
    """HttpUser (requests under gevent) with `iter_lines`."""

    abstract = CHOSEN != "Requests"

    def on_start(self) -> None:
        """Trust the load server."""
        self.client.verify = str(WORK.trust) if WORK.trust else True

    def stream(self) -> bool:
        """Read line by line."""
        pieces = marks.stream()
        response = self.client.post(PATH, data=WORK.body, headers=_HEADERS, stream=True)
        for line in response.iter_lines():
            pieces.append((now_ns(), line))
        return any(piece.startswith(_DONE) for _, piece in pieces[-3:])


def _write(**_: Any) -> None:
    marks.write()


_events.quitting.add_listener(_write)
