"""Checks and parsing of a request body, in vLLM's order."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import orjson

from loadchaos.simulator.body import Body, inside
from loadchaos.simulator.engine import tokenizer
from loadchaos.simulator.engine.guided import Guided
from loadchaos.simulator.http.server import HttpExchange
from loadchaos.simulator.media.processor import AUDIO, IMAGE_MARK, VIDEO, Placed
from loadchaos.simulator.options import Options
from loadchaos.simulator.vllm import errors
from loadchaos.simulator.vllm.errors import VllmRefusal, bad_parameter, validation

_GREEDY_BELOW = 1e-5


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters. `max_tokens` None: as many as fit."""

    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    temperature: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0


class MediaSource(NamedTuple):
    """URL of an image or video, and the client's name for it. vLLM's caches then know it by that name alone."""

    url: str
    uuid: str | None

    @property
    def kind(self) -> str:
        return "video" if self.url.startswith(VIDEO) else "audio" if self.url.startswith(AUDIO) else "image"


@dataclass(frozen=True)
class Prompt:
    """A prompt before its images are decoded. It has pieces of token ids, with an image between each two."""

    pieces: tuple[tuple[int, ...], ...]
    sources: tuple[MediaSource, ...] = ()


@dataclass(frozen=True)
class CheckedRequest:
    """A checked request."""

    prompt: Prompt
    sampling: Sampling
    chat: bool
    request_id: str
    ids: tuple[int, ...] = ()
    images: tuple[Placed, ...] = field(default=())
    guided: Guided | None = None
    messages: tuple[Body, ...] = ()
    adapter: str = ""
    cache_salt: str = ""


def parse_body(exchange: HttpExchange) -> Body:
    """Return the body as an object. Raises VllmRefusal as vLLM's request validation does."""
    kind = exchange.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        text = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise VllmRefusal(text, "Bad Request")
    if not exchange.body:
        raise validation("missing", "body", "Field required", None)
    try:
        data = orjson.loads(exchange.body)
    except orjson.JSONDecodeError as error:
        if b"\\ud8" in exchange.body.lower() or b"\\udc" in exchange.body.lower():
            # A lone surrogate is valid for Python's own parser and falls at the tokenizer only.
            raise VllmRefusal(
                "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
            ) from error
        more = ", 'ctx': {'error': 'Expecting value'}"
        raise validation("json_invalid", f"body.{error.pos}", "JSON decode error", "<dict of 0 items>", more) from error
    if isinstance(data, dict):
        return data
    text = "Input should be a valid dictionary or object to extract fields from"
    shown = f"<list of {len(data)} items>" if isinstance(data, list) else data
    raise validation("model_attributes_type", "body", text, shown)


def check_model(data: Body, model: str, adapters: Container[str] = ()) -> str:
    """Check that a model named in the request is served. Returns the LoRA adapter that it names; empty: the base model."""
    requested = data.get("model")
    if isinstance(requested, str) and requested in adapters:
        return requested
    if requested and requested != model:
        raise VllmRefusal(
            f"The model `{requested}` does not exist. Valid aliases: {model}.", "NotFoundError", "model", 404
        )
    return ""


def _integer(data: Body, name: str) -> int | None:
    value = data.get(name)
    if value is None:
        return None
    try:
        return int(value) if isinstance(value, float) and value.is_integer() else int(str(value))
    except ValueError:
        text = "Input should be a valid integer, unable to parse string as an integer"
        raise validation("int_parsing", f"body.{name}", text, value) from None


def _number(data: Body, name: str, default: float) -> float:
    value = data.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = "Input should be a valid number, unable to parse string as a number"
        raise validation("float_parsing", f"body.{name}", text, value)
    return float(value)


def sampling(data: Body, chat: bool, options: Options) -> Sampling:
    """Return the sampling parameters, checked as far as vLLM checks them. Raises VllmRefusal for a bad value."""
    limit = options.engine.max_model_len
    max_tokens = _integer(data, "max_completion_tokens") if chat else None
    max_tokens = _integer(data, "max_tokens") if max_tokens is None else max_tokens
    if max_tokens is None and not chat:
        max_tokens = 16  # the completions API's default
    seed = _integer(data, "seed")
    min_tokens = _integer(data, "min_tokens") or 0
    count = _integer(data, "n")
    temperature = _number(data, "temperature", 1.0)
    top_p = _number(data, "top_p", 1.0)
    stream = bool(data.get("stream"))
    stream_options = data.get("stream_options")
    if stream_options and not stream:
        raise bad_parameter("Stream options can only be defined when `stream=True`.", "stream_options")
    if data.get("top_logprobs") and not data.get("logprobs"):
        raise bad_parameter("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    if chat and data.get("tools"):
        _check_tools(data.get("tool_choice") or "auto", options)
    _check_ranges(data, temperature, top_p, 1 if count is None else count)
    if max_tokens is not None and max_tokens < 1:
        raise bad_parameter(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    if max_tokens is not None and max_tokens > limit and options.engine.release >= (0, 19, 0):
        text = (
            f"max_tokens={max_tokens} cannot be greater than max_model_len={limit}. Please request fewer output tokens."
        )
        raise bad_parameter(text, "max_tokens", max_tokens)
    if max_tokens is not None and min_tokens > max_tokens:
        raise VllmRefusal(f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.")
    stop = data.get("stop") or ()
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(data.get("ignore_eos")),
        temperature=temperature,
        seed=seed,
        stop=(stop,) if isinstance(stop, str) else tuple(str(text) for text in stop) if isinstance(stop, list) else (),
        n=count or 1,
        stream=stream,
        include_usage=bool(inside(stream_options).get("include_usage")),
        logprobs=chat and bool(data.get("logprobs")),
        top_logprobs=_integer(data, "top_logprobs") or 0,
    )


def _check_tools(choice: object, options: Options) -> None:
    server = options.server
    if choice == "none" or (server.enable_auto_tool_choice and server.tool_call_parser):
        return
    if choice == "auto":
        raise VllmRefusal('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    if isinstance(choice, Mapping):
        name = inside(choice.get("function")).get("name")
        choice = f"function=ChatCompletionNamedFunction(name={name!r}) type='function'"
    raise VllmRefusal(f'tool_choice="{choice}" requires --tool-call-parser to be set')


def _check_ranges(data: Body, temperature: float, top_p: float, count: int) -> None:
    if temperature < 0:
        text = f"temperature must be non-negative, got {temperature}."
        raise bad_parameter(text, "temperature", temperature)
    if temperature > 2:
        raise bad_parameter(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)
    if not 0 < top_p <= 1:
        raise bad_parameter(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    if count < 1:
        raise VllmRefusal(f"n must be at least 1, got {count}.")
    if count > 1 and temperature < _GREEDY_BELOW:
        raise VllmRefusal(f"n must be 1 when using greedy sampling, got {count}.")
    max_n = int(os.environ.get("VLLM_MAX_N_SEQUENCES", "16384"))
    if count > max_n:
        raise VllmRefusal(
            f"n must be at most {max_n}, got {count}. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment "
            "variable."
        )
    for name in ("presence_penalty", "frequency_penalty"):
        value = _number(data, name, 0.0)
        if not -2 <= value <= 2:
            raise VllmRefusal(f"{name} must be in [-2, 2], got {value}.")
    size = tokenizer.VOCABULARY_SIZE
    if wrong := [int(key) for key in inside(data.get("logit_bias")) if key.isdigit() and int(key) >= size]:
        text = f"token_id(s) {wrong} in logit_bias contain out-of-vocab token ids. Vocabulary size: {size}"
        raise bad_parameter(text, "logit_bias", wrong)


def chat_prompt(data: Body, options: Options) -> Prompt:
    """Apply the chat template (ChatML, as Qwen's) to messages. Raises VllmRefusal for bad messages."""
    if "messages" not in data:
        raise errors.missing("messages", data)
    messages = data["messages"]
    if not isinstance(messages, list):
        raise validation("list_type", "body.messages", "Input should be a valid list", messages)
    if not messages:
        raise VllmRefusal("Cannot apply chat template to an empty conversation. Provide at least one message.")
    sources: list[MediaSource] = []
    text = []
    for message in messages:
        if not isinstance(message, Mapping):
            raise validation("dict_type", "body.messages.0", "Input should be a valid dictionary", message)
        given, called = message.get("content"), _called(message.get("tool_calls"))
        content = _content("" if called and given is None else given, sources, options) + called
        text.append(f"<|im_start|>{message.get('role', 'user')}\n{content}<|im_end|>\n")
    if data.get("add_generation_prompt", True):
        text.append("<|im_start|>assistant\n")
    return _pieces("".join(text), sources, options)


def _called(calls: object) -> str:
    found = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise validation("missing", "body.messages.0.tool_calls.0.function", "Field required", call)
        try:
            arguments = orjson.loads(function.get("arguments") or "{}")
        except (orjson.JSONDecodeError, TypeError) as e:
            raise VllmRefusal(str(e)) from None
        text = orjson.dumps({"name": function.get("name"), "arguments": arguments}).decode()
        found.append(f"\n<tool_call>\n{text}\n</tool_call>")
    return "".join(found)


def _content(content: object, sources: list[MediaSource], options: Options) -> str:
    if isinstance(content, str):
        return content.replace(IMAGE_MARK, "")
    if not isinstance(content, list):
        place = "body.messages.0.ChatCompletionUserMessageParam.content"
        raise validation("string_type", place, "Input should be a valid string", content)
    return "".join(_part(part, sources, options) for part in content)


def _part(part: object, sources: list[MediaSource], options: Options) -> str:
    if isinstance(part, str):
        return part.replace(IMAGE_MARK, "")
    fields = inside(part)
    kind, text = fields.get("type"), fields.get("text")
    if kind in ("text", "input_text", "refusal") and isinstance(text, str):
        return text.replace(IMAGE_MARK, "")
    if kind in ("input_audio", "audio_url"):
        return _audio_part(fields, sources, options)
    if kind not in ("image_url", "video_url"):
        raise VllmRefusal(_bad_part(part))
    if not options.server.images:
        raise VllmRefusal(f"{options.server.model} is not a multimodal model")
    _check_count(str(kind).removesuffix("_url"), sources, options)
    image = fields.get(str(kind))
    if not isinstance(image, Mapping):
        raise VllmRefusal(_bad_image(fields, image))
    name = fields.get("uuid")
    sources.append(MediaSource(str(image.get("url", "")), None if name is None else str(name)))
    return f"<|vision_start|>{IMAGE_MARK}<|vision_end|>"


def _audio_part(part: Body, sources: list[MediaSource], options: Options) -> str:
    _check_count("audio", sources, options)
    given = part.get("input_audio")
    if not isinstance(given, Mapping):
        raise VllmRefusal(_bad_part(part))
    sources.append(MediaSource(f"{AUDIO}{given.get('format')};base64,{given.get('data')}", None))
    return IMAGE_MARK


def _check_count(what: str, sources: Sequence[MediaSource], options: Options) -> None:
    server = options.server
    limit = {"video": server.limit_mm_videos, "audio": server.limit_mm_audios}.get(what, server.limit_mm_per_prompt)
    if sum(source.kind == what for source in sources) >= limit:
        raise bad_parameter(f"At most {limit} {what}(s) may be provided in one prompt.", what)


def _bad_image(part: Body, image: object) -> str:
    head = "1 validation error for ChatCompletionContentPartImageParam\nimage_url\n"
    if "image_url" not in part:
        return head + errors.pydantic("Field required", "missing", repr(part), "dict")
    shown = repr(image)
    if len(shown) > 50:
        shown = f"{shown[:26]}...{shown[-21:]}"
    return head + errors.pydantic("Input should be a valid dictionary", "dict_type", shown, type(image).__name__)


def _bad_part(part: object) -> str:
    head = "8 validation errors for ValidatorIterator\n0.ChatCompletionContentPartTextParam.text\n"
    return head + errors.pydantic("Field required", "missing", repr(part), type(part).__name__)


def _pieces(text: str, sources: Sequence[MediaSource], options: Options) -> Prompt:
    _check_characters(text, options)
    return Prompt(tuple(tuple(encode(piece)) for piece in text.split(IMAGE_MARK)), tuple(sources))


def _check_characters(text: str, options: Options) -> None:
    limit = options.engine.max_model_len
    if len(text) > 20 * limit and options.engine.release >= (0, 18, 0):
        raise errors.too_many_characters(len(text), limit)


def encode(text: str) -> list[int]:
    """Return the token ids of a text. Raises VllmRefusal for text that no tokenizer takes."""
    try:
        return tokenizer.encode(text)
    except UnicodeEncodeError as error:
        text = "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
        raise VllmRefusal(text) from error


def completion_prompt(data: Body, options: Options) -> Prompt:
    """Return the prompt of a completion: a text or a list of token ids. Raises VllmRefusal for a bad prompt."""
    prompt = data.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if not prompt:
        raise bad_parameter("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, str):
        _check_characters(prompt, options)
        return Prompt((tuple(encode(prompt)),))
    if not isinstance(prompt, list) or not all(isinstance(i, int) for i in prompt):
        raise validation("string_type", "body.prompt", "Input should be a valid string", type(prompt).__name__)
    for number in prompt:
        if number < 0:
            text = "Input should be greater than or equal to 0"
            raise validation("greater_than_equal", "body.prompt.0", text, number, ", 'ctx': {'ge': 0}")
        if number >= tokenizer.VOCABULARY_SIZE:
            raise VllmRefusal(f"Token id {number} is out of vocabulary")
    return Prompt((tuple(prompt),))


def prompts(data: Body, options: Options, *, chat: bool) -> list[Prompt]:
    """Return the prompts of one body; a list of texts has several. Raises VllmRefusal for a bad prompt."""
    texts = data.get("prompt")
    if not chat and isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return [completion_prompt({**data, "prompt": text}, options) for text in texts]
    return [(chat_prompt if chat else completion_prompt)(data, options)]


def fit(checked: CheckedRequest, options: Options) -> CheckedRequest:
    """Check the prompt against the context, and set the output length. Raises VllmRefusal where the prompt or the
    output does not fit.
    """
    limit, count = options.engine.max_model_len, len(checked.ids)
    era = options.engine.release
    text_tokens = sum(len(piece) for piece in checked.prompt.pieces)
    if text_tokens > limit:
        raise errors.too_long(count, limit, era)
    if count > limit:
        raise errors.too_long_with_images(count, limit)
    remaining, requested = limit - count, checked.sampling.max_tokens
    if requested is not None and requested > remaining and era < (0, 19, 0):
        text = (
            f"'max_tokens' or 'max_completion_tokens' is too large: {requested}. This model's maximum context length is "
            f"{limit} tokens and your request has {count} input tokens ({requested} > {limit} - {count})."
        )
        raise bad_parameter(text, "max_tokens", requested) if era >= (0, 16, 0) else VllmRefusal(text)
    if remaining < 1:
        raise bad_parameter(f"max_tokens must be at least 1, got {remaining}.", "max_tokens", remaining)
    granted = remaining if requested is None else min(requested, remaining)
    min_tokens = min(checked.sampling.min_tokens, granted)
    if checked.sampling.ignore_eos:
        min_tokens = granted
    return replace(checked, sampling=replace(checked.sampling, max_tokens=granted, min_tokens=min_tokens))
