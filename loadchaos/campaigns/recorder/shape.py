"""Describe a request body without its content.

The shape has the structure of the body. Known keys, numbers of known keys and words of the API remain. Every other
text becomes its length and keyed hashes of its blocks: equal texts of one recording have equal hashes, so shared
prefixes survive, and without the key nobody can test a guess. Property names of schemas become hashes as well.

    {"$text": [characters, bytes, [hash, ...]]}      {"$image": [format, width, height, bytes, hash]}
    {"$ids": [count, [hash, ...]]}                   {"$blob": [kind, characters, hash]}
    {"$name": hash}  {"$url": hash}  {"$number": digits}  {"$json": shape of the JSON in a text}
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import orjson

from loadchaos.core.errors import LoadchaosError
from loadchaos.load.endpoints import ENDPOINTS, known_endpoint_of_path
from loadchaos.server.dialects import DIALECTS

BLOCK_CHARS = 256
"""Characters of a block: about 64 tokens of English text."""
BLOCK_IDS = 64
MAX_DEPTH = 64
_MODEL = re.compile(r"[\w./:@+-]{1,128}\Z", re.ASCII)
_DATA_URL = re.compile(r"data:([a-z]{1,16})/([a-z0-9.+-]{1,32})[^,]{0,100},", re.IGNORECASE)

_KEYS = """
    model messages role content type text image_url url detail input_audio data format video_url audio_url uuid name
    prompt suffix echo best_of input encoding_format dimensions query documents text_1 text_2 top_n truncate_prompt_tokens
    instructions max_output_tokens previous_response_id store reasoning effort summary system thinking budget_tokens source
    media_type stop_sequences tool_use_id input_schema cache_control file
    max_tokens max_completion_tokens min_tokens stream stream_options include_usage continuous_usage_stats temperature top_p
    top_k min_p typical_p n seed stop stop_token_ids bad_words frequency_penalty presence_penalty repetition_penalty
    length_penalty use_beam_search ignore_eos skip_special_tokens spaces_between_special_tokens include_stop_str_in_output
    logprobs top_logprobs prompt_logprobs logit_bias allowed_token_ids detokenize priority add_generation_prompt
    continue_final_message add_special_tokens chat_template chat_template_kwargs enable_thinking reasoning_effort
    include_reasoning separate_reasoning parallel_tool_calls tools tool_choice tool_calls tool_call_id id function arguments
    description parameters strict response_format json_schema schema json_object structured_outputs guided_json guided_regex
    guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern json regex choice grammar ebnf
    structural_tag mm_processor_kwargs num_crops min_pixels max_pixels fps num_frames kv_transfer_params do_remote_decode
    do_remote_prefill cache_salt request_id user metadata logits_processors return_tokens_as_token_ids return_token_ids
    vllm_xargs service_tier modalities prediction refusal annotations reasoning_content audio
    properties items prefixItems required additionalProperties anyOf oneOf allOf not enum const minLength maxLength pattern
    minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minItems maxItems uniqueItems minProperties maxProperties
    $ref $defs definitions patternProperties title default examples nullable
    """
_NUMBER_KEYS = """
    best_of dimensions top_n truncate_prompt_tokens max_output_tokens budget_tokens max_tokens max_completion_tokens
    min_tokens temperature top_p top_k min_p typical_p n seed frequency_penalty presence_penalty repetition_penalty
    length_penalty logprobs top_logprobs prompt_logprobs priority num_crops min_pixels max_pixels fps num_frames minLength
    maxLength minItems maxItems minProperties maxProperties
    """
KNOWN_KEYS = frozenset(_KEYS.split())
_NUMBERS = frozenset(_NUMBER_KEYS.split())
"""Keys whose numbers are settings. Bounds and constants of schemas may be content."""
_WORDS = {
    "role": {"system", "developer", "user", "assistant", "tool", "function"},
    "type": {
        "text", "image_url", "input_text", "input_image", "output_text", "input_audio", "audio_url", "video_url", "image",
        "function", "json_object", "json_schema", "structural_tag", "object", "array", "string", "number", "integer",
        "boolean", "null", "message", "base64", "url", "tool_use", "tool_result", "enabled", "disabled", "ephemeral",
        "thinking", "auto", "any", "tool", "none", "reasoning", "function_call", "function_call_output",
    },
    "detail": {"auto", "low", "high"},
    "tool_choice": {"auto", "none", "required"},
    "encoding_format": {"float", "base64"},
    "effort": {"none", "minimal", "low", "medium", "high"},
    "reasoning_effort": {"none", "minimal", "low", "medium", "high"},
    "format": {"wav", "mp3", "json_object", "date-time", "date", "time", "email", "uri", "uuid"},
}  # fmt: skip
_NAME_MAPS = {"properties", "$defs", "definitions", "patternProperties", "metadata", "logit_bias", "vllm_xargs"}
"""Keys whose values have names of the user as keys."""
_NAMES = {"name", "id", "tool_call_id", "tool_use_id", "required", "request_id", "uuid", "cache_salt"}
_REFERENCE_WORDS = {"#", "$defs", "definitions", "properties", "items"}
_OTHER_PATHS = (
    "/v2/rerank", "/pooling", "/classify", "/v1/audio/translations", "/tokenize", "/detokenize", "/generate",
    "/v1/encode", "/encode",
)  # fmt: skip
"""Paths that serve requests of clients, beside those of the endpoints that a load is sent to."""
_ROOT = re.compile(r"(?:/(?:v\d+(?:(?:alpha|beta)\d*)?|api|openai|inference|compatible-mode|paas))*")
"""Begin of a path that holds no name: where APIs such as /api/v3, /v1beta/openai and /api/paas/v4 begin."""


@cache
def _known_paths() -> list[str]:
    """Longest first: `/v1/rerank` ends with `/rerank`."""
    dialects = DIALECTS.values()
    known = {
        *_OTHER_PATHS,
        *(endpoint.path for endpoint in ENDPOINTS.values()),
        *(path for dialect in dialects for path in dialect.endpoint_paths.values()),
        *(o.path for dialect in dialects for o in dialect.admin.values() if o.method == "POST"),
    }
    return sorted(known, key=len, reverse=True)


class UnreadableBodyError(LoadchaosError):
    """A body that is no JSON, or is nested too deeply. Only its length is recorded."""


def known_path(path: bytes) -> str:
    """The path of a request for an endpoint, as far as it holds no name of the user, else "other"."""
    text = path.decode("latin-1").rstrip("/")
    known = next((known for known in _known_paths() if text.endswith(known)), "")
    if not known and (name := known_endpoint_of_path(text)) is not None:
        known = ENDPOINTS[name].path
    root = text.removesuffix(known.removeprefix("/v1"))
    return text if known and _ROOT.fullmatch(root) else known or "other"


class BodyShaper:
    """Makes shapes with one key, which never reaches disk."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def shape(self, body: bytes) -> Any:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise UnreadableBodyError("no JSON: a JSON body was expected") from None
        return self._value(value, "", MAX_DEPTH)

    def _hash(self, data: bytes) -> str:
        return hashlib.blake2b(data, digest_size=8, key=self._key).hexdigest()

    def _name(self, name: str) -> str:
        return f"k{self._hash(b'name' + name.encode('utf-8', 'surrogatepass'))}"

    def _value(self, value: Any, key: str, depth: int) -> Any:
        if depth == 0:
            raise UnreadableBodyError(f"nested too deeply: at most {MAX_DEPTH} levels were expected")
        if isinstance(value, dict):
            return self._object(value, key, depth - 1)
        if isinstance(value, list):
            if value and all(type(v) is int for v in value):
                return {"$ids": [len(value), self._blocks(value, BLOCK_IDS, lambda ids: repr(ids).encode())]}
            return [self._value(v, key, depth - 1) for v in value]
        if isinstance(value, str):
            return self._string(value, key)
        if value is None or isinstance(value, bool) or key in _NUMBERS:
            return value
        return {"$number": len(repr(value))}

    def _object(self, value: dict[str, object], key: str, depth: int) -> dict[str, object]:
        if key in _NAME_MAPS:
            return {self._name(k): self._value(v, "", depth) for k, v in value.items()}
        return {
            (k if k in KNOWN_KEYS else self._name(k)): self._value(v, k if k in KNOWN_KEYS else "", depth)
            for k, v in value.items()
        }

    def _string(self, text: str, key: str) -> Any:
        if text in _WORDS.get(key, ()):
            return text
        if key == "model" and _MODEL.match(text):
            return text
        if key in _NAMES:
            return {"$name": self._name(text)}
        if key == "$ref":
            return "/".join(p if p in _REFERENCE_WORDS else self._name(p) for p in text.split("/"))
        if key == "arguments":
            try:
                return {"$json": self._value(orjson.loads(text), "", MAX_DEPTH)}
            except (orjson.JSONDecodeError, UnreadableBodyError):
                pass
        if (found := _DATA_URL.match(text)) is not None:
            return self._data_url(text, found)
        if key == "url" and text.startswith(("http://", "https://", "file://")):
            return {"$url": self._hash(text.encode("utf-8", "surrogatepass"))}
        data = text.encode("utf-8", "surrogatepass")
        blocks = self._blocks(text, BLOCK_CHARS, lambda t: t.encode("utf-8", "surrogatepass"))
        return {"$text": [len(text), len(data), blocks]}

    def _blocks(self, whole: Sequence[Any], size: int, encode: Callable[[Any], bytes]) -> list[str]:
        return [self._hash(encode(whole[i : i + size])) for i in range(0, len(whole), size)]

    def _data_url(self, text: str, found: re.Match[str]) -> Any:
        kind = found[1].lower()
        digest = self._hash(text.encode("ascii", "replace"))
        if kind == "image":
            try:
                data = base64.b64decode(text[found.end() :])
                name, width, height = _image_size(data)
                return {"$image": [name, width, height, len(data), digest]}
            except (binascii.Error, ValueError):
                pass
        return {"$blob": [kind if kind in ("image", "audio", "video") else "other", len(text), digest]}


def _image_size(data: bytes) -> tuple[str, int, int]:
    """(format, width, height) by an image's header. Raises ValueError."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return str(image.format), image.width, image.height
    except Exception as e:
        raise ValueError("no image that Pillow reads") from e
