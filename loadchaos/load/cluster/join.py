"""`loadchaos worker`: join a master, unpack its plan, become a Locust worker."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import gevent
from locust import rpc as untyped
from locust.exception import RPCError

from loadchaos.core.errors import LoadchaosError, OptionError, TargetError, next_step
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.load.cluster import messages
from loadchaos.load.locust_main import LOCUST
from loadchaos.load.wire.request import headers_with_values
from loadchaos.load.worker import bundle

_rpc, _gevent = cast("Any", untyped), cast("Any", gevent)
_ASK_PERIOD_S = 1.0
_STANDBY_S = 2.0


def join(
    host: str, port: int, spool: Path, wait_s: float, report: Callable[[str], None]
) -> tuple[list[str], dict[str, str]]:
    """Ask until the master gives a slot; returns the command line of the worker to become, and its environment variables.

    `spool` is the folder under which this worker's own folder is created; `report` prints a line. Raises OptionError where
    versions differ or a variable is missing, TargetError when no master gave a slot within `wait_s`.
    """
    token = uuid4().hex
    client = _rpc.rpc.Client(host, port, _client_name(token))
    try:
        welcome = _request_slot(client, token, time.monotonic() + wait_s, report)
    except RPCError as e:
        raise TargetError(
            f"the master at {host}:{port} cannot be reached: {e}; is it the address of a `loadchaos run --master`?"
        ) from e
    finally:
        client.close(linger=0)
    if welcome is None:
        raise TargetError(
            f"no master at {host}:{port} accepted this worker within {wait_s:g} s: check that `loadchaos run --master` "
            "waits there and that no firewall blocks its port"
        )
    plan = welcome.bundle.plan
    headers_with_values(plan.headers, None, os.environ)
    if (key := plan.api_key_env) and not os.environ.get(key):
        raise OptionError(
            f"the run sends the API key in {key}, but that variable is not set here; keys are not sent to workers: export it"
        )
    folder = _folder(spool, f"{Path(plan.folder).name}-worker-{welcome.slot}")
    path = bundle.unpack(welcome.bundle, folder, welcome.slot)
    load = f"{plan.profile['name']} against {plan.base_url}"
    report(f"worker {welcome.slot} of {plan.workers}: {load}; its rows: {folder}")
    argv = [*LOCUST, "--worker", "--headless", "--only-summary"]
    argv += ["--loglevel", "WARNING", "--master-host", host, "--master-port", str(port)]
    return argv, {"LOADCHAOS_PLAN": str(path), "LOADCHAOS_TOKEN": token}


def _request_slot(client: Any, token: str, deadline: float, report: Callable[[str], None]) -> messages.Welcome | None:
    hello = messages.Hello(token=token, host=socket.gethostname(), versions=messages.versions())
    reported = ""
    while time.monotonic() < deadline:
        client.send(_rpc.Message(hello.KIND, to_json(hello), _client_name(token)))
        answer, state = None, reported
        with _gevent.Timeout(_ASK_PERIOD_S, False):
            answer = client.recv()
        if answer is None:
            state = "no master answers yet; retrying"
        elif answer.type == messages.Welcome.KIND:
            return from_json(messages.Welcome, answer.data)
        elif answer.type == messages.Refused.KIND:
            raise OptionError(f"refused: {from_json(messages.Refused, answer.data).why}")
        elif answer.type == messages.Wait.KIND:
            state = f"standing by: {from_json(messages.Wait, answer.data).why}"
        if state != reported:
            report(state)
            reported = state
        if answer is not None:
            _gevent.sleep(_STANDBY_S)
    return None


def _client_name(token: str) -> str:
    return f"{socket.gethostname()}_join_{token}"


def _folder(spool: Path, name: str) -> Path:
    for attempt in range(100):
        path = spool / (name if attempt == 0 else f"{name}-{attempt + 1}")
        try:
            path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            continue
        except OSError as e:
            raise OptionError(f"{path} cannot be made: {e.strerror}; {next_step(e)}") from e
        return path.resolve()
    raise LoadchaosError(f"no free name for a worker's folder under {spool}: choose another with --out")
