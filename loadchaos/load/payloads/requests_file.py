"""Requests from a file, sent as they are.

OpenAI bodies, OpenAI batch files, ShareGPT conversations, AIPerf inputs. Only the model's name is replaced (the file's
own may not be served here), and streamed requests ask for usage. A length of the answer that a row records beside its
request (`output_tokens`, a recorded answer) becomes its limit. Images may be files in the file's folder, data URLs or URLs.
"""

from __future__ import annotations

import base64
import copy
import functools
import itertools
import json
import mimetypes
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import orjson
from pydantic import model_validator

from loadchaos.core.field_changes import with_changes
from loadchaos.core.model import Facts
from loadchaos.core.rng import Rng
from loadchaos.core.units import counted
from loadchaos.core.urls import CHAT_PATH, COMPLETIONS_PATH
from loadchaos.load.payloads import images_by_path
from loadchaos.load.payloads.base import Payload
from loadchaos.load.payloads.body_contract import contract_of_body
from loadchaos.load.wire.contract import OUTPUT_LIMITS, AnswerContract
from loadchaos.load.wire.request import Request
from loadchaos.profile.json_lines import json_lines, read_text, suffix_of
from loadchaos.profile.request_options import RequestContent
from loadchaos.server.dialects import DIALECTS

_URL_PREFIXES = ("data:", "http://", "https://", "file:", "ftp:")
_SHAREGPT = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "bard": "assistant", "bing": "assistant", "system": "system",
}  # fmt: skip
_Tokens = TypeVar("_Tokens", int, float)
Body = dict[str, object]
"""A body of a request, or a part of one, as the file has it."""
_PLACEHOLDER_ANSWER: Body = {"role": "assistant", "content": "I see. Please go on."}
_ROW_LENGTHS = (
    "output_tokens", "output_len", "output_length", "expected_output_len", "output_tokens_count", "completion_tokens",
    "completion_tokens_count",
)  # fmt: skip
"""Fields in which rows of benchmarks record the length of the answer; no API has them in a request."""
_PROMPT_LENGTHS = (
    "prompt_len", "prompt_tokens", "prompt_tokens_count", "input_len", "input_length", "input_tokens",
    "input_tokens_count",
)  # fmt: skip
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")
_TOKEN_CHARACTERS = 6
"""A word is a token for each of so many characters begun: about the mean of English words in the vocabularies of today."""


class Options(Payload):
    """Requests of `file`: one per line (.jsonl) or all in one value (.json), also packed with gzip (.jsonl.gz).

    `in_order` starts again after the last one, and so does `shuffled`, whose order depends only on the number of requests.
    `sampled` draws each request anew, so that some come again before others come once. A conversation (ShareGPT, AIPerf's
    multi_turn) is one request for each question, with all earlier messages; `turns: first` takes only the first question,
    as most benchmarks do. `keep_model` sends the file's model. `lengths: file` limits answers as the file does: by a body's
    own limit, else by the row's `output_tokens`, else by the length of the recorded answer; `lengths: traffic` by `output`
    of the traffic.
    """

    ORDER: ClassVar[int] = 0
    file_option: ClassVar[str] = "file"
    ignores: ClassVar[frozenset[str] | None] = None
    file: str
    order: Literal["in_order", "shuffled", "sampled"] = "in_order"
    turns: Literal["all", "first"] = "all"
    keep_model: bool = False
    lengths: Literal["file", "traffic"] = "file"

    @model_validator(mode="after")
    def _readable(self) -> Options:
        if not read(self.file, self.turns):
            raise ValueError(f"{self.file} holds no request")
        return self

    def outputs(self, traffic_output: float) -> list[float | None]:
        """Maximum output tokens of each request in turn, for `explain`. None where a request sets no limit."""
        found = [(self._limit(given, traffic_output), given.answers) for given in read(self.file, self.turns)]
        return [None if limit is None else limit * answers for limit, answers in found]

    def _limit(self, given: FileRequest, traffic_output: _Tokens) -> int | _Tokens | None:
        if self.lengths == "traffic" or given.open_ended:
            return traffic_output
        return given.max_tokens

    def notes(self) -> Sequence[str]:
        estimated = 0 if self.lengths == "traffic" else sum(g.estimated for g in read(self.file, self.turns))
        if not estimated:
            return ()
        name = Path(self.file).name
        return [
            f"{name}: the lengths of {counted(estimated, 'recorded answer')} are estimates by words; they are limits"
        ]

    def refuses_output(self, *, exact: bool) -> str:
        if exact:
            return (
                "requests of a file cannot be made to have an exact length: max was expected, with lengths: traffic of the "
                "payload requests"
            )
        if self.lengths == "traffic" or any(given.open_ended for given in read(self.file, self.turns)):
            return ""
        return (
            f"has no effect: no request of {Path(self.file).name} leaves the length of its answer to it; leave it out, or "
            "give lengths: traffic to the payload requests, which replaces the lengths of the file"
        )

    def per_request(self) -> RequestContent:
        found = read(self.file, self.turns)
        images = sum(g.images for g in found) / len(found)
        return RequestContent(bodies=1.0, images=images, uncounted_images=images)

    def describe(self) -> str:
        return (
            f"the {len(read(self.file, self.turns))} requests of {Path(self.file).name}, {self.order.replace('_', ' ')}"
        )

    def add(self, request: Request, facts: Facts, rng: Rng) -> None:
        """Set the whole request; nothing of it is fitted to the server."""
        found = read(self.file, self.turns)
        place = rng.bits() % len(found) if self.order == "sampled" else request.step.ordinal % len(found)
        given = found[_shuffled(len(found))[place] if self.order == "shuffled" else place]
        request.stream = request.stream if given.stream is None else given.stream
        model = given.model if self.keep_model and given.model is not None else facts.model
        parts = [b'{"model":', orjson.dumps(model)]
        request.max_tokens = self._limit(given, request.output_tokens)
        if request.max_tokens is not None and request.max_tokens != given.max_tokens:
            limits = {next(iter(given.limits), "max_tokens"): request.max_tokens}
        else:
            limits = dict(given.limits)
        if facts.field_changes and request.endpoint == "chat":
            limits = with_changes(limits, facts.field_changes)
        parts += [b',"%b":%d' % (name.encode(), limit) for name, limit in limits.items()]
        if request.stream:
            parts.append(b',"stream":true')
            if not given.stream_options:
                parts.append(b',"stream_options":{"include_usage":true}')
        request.path, request.body = given.path, b"".join([*parts, b",", given.rest, b"}"])
        request.images, request.image_names = given.images, None if given.images else []
        request.contract, request.answers = given.contract, given.answers


@cache
def _shuffled(n: int) -> list[int]:
    return random.Random(n).sample(range(n), n)


@dataclass(frozen=True)
class FileRequest:
    """One request of the file. `rest` is its JSON body after the model, without `stream` and `limits`, which are those of
    the answer by their field. `open_ended`: the file sets no limit and is not an OpenAI body, so the traffic's `output` is
    asked for. `estimated`: the limit is the length of the recorded answer. `answers` is the number it asks for at once
    (`n`). `contract`: the rules that its structured output sets.
    """

    path: str
    model: str | None
    rest: bytes
    stream: bool | None
    stream_options: bool
    limits: Mapping[str, int]
    images: int
    open_ended: bool
    estimated: bool = False
    answers: int = 1
    contract: AnswerContract | None = None

    @property
    def max_tokens(self) -> int | None:
        """Most tokens of an answer; None without a limit."""
        return next(iter(self.limits.values()), None)


def read(file: str, turns: Literal["all", "first"] = "all") -> tuple[FileRequest, ...]:
    """Read every request of a file. Raises ValueError with file and line of an invalid request or image."""
    return read_once(file, turns, images_by_path.allowed())


@functools.lru_cache(maxsize=8)
def read_once(file: str, turns: str, _allowed: Sequence[Path]) -> tuple[FileRequest, ...]:
    """Read a file once for the same turns and allowed folders."""
    path = Path(file)
    found: list[FileRequest] = []
    for where, record in _records(path):
        try:
            length = _row_length(record)
            for url, body, recorded in _bodies(record, turns == "all"):
                found.append(_file_request(body, url, path.parent, recorded, length))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise ValueError(f"{where}: {e}") from e
        except OSError as e:
            raise ValueError(f"{where}: {e.filename}: {e.strerror}") from e
    return tuple(found)


def _records(path: Path) -> Iterator[tuple[str, object]]:
    """Yield (location, value) of each record. Records are the items of a JSON array, of `{"data": [...]}`, or the lines."""
    text = read_text(path)
    if suffix_of(path) == ".json":
        try:
            data = json.loads(text)
        except json.JSONDecodeError as e:
            raise ValueError(f"{path}:{e.lineno}:{e.colno}: not JSON: {e.msg}") from e
        many = data.get("data", [data]) if isinstance(data, dict) else data
        if not isinstance(many, list):
            raise ValueError(f"{path}: a request or a list of them was expected (got {many!r:.40})")
        for i, record in enumerate(many, 1):
            yield f"{path} entry {i}", record
        return
    yield from json_lines(path, text)


def _row_length(record: object) -> int | None:
    """Length of the answer that a record tells beside its request; None: it tells none. Raises ValueError."""
    row: Mapping[str, object] = record if isinstance(record, Mapping) else {}
    for name in _ROW_LENGTHS:
        if (value := row.get(name)) is not None:
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}: a whole number of at least 1 was expected (got {value!r:.40})")
            return value
    return None


def _bodies(record: object, all_turns: bool) -> Iterator[tuple[str | None, Body, str | None]]:
    """Yield the request bodies of a record in any known form. Each is (path, body, answer): the recorded answer, which is
    empty without one; None for an OpenAI body, which has its own limit or none.
    """
    if not isinstance(record, dict):
        raise ValueError(f"an object was expected (got {type(record).__name__})")
    if isinstance(record.get("body"), dict):  # OpenAI's batch files
        yield record.get("url"), record["body"], None
    elif "messages" in record or ("prompt" in record and not isinstance(record["prompt"], Mapping)):
        yield None, record, None
    elif "conversations" in record:  # ShareGPT
        messages: list[Body] = [
            {"role": _role(t["from"]), "content": str(t["value"])} for t in _turn_list(record["conversations"])
        ]
        # An excerpt of a longer one may begin with an answer; templates need a question first.
        messages = list(itertools.dropwhile(lambda m: m["role"] == "assistant", messages))
        yield from _one_per_question(messages, all_turns)
    elif "payloads" in record:  # AIPerf's inputs.json
        for body in _items(record, "payloads"):
            yield None, body, None
    elif "turns" in record:  # AIPerf's multi_turn has no answers: placeholders stand between the questions
        questions = [message for item in _items(record, "turns") for message in _items(_from_aiperf(item), "messages")]
        messages = [m for question in questions for m in (question, _PLACEHOLDER_ANSWER)][:-1]
        for url, body, _ in _one_per_question(messages, all_turns):
            yield url, body, ""
    elif {"text", "texts", "image", "images"} & record.keys():  # AIPerf's single_turn and random_pool
        yield None, _from_aiperf(record), ""
    else:
        raise ValueError(
            f"no request: it has {', '.join(sorted(record)[:6]) or 'nothing'}, but no messages and no prompt"
        )


def _turn_list(turns: object) -> list[Mapping[str, object]]:
    items: list[Any] = turns if isinstance(turns, list) else [None]
    if not all(isinstance(t, Mapping) and {"from", "value"} <= t.keys() for t in items):
        raise ValueError('conversations: a list of {"from": ..., "value": ...} was expected')
    return items


def _items(record: Mapping[str, object], key: str) -> list[Any]:
    found = record[key]
    if not isinstance(found, list):
        raise ValueError(f"{key}: a list was expected (got {found!r:.40})")
    return found


def _role(name: object) -> str:
    if name not in _SHAREGPT:
        raise ValueError(f"from: {', '.join(_SHAREGPT)} was expected (got {name!r})")
    return _SHAREGPT[str(name)]


def _one_per_question(messages: list[Body], all_turns: bool) -> Iterator[tuple[str | None, Body, str]]:
    questions = [i for i, message in enumerate(messages) if message["role"] == "user"]
    for i in questions if all_turns else questions[:1]:
        after = messages[i + 1] if i + 1 < len(messages) else {}
        answer = str(after["content"]) if after.get("role") == "assistant" else ""
        yield None, {"messages": copy.deepcopy(messages[: i + 1])}, answer


def _estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text, which only the tokenizer of its model could count."""
    return sum(-(-len(part) // _TOKEN_CHARACTERS) for part in _WORD_OR_MARK.findall(text))


def _from_aiperf(record: object) -> Body:
    if not isinstance(record, Mapping):
        raise ValueError(f"a turn with text or images was expected (got {record!r:.40})")
    texts, images = record.get("texts") or [record.get("text") or ""], record.get("images") or []
    images = images or ([record["image"]] if record.get("image") else [])
    # Named items stand as {"name": ..., "contents": [...]}.
    flat = [c for t in texts for c in (t["contents"] if isinstance(t, dict) else [t])]
    pictures = [c for i in images for c in (i["contents"] if isinstance(i, dict) else [i])]
    content: object = " ".join(flat)
    if pictures:
        parts: list[Body] = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
        content = [*parts, {"type": "text", "text": content}]
    return {"messages": [{"role": "user", "content": content}]}


@cache
def _admin_paths() -> tuple[str, ...]:
    return tuple({operation.path for dialect in DIALECTS.values() for operation in dialect.admin.values()})


def _file_request(body: Body, url: str | None, folder: Path, recorded: str | None, length: int | None) -> FileRequest:
    if not isinstance(body, dict) or not ("messages" in body or "prompt" in body):
        raise ValueError("a body with messages or a prompt was expected")
    if url is not None and (not isinstance(url, str) or not url.startswith("/") or not url.isprintable() or " " in url):
        raise ValueError(f"a path such as {CHAT_PATH} was expected as url (got {url!r})")
    if url is not None and unquote(urlsplit(url).path).rstrip("/").endswith(_admin_paths()):
        raise ValueError(f"{url} is an admin endpoint and no path of requests: make it an attack of a profile")
    body = dict(body)
    model, stream = body.pop("model", None), body.pop("stream", None)
    if (own := _row_length(body)) is not None:
        length = own
    for name in (*_ROW_LENGTHS, *_PROMPT_LENGTHS):
        body.pop(name, None)
    # An invalid limit is sent as it is, as the file may test the server's reaction to it.
    limits: dict[str, int] = {k: v for k in OUTPUT_LIMITS if type(v := body.get(k)) is int and v > 0}
    for name in limits:
        del body[name]
    is_limited, estimated = any(name in body for name in OUTPUT_LIMITS) or bool(limits), 0
    if not is_limited and length is None and recorded:
        length = estimated = _estimated_tokens(recorded)
    if not is_limited and length:
        limits = {"max_tokens": length}
    images = 0
    for part in _image_parts(body):
        images += 1
        _embed(part, folder)
    path = url or (CHAT_PATH if "messages" in body else COMPLETIONS_PATH)
    return FileRequest(
        path=path,
        model=None if model is None else str(model),
        rest=orjson.dumps(body)[1:-1],
        stream=None if stream is None else bool(stream),
        stream_options="stream_options" in body,
        limits=limits,
        images=images,
        open_ended=recorded is not None and not limits,
        estimated=estimated > 0,
        answers=n if isinstance(n := body.get("n"), int) and n > 1 else 1,
        contract=contract_of_body(body),
    )


def _image_parts(body: Mapping[str, object]) -> Iterator[Body]:
    for message in _items(body, "messages") if body.get("messages") else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") == "image_url":
                yield part


def _embed(part: Body, folder: Path) -> None:
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or not url or url.startswith(_URL_PREFIXES):
        return
    data = images_by_path.read_image(folder, url)
    mime = mimetypes.guess_type(url)[0] or "image/png"
    data_url = f"data:{mime};base64,{base64.b64encode(data).decode()}"
    part["image_url"] = {**image, "url": data_url} if isinstance(image, dict) else {"url": data_url}
