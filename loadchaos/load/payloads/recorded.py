"""The bodies of a trace, sent as they were recorded; only the name of the model is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import orjson
from pydantic import model_validator

from loadchaos.core.errors import LedgerError
from loadchaos.core.model import Facts
from loadchaos.core.rng import Rng
from loadchaos.load.payloads.base import Payload
from loadchaos.load.payloads.body_contract import contract_of_recording
from loadchaos.load.wire.request import Request
from loadchaos.profile import request_trace
from loadchaos.profile.request_options import RequestContent
from loadchaos.server.dialects import DIALECTS, UNKNOWN


class Options(Payload):
    """Bodies of `trace`, a trace.jsonl that a phase with `replay` sends."""

    ORDER: ClassVar[int] = 0
    can_kill: ClassVar[bool] = True  # they made a server fail, and go to any path
    file_option: ClassVar[str] = "trace"
    ignores: ClassVar[frozenset[str] | None] = None
    trace: str

    @model_validator(mode="after")
    def _complete(self) -> Options:
        recorded = request_trace.read(Path(self.trace))
        for send in recorded.sends:
            if send.body is None:
                raise ValueError(
                    f"{self.trace}: request {send.id} has no body; `loadchaos replay` builds it from its plan"
                )
            if not recorded.body_file(send).is_file():
                raise ValueError(f"{self.trace}: the body of request {send.id} is missing: {recorded.body_file(send)}")
        return self

    def per_request(self) -> RequestContent:
        sends = request_trace.read(Path(self.trace)).sends
        images = sum(s.images for s in sends) / len(sends)
        return RequestContent(bodies=1.0, images=images, uncounted_images=images)

    def describe(self) -> str:
        return f"the recorded bodies of {Path(self.trace).name}"

    def add(self, request: Request, facts: Facts, rng: Rng) -> None:  # noqa: ARG002 - the interface
        """Set the whole request; nothing of it is fitted to the server."""
        recorded = request_trace.read(Path(self.trace))
        send = recorded.sends[request.step.ordinal % len(recorded.sends)]
        file = recorded.body_file(send)
        try:
            body = file.read_bytes()
        except OSError as e:
            raise LedgerError(
                f"{file}: the recorded body cannot be read: {e.strerror}; write the trace again with "
                "`loadchaos replay --export`"
            ) from e
        request.path, request.stream = send.path, send.stream
        request.body = with_model(body, recorded.header.model, facts.model)
        request.images, request.max_tokens = send.images, send.max_tokens
        request.image_names = None if send.images else []
        request.contract = contract_of_recording(file, guides_tools=DIALECTS.get(facts.dialect, UNKNOWN).guides_tools)


def with_model(body: bytes, recorded: str, served: str) -> bytes:
    """Replace the recorded model's name in a body; other names stay."""
    if recorded == served or not recorded or not served:
        return body
    data = orjson.loads(body)
    if data.get("model") != recorded:
        return body
    return orjson.dumps({**data, "model": served})
