"""Operations of the server's own admin endpoints: cache resets, sleep, pause, aborts. The answer is told as it is."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from loadchaos.chaos.base import ActResult, AttackedReplica
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.rows import AttackDetail
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import AdminOperation, Dialect, version_key

_TEXT_CHARS = 300
_PREFLIGHT_S = 5.0
_NO_SUCH_PATH = '"detail":"Not Found"'  # FastAPI's; a 404 of the operation itself says what it did not find


def operation_named(name: str, dialect: Dialect) -> AdminOperation:
    """The dialect's operation; OptionError that lists what there is (and the nearest name) where it has none."""
    operation = dialect.admin.get(name)
    if operation is not None:
        return operation
    if not dialect.admin:
        raise OptionError(f"attack {name}: loadchaos knows no admin operations of {dialect.title}: take it out")
    near = difflib.get_close_matches(name, dialect.admin, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    known = ", ".join(n for n, o in dialect.admin.items() if o.destructive)
    raise OptionError(f"attack {name}: {dialect.title} has no such admin operation{hint} It has: {known}")


def make(
    spec: Any,
    params: Mapping[str, Any],
    dialect: Dialect,
    client: httpx.AsyncClient,
    redactor: Redactor,
    version: str | None,
) -> AdminAttack:
    """The attack that a profile's `{admin: NAME, params: {...}}` means. OptionError where that is none."""
    operation = operation_named(str(spec), dialect)
    for name, allowed in operation.allowed.items():
        if name in params and str(params[name]) not in allowed:
            raise OptionError(f"attack {operation.name}: {name} is one of {', '.join(allowed)} (got {params[name]})")
    undo = dialect.admin[operation.undo] if operation.undo else None
    return AdminAttack(operation, undo, params, client, redactor, version)


class AdminAttack:
    """One admin operation with its parameters."""

    def __init__(
        self,
        operation: AdminOperation,
        undo: AdminOperation | None,
        params: Mapping[str, Any],
        client: httpx.AsyncClient,
        redactor: Redactor,
        version: str | None = None,
    ) -> None:
        self._operation, self._undo = operation, undo
        # Parameters the operation takes in its body go there, all others into the query.
        body = operation.body
        self._params = {**operation.params, **{k: _text(v) for k, v in params.items() if body is None}}
        self._body = None if body is None else {**body, **params}
        if body is not None and "abort_all" in body and "request_ids" in params:
            self._body = dict(params)
        self._client, self._redactor, self._version = client, redactor, version

    @property
    def name(self) -> str:
        """See Attack."""
        return self._operation.name

    @property
    def effects(self) -> Sequence[str]:
        """See Attack."""
        return self._operation.effects_with(self._params)

    @property
    def holds(self) -> bool:
        """See Attack."""
        return self._undo is not None

    @property
    def undone_by(self) -> str | None:
        """See Attack."""
        return self._undo.name if self._undo is not None else None

    def about(self, replica: AttackedReplica) -> AttackDetail:  # noqa: ARG002 - the protocol's; an endpoint needs no aim
        """See Attack."""
        return {}

    async def begin(self, replica: AttackedReplica) -> ActResult:
        """See Attack."""
        return await self._call(self._operation, replica, self._params, self._body)

    async def undo(self, replica: AttackedReplica) -> ActResult:
        """See Attack."""
        if self._undo is None:
            return ActResult(ok=True, text="nothing to undo")
        body = self._undo.body
        if body is not None:  # which adapter to unload
            body = {**body, **{k: v for k, v in (self._body or {}).items() if k.endswith("_name")}}
        return await self._call(self._undo, replica, self._undo.params, body)

    async def preflight(self, replica: AttackedReplica) -> ActResult:
        """Ask for the path with a method that does nothing: 405 means that it is there, 404 that it is not."""
        operation = self._operation
        method = "OPTIONS" if operation.get_acts or operation.method == "GET" else "GET"
        done = await self._send(method, operation.path, replica, _PREFLIGHT_S)
        if done.status is None:
            return ActResult(ok=None, text=f"{operation.path}: {done.text}")
        if done.status == 404:
            return ActResult(ok=False, status=404, text=f"this server has no {operation.path}: {self._missing()}")
        if done.status in (401, 403):
            text = f"{operation.path} answers {done.status}: an API key is needed (--api-key-env)"
            return ActResult(ok=False, status=done.status, text=text)
        return ActResult(ok=True, status=done.status, text=f"{operation.path} is there")

    def _missing(self) -> str:
        since, version = version_key(self._operation.since), version_key(self._version)
        if since is not None and version is not None and version < since:
            return f"it came with {self._operation.since}, this one is {self._version}"
        return self._operation.gate or "nothing is known that turns it on"

    async def _call(
        self,
        operation: AdminOperation,
        replica: AttackedReplica,
        params: Mapping[str, str],
        body: Mapping[str, Any] | None,
    ) -> ActResult:
        done = await self._send(operation.method, operation.path, replica, operation.limit_s, params, body)
        if done.status == 404 and operation.gate and _NO_SUCH_PATH in done.text:
            text = f"{done.text} ({operation.gate})"
            return ActResult(ok=False, status=404, text=text, took_ns=done.took_ns)
        return done

    async def _send(
        self,
        method: str,
        path: str,
        replica: AttackedReplica,
        limit_s: float,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> ActResult:
        begin = time.monotonic_ns()
        url = replica.admin_url.rstrip("/") + path
        try:
            answer = await self._client.request(method, url, params=params or None, json=body, timeout=limit_s)
        except httpx.HTTPError as e:
            text = self._redactor.text(f"{type(e).__name__}: {e}".rstrip(": "))
            # A refused connection did nothing; an answer that did not come leaves open what was done.
            return ActResult(
                False if isinstance(e, httpx.ConnectError) else None, None, text, time.monotonic_ns() - begin
            )
        text = self._redactor.text(answer.text)[:_TEXT_CHARS]
        return ActResult(_went_well(answer), answer.status_code, text, time.monotonic_ns() - begin)


def _went_well(answer: httpx.Response) -> bool:
    """A 2xx whose body does not say otherwise: /reset_prefix_cache says 200 `{"success":false}` while blocks are held."""
    if not answer.is_success:
        return False
    try:
        data = json.loads(answer.content)
    except ValueError:
        return True
    return not (isinstance(data, dict) and data.get("success") is False)


def _text(value: Any) -> Any:
    """As a query parameter: true, not True; several values of one name as a list."""
    if isinstance(value, list | tuple):
        return [_text(part) for part in value]
    return str(value).lower() if isinstance(value, bool) else str(value)
