"""Admin attacks: calls to the server's own admin endpoints, whose answer is recorded unchanged. The operations of each
server (reset caches, pause, sleep, abort requests, load an adapter) are the table of its dialect (server/dialects/).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from loadchaos.chaos.base import NOTHING_TO_UNDO, ActResult, Attack, AttackContext, AttackedReplica
from loadchaos.core import http_client
from loadchaos.core.errors import OptionError, did_you_mean
from loadchaos.core.foreign_json import json_object
from loadchaos.core.http_answer import HttpAnswer
from loadchaos.server.dialects import Dialect
from loadchaos.server.dialects.base import AdminOperation

_TEXT_CHARS = 300
_PREFLIGHT_S = 5.0
_NO_SUCH_PATH = '"detail":"Not Found"'  # FastAPI's; a 404 of the operation itself names what it did not find


def operation_named(name: str, dialect: Dialect) -> AdminOperation:
    """Return the dialect's admin operation of that name. Raises OptionError, with the nearest name and all there are."""
    operation = dialect.admin.get(name)
    if operation is not None:
        return operation
    if not dialect.admin:
        raise OptionError(f"attack {name}: loadchaos has no admin operations for {dialect.title}: remove this attack")
    hint = did_you_mean(name, dialect.admin, ".")
    known = ", ".join(n for n, o in dialect.admin.items() if o.destructive)
    raise OptionError(f"attack {name}: {dialect.title} has no such admin operation{hint} It has: {known}")


def make(spec: Any, params: Mapping[str, object], context: AttackContext) -> AdminAttack:
    operation = operation_named(str(spec), context.dialect)
    for name, allowed in operation.allowed.items():
        if name in params and str(params[name]) not in allowed:
            raise OptionError(f"attack {operation.name}: {name} is one of {', '.join(allowed)} (got {params[name]})")
    undo = context.dialect.admin[operation.undo] if operation.undo else None
    return AdminAttack(operation, undo, params, context)


class AdminAttack(Attack):
    """One admin operation with its parameters."""

    def __init__(
        self,
        operation: AdminOperation,
        undo: AdminOperation | None,
        params: Mapping[str, object],
        context: AttackContext,
    ) -> None:
        self._operation, self._undo = operation, undo
        # Parameters the operation takes in its body go there, all others into the query.
        body = operation.body
        self._params = {**operation.params, **{k: _query_value(v) for k, v in params.items() if body is None}}
        self._body = None if body is None else {**body, **params}
        if body is not None and "abort_all" in body and "request_ids" in params:
            self._body = dict(params)
        self._context = context
        self.name, self.effects = operation.name, operation.effects_with(self._params)
        self.holds, self.undone_by = undo is not None, undo.name if undo is not None else None

    async def begin(self, replica: AttackedReplica) -> ActResult:
        return await self._call(self._operation, replica, self._params, self._body)

    async def undo(self, replica: AttackedReplica) -> ActResult:
        if self._undo is None:
            return NOTHING_TO_UNDO
        body = self._undo.body
        if body is not None:  # which adapter to unload
            body = {**body, **{k: v for k, v in (self._body or {}).items() if k.endswith("_name")}}
        return await self._call(self._undo, replica, self._undo.params, body)

    async def preflight(self, replica: AttackedReplica) -> ActResult:
        """Check that the endpoint exists, with a method that does nothing: 405 says so, 404 that it does not."""
        operation = self._operation
        method = "OPTIONS" if operation.get_acts or operation.method == "GET" else "GET"
        result = await self._send(method, operation.path, replica, _PREFLIGHT_S)
        if result.status is None:
            return ActResult(ok=None, text=f"{operation.path}: {result.text}")
        if result.status == 404:
            return ActResult(ok=False, status=404, text=f"this server has no {operation.path}: {self._missing()}")
        if result.status in (401, 403):
            text = f"{operation.path} answers {result.status}: it needs an API key (--api-key-env)"
            return ActResult(ok=False, status=result.status, text=text)
        return ActResult(ok=True, status=result.status, text=f"{operation.path} exists")

    def _missing(self) -> str:
        if self._operation.is_newer_than(self._context.version):
            return f"it exists from version {self._operation.since}, this server is {self._context.version}"
        return self._operation.gate or "loadchaos does not know which option enables it"

    async def _call(
        self,
        operation: AdminOperation,
        replica: AttackedReplica,
        params: Mapping[str, str],
        body: Mapping[str, object] | None,
    ) -> ActResult:
        result = await self._send(operation.method, operation.path, replica, operation.limit_s, params, body)
        if result.status == 404 and operation.gate and _NO_SUCH_PATH in result.text:
            return ActResult(ok=False, status=404, text=f"{result.text} ({operation.gate})")
        return result

    async def _send(
        self,
        method: str,
        path: str,
        replica: AttackedReplica,
        limit_s: float,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> ActResult:
        url = replica.admin_url.rstrip("/") + path
        try:
            response = await http_client.request(
                self._context.client, method, url, limit_s=limit_s, params=params or None, json=body
            )
        except http_client.FAILURES as e:
            why = f"no answer within {limit_s:g} s" if isinstance(e, TimeoutError) else str(e)
            text = self._context.redactor.text(f"{type(e).__name__}: {why}".rstrip(": "))
            # A refused connection did nothing; after a missing answer the server may or may not have acted.
            return ActResult(ok=False if isinstance(e, httpx.ConnectError) else None, text=text)
        text = self._context.redactor.text(response.text)[:_TEXT_CHARS]
        return ActResult(_succeeded(response), response.status, text)


def _succeeded(response: HttpAnswer) -> bool:
    """Return True for a 2xx, unless its body denies it: /reset_prefix_cache answers 200 `{"success":false}`."""
    return 200 <= response.status < 300 and json_object(response.text).get("success") is not False


def _query_value(value: Any) -> Any:
    """Return a value as a query parameter: `true`, not `True`. Several values of one name stay a list."""
    if isinstance(value, list | tuple):
        return [_query_value(part) for part in value]
    return str(value).lower() if isinstance(value, bool) else str(value)
