"""LMDeploy's refusals and engine errors. Their form changed five times; `outcome` knows which era does what."""

from __future__ import annotations

from enum import Enum

from loadchaos.simulator.engine.types import Release
from loadchaos.simulator.http.api import Refusal
from loadchaos.simulator.http.server import HttpExchange

INPUT_LENGTH = "ResponseType.INPUT_LENGTH_ERROR"


class LmdeployRefusal(Refusal):
    """A refusal with a flat error object."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        kind: str = "invalid_request_error",
        body: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message, kind, status)
        self._body = body

    @property
    def error(self) -> dict[str, object]:
        if self._body is not None:
            return self._body
        return {"message": self.message, "type": self.kind, "code": self.status, "param": None, "object": "error"}


def send_plain_500(exchange: HttpExchange) -> None:
    """Answer as after an unhandled exception; uvicorn closes the connection."""
    exchange.send(500, b"Internal Server Error", "text/plain; charset=utf-8", close=True)


def invalid(release: Release, place: str, message: str, kind: str) -> LmdeployRefusal:
    """Return the refusal of a body of the wrong form. It is a 422 with FastAPI's detail up to 0.15, and a 400 in
    LMDeploy's form from 0.16.
    """
    if release >= (0, 16, 0):
        return LmdeployRefusal(f"{place}: {message}" if place else message)
    detail = {"type": kind, "loc": ["body", *([place] if place else [])], "msg": message, "input": None}
    return LmdeployRefusal(message, 422, body={"detail": [detail]})


class Outcome(Enum):
    """Form in which an engine error reaches the client."""

    HTTP_500 = "500 as text, or a stream that breaks off"
    TEXT = "200 with the error as the answer's text and finish_reason error"
    REFUSAL = "400 or 500 as an error object"


def outcome(release: Release, chat: bool, stream: bool, hides_kv_error: bool, refuses_cleanly: bool) -> Outcome:
    """Return how this era answers an engine error. `hides_kv_error` is the planted bug of 0.6, in any era;
    `refuses_cleanly` is that era without it.
    """
    if hides_kv_error:
        return Outcome.HTTP_500
    if refuses_cleanly or release >= (0, 16, 0):
        return Outcome.REFUSAL
    # finish_reason error was accepted for whole chat answers from 0.7.0, elsewhere from 0.7.2.
    if release < (0, 7, 0) or (release < (0, 7, 2) and (stream or not chat)):
        return Outcome.HTTP_500
    return Outcome.TEXT


def error_text(error: str, release: Release) -> str:
    return "internal error happened" if release < (0, 10, 0) else f"internal error happened, status code {error}"


def refusal_for(error: str) -> LmdeployRefusal:
    if error == INPUT_LENGTH:
        return LmdeployRefusal("The request exceeds the model context length.")
    return engine_failed()


def engine_failed() -> LmdeployRefusal:
    return LmdeployRefusal("An internal server error occurred.", 500, "server_error")


def validation_traceback(chat: bool, stream: bool) -> list[str]:
    """Return the log lines of 0.6 for an error that fits no answer."""
    name = ("ChatCompletionResponse" if chat else "CompletionResponse") + ("StreamChoice" if stream else "Choice")
    allowed = "'stop', 'length' or 'tool_calls'" if chat and not stream else "'stop' or 'length'"
    site = "/opt/py3/lib/python3.10/site-packages"
    handler = "chat_completions_v1" if chat else "completions_v1"
    return [
        "ERROR:    Exception in ASGI application",
        "Traceback (most recent call last):",
        f'  File "{site}/uvicorn/protocols/http/httptools_impl.py", line 401, in run_asgi',
        "    result = await app(  # type: ignore[func-returns-value]",
        f'  File "{site}/fastapi/routing.py", line 301, in app',
        "    raw_response = await run_endpoint_function(",
        f'  File "{site}/lmdeploy/serve/openai/api_server.py", line 434, in {handler}',
        f"    choice_data = {name}(",
        f'  File "{site}/pydantic/main.py", line 212, in __init__',
        "    validated_self = self.__pydantic_validator__.validate_python(data, self_instance=self)",
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {name}",
        "finish_reason",
        f"  Input should be {allowed} [type=literal_error, input_value='error', input_type=str]",
        "    For further information visit https://errors.pydantic.dev/2.9/v/literal_error",
    ]
