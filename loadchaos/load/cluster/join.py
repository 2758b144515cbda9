"""`loadchaos worker`: asks a master for a place and the plan, lays the plan out, and becomes a Locust worker there."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import gevent
from locust import rpc as untyped
from locust.exception import RPCError

from loadchaos.core.errors import LoadchaosError, OptionError, TargetError, next_step
from loadchaos.load.cluster import messages
from loadchaos.load.worker import bundle
from loadchaos.load.worker.worker_plan import header_values

_rpc, _gevent = cast("Any", untyped), cast("Any", gevent)
LOCUSTFILE = Path(__file__).parents[1] / "locustfile.py"
_ASK_AGAIN_S = 1.0
_SPARE_S = 2.0


def join(
    host: str, port: int, spool: Path, wait_s: float, say: Callable[[str], None]
) -> tuple[list[str], dict[str, str]]:
    """Ask until the master gives a place; the command line and variables of the Locust worker to become.

    `spool`: the folder under which this worker's own one is made. Raises OptionError where versions differ or a variable
    is missing, TargetError when no master gave a place within `wait_s`.
    """
    token = uuid4().hex
    client = _rpc.rpc.Client(host, port, _name(token))
    try:
        welcome = _ask(client, token, time.monotonic() + wait_s, say)
    except RPCError as e:
        raise TargetError(
            f"the master at {host}:{port} cannot be asked: {e}; is it the address of a `loadchaos run --master`?"
        ) from e
    finally:
        client.close(linger=0)
    if welcome is None:
        raise TargetError(
            f"no master at {host}:{port} gave this worker a place within {wait_s:g} s: does `loadchaos run --master` wait "
            "there, and does a firewall let its port through?"
        )
    plan = welcome["plan"]
    header_values(plan.get("headers") or {}, None, os.environ)
    if (key := plan.get("api_key_env")) and not os.environ.get(key):
        raise OptionError(
            f"the run sends the API key in {key}, and that variable is not set here; keys do not travel: export it"
        )
    folder = _folder(spool, f"{Path(plan['folder']).name}-worker-{welcome['place']}")
    path = bundle.unpack(welcome, folder, int(welcome["place"]))
    drives = f"{plan['profile']['name']} against {plan['base_url']}"
    say(f"worker {welcome['place']} of {plan['workers']}: {drives}; its rows: {folder}")
    argv = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--worker", "--headless", "--only-summary"]
    argv += ["--loglevel", "WARNING", "--master-host", host, "--master-port", str(port)]
    return argv, {"LOADCHAOS_PLAN": str(path), "LOADCHAOS_TOKEN": token}


def _ask(client: Any, token: str, deadline: float, say: Callable[[str], None]) -> Mapping[str, Any] | None:
    told = ""
    while time.monotonic() < deadline:
        client.send(_rpc.Message(messages.HELLO, _hello(token), _name(token)))
        answer = None
        with _gevent.Timeout(_ASK_AGAIN_S, False):
            answer = client.recv()
        if answer is None:
            told = _told(told, "no master answers yet, asking again", say)
        elif answer.type == messages.WELCOME:
            found: Mapping[str, Any] = answer.data
            return found
        elif answer.type == messages.REFUSED:
            raise OptionError(f"refused: {answer.data['why']}")
        elif answer.type == messages.WAIT:
            told = _told(told, f"standing by: {answer.data['why']}", say)
            _gevent.sleep(_SPARE_S)
    return None


def _name(token: str) -> str:
    """What Locust's master answers to."""
    return f"{socket.gethostname()}_join_{token}"


def _hello(token: str) -> dict[str, Any]:
    return {"token": token, "host": socket.gethostname(), "versions": messages.versions()}


def _told(before: str, now: str, say: Callable[[str], None]) -> str:
    if now != before:
        say(now)
    return now


def _folder(spool: Path, name: str) -> Path:
    for attempt in range(100):
        path = spool / (name if attempt == 0 else f"{name}-{attempt + 1}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as e:
            raise OptionError(f"{path} cannot be made: {e.strerror}; {next_step(e)}") from e
        return path.resolve()
    raise LoadchaosError(f"no free name for a worker's folder under {spool}: --out names another")
