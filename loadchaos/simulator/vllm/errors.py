"""vLLM's refusals and errors in its own words. Texts of 0.32.0 and 0.33.0 are as measured, those of older eras as read
in their sources.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadchaos.simulator.engine.types import Release
from loadchaos.simulator.http.api import Refusal
from loadchaos.simulator.http.server import HttpExchange, error_event

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
ENGINE_DEAD_TO_CLIENTS = "The server had an error while processing your request."  # from 0.33 on


class VllmRefusal(Refusal):
    """A refusal with the parameter that it is about."""

    def __init__(
        self, message: str, kind: str = "BadRequestError", param: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message, kind, status)
        self.param = param

    @property
    def error(self) -> dict[str, object]:
        return {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}


def stream_event(refusal: Refusal, release: Release) -> bytes:
    """Return the error event of a stream whose 200 is already sent. It is written with json.dumps, so with blanks. Up
    to 0.12 each of them has code 400 and BadRequestError, even for a dead engine.
    """
    error = refusal.error
    if release < (0, 13, 0):
        error = {**error, "type": "BadRequestError", "code": 400}
    if release < (0, 9, 0):
        error = {"object": "error", **error}
    return error_event(error)


def dead(release: Release) -> VllmRefusal:
    text = ENGINE_DEAD if release < (0, 33, 0) else ENGINE_DEAD_TO_CLIENTS
    return VllmRefusal(text, "InternalServerError", None, 500)


def paused() -> VllmRefusal:
    """Return the refusal of a request by a paused server, from 0.33 on."""
    return VllmRefusal("Generation is paused. Please retry after it resumes.", "ServiceUnavailableError", None, 503)


def send(exchange: HttpExchange, refusal: Refusal, release: Release) -> None:
    """Answer with an error. Up to 0.10 a dead engine was a 500 without a body."""
    if exchange.path.startswith("/v1/messages"):
        error = {"type": refusal.kind, "message": refusal.message}
        exchange.send_json({"type": "error", "error": error}, refusal.status)
    elif refusal.message == ENGINE_DEAD and release < (0, 11, 0):
        exchange.send(500, b"", None)
    else:
        flat = release < (0, 9, 0)
        exchange.send_json({"object": "error", **refusal.error} if flat else {"error": refusal.error}, refusal.status)


def bad_parameter(message: str, name: str, value: object = None) -> VllmRefusal:
    """Return the refusal of a bad sampling parameter. Its message ends with `(parameter=top_p, value=2.0)`."""
    shown = f"(parameter={name})" if value is None else f"(parameter={name}, value={value})"
    return VllmRefusal(f"{message} {shown}", param=name)


def validation(kind: str, place: str, message: str, value: object, more: str = "") -> VllmRefusal:
    text = (
        f"1 validation error:\n  {{'type': '{kind}', 'loc': '{place}', 'msg': '{message}', 'input': '{value}'{more}}}"
    )
    return VllmRefusal(text, "Bad Request", place)


def pydantic(message: str, kind: str, shown: str, type_name: str) -> str:
    """Return the two lines of pydantic about a bad value."""
    return (
        f"  {message} [type={kind}, input_value={shown}, input_type={type_name}]\n"
        f"    For further information visit https://errors.pydantic.dev/2.14/v/{kind}"
    )


def missing(name: str, data: Mapping[str, object]) -> VllmRefusal:
    return validation("missing", f"body.{name}", "Field required", f"<dict of {len(data)} items>")


def too_long(count: int, limit: int, release: Release) -> VllmRefusal:
    """Return the refusal of a prompt longer than the context. The tokenizer stops one token after the limit, so newer
    eras never report more.
    """
    head = f"This model's maximum context length is {limit} tokens. However, "
    if release < (0, 9, 0):
        text = f"you requested {count} tokens in the messages, Please reduce the length of the messages."
        return VllmRefusal(head + text)
    if release < (0, 19, 0):
        text = f"your request has {count} input tokens. Please reduce the length of the input messages."
        return bad_parameter(head + text, "input_tokens", count) if release >= (0, 16, 0) else VllmRefusal(head + text)
    text = (
        f"your prompt contains at least {limit + 1} input tokens, which exceeds this limit even without any output "
        "tokens. Please reduce the length of the input prompt."
    )
    return bad_parameter(head + text, "input_tokens", limit + 1)


def too_many_characters(count: int, limit: int) -> VllmRefusal:
    """Return the refusal of a text too long to be tokenized. It has more than 20 characters for each token of the
    context.
    """
    text = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {count} characters "
        f"(more than {20 * limit} characters, which is the upper bound for {limit} input tokens). Please reduce the "
        "length of the input prompt."
    )
    return bad_parameter(text, "input_text", count)


def too_long_with_images(count: int, limit: int) -> VllmRefusal:
    return VllmRefusal(
        f"The decoder prompt (length {count}) is longer than the maximum model length of {limit}. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens plus multimodal tokens. For image inputs, the "
        "number of image tokens depends on the number of images and their aspect ratios as well."
    )


def aspect_ratio(width: int, height: int) -> VllmRefusal:
    """Return the refusal of an image with a bad aspect ratio. The reason itself is not in the message."""
    return VllmRefusal(
        "Failed to apply Qwen3VLProcessor on data={'text': '<|vision_start|><|image_pad|><|vision_end|>', 'images': "
        f"[<PIL.Image.Image image mode=RGB size={width}x{height}>]}} with kwargs={{'text_kwargs': {{'truncation': "
        "False}, 'images_kwargs': {'do_normalize': False, 'do_rescale': False}, 'videos_kwargs': {'do_normalize': "
        "False, 'do_rescale': False}, 'return_tensors': 'pt'}"
    )
