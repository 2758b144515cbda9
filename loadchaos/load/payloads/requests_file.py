"""Requests from a file, sent as they are.

OpenAI bodies, OpenAI batch files, ShareGPT conversations, AIPerf inputs. Only the model's name is replaced (the file's
own may not be served here), and streamed requests ask for usage. Images may be files in the file's folder, data URLs or
URLs.
"""

from __future__ import annotations

import base64
import copy
import functools
import itertools
import json
import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson
from pydantic import model_validator

from loadchaos.core.model import Facts
from loadchaos.core.rng import Rng
from loadchaos.load.payloads import images_by_path
from loadchaos.load.payloads.base import Payload
from loadchaos.load.payloads.body_contract import contract_of_body
from loadchaos.load.wire.contract import AnswerContract
from loadchaos.load.wire.request import Request
from loadchaos.profile.json_lines import json_lines, read_text
from loadchaos.profile.request_options import RequestContent

_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_URL_PREFIXES = ("data:", "http://", "https://", "file:", "ftp:")
_SHAREGPT = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "bard": "assistant", "bing": "assistant", "system": "system",
}  # fmt: skip
Body = dict[str, object]
"""A body of a request, or a part of one, as the file has it."""
_PLACEHOLDER_ANSWER: Body = {"role": "assistant", "content": "I see. Please go on."}
_LIMITS = ("max_completion_tokens", "max_tokens")


class Options(Payload):
    """Requests of `file`: one per line (.jsonl) or all in one value (.json).

    `in_order` starts again after the last one. A conversation (ShareGPT, AIPerf's multi_turn) is one request for each
    question, with all earlier messages; `turns: first` takes only the first question, as most benchmarks do. `keep_model`
    sends the file's model.
    """

    ORDER: ClassVar[int] = 0
    file_option: ClassVar[str] = "file"
    ignores: ClassVar[frozenset[str] | None] = None
    file: str
    order: Literal["in_order", "sampled"] = "in_order"
    turns: Literal["all", "first"] = "all"
    keep_model: bool = False

    @model_validator(mode="after")
    def _readable(self) -> Options:
        if not read(self.file, self.turns):
            raise ValueError(f"{self.file} holds no request")
        return self

    def outputs(self, traffic_output: float) -> list[float | None]:
        """Maximum output tokens of each request in turn, for `explain`. None where a request sets no limit."""
        found = read(self.file, self.turns)
        return [
            traffic_output if g.open_ended else None if g.max_tokens is None else g.max_tokens * g.answers
            for g in found
        ]

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
        given = found[rng.bits() % len(found) if self.order == "sampled" else request.step.ordinal % len(found)]
        request.stream = request.stream if given.stream is None else given.stream
        model = given.model if self.keep_model and given.model is not None else facts.model
        parts = [b'{"model":', orjson.dumps(model)]
        request.max_tokens = given.max_tokens
        if given.open_ended:
            request.max_tokens = request.output_tokens
            parts.append(b',"max_tokens":%d' % request.max_tokens)
        if request.stream:
            parts.append(b',"stream":true')
            if not given.stream_options:
                parts.append(b',"stream_options":{"include_usage":true}')
        request.path, request.body = given.path, b"".join([*parts, b",", given.rest, b"}"])
        request.images, request.image_names = given.images, None if given.images else []
        request.contract, request.answers = given.contract, given.answers


@dataclass(frozen=True)
class FileRequest:
    """One request of the file. `rest` is its JSON body after the model, without `stream`. `open_ended`: the file sets no
    limit and is not an OpenAI body, so the traffic's `output` is asked for. `answers` is the number it asks for at once
    (`n`). `contract`: the rules that its structured output sets.
    """

    path: str
    model: str | None
    rest: bytes
    stream: bool | None
    stream_options: bool
    max_tokens: int | None
    images: int
    open_ended: bool
    answers: int = 1
    contract: AnswerContract | None = None


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
            found += [
                _file_request(body, url, path.parent, is_openai)
                for url, body, is_openai in _bodies(record, turns == "all")
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise ValueError(f"{where}: {e}") from e
        except OSError as e:
            raise ValueError(f"{where}: {e.filename}: {e.strerror}") from e
    return tuple(found)


def _records(path: Path) -> Iterator[tuple[str, object]]:
    """Yield (location, value) of each record. Records are the items of a JSON array, of `{"data": [...]}`, or the lines."""
    text = read_text(path)
    if path.suffix == ".json":
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


def _bodies(record: object, all_turns: bool) -> Iterator[tuple[str | None, Body, bool]]:
    """Yield the request bodies of a record in any known form. Each is (path, body, True if it is an OpenAI body)."""
    if not isinstance(record, dict):
        raise ValueError(f"an object was expected (got {type(record).__name__})")
    if isinstance(record.get("body"), dict):  # OpenAI's batch files
        yield record.get("url"), record["body"], True
    elif "messages" in record or ("prompt" in record and not isinstance(record["prompt"], Mapping)):
        yield None, record, True
    elif "conversations" in record:  # ShareGPT
        messages: list[Body] = [
            {"role": _role(t["from"]), "content": str(t["value"])} for t in _turn_list(record["conversations"])
        ]
        # An excerpt of a longer one may begin with an answer; templates need a question first.
        messages = list(itertools.dropwhile(lambda m: m["role"] == "assistant", messages))
        yield from _one_per_question(messages, all_turns)
    elif "payloads" in record:  # AIPerf's inputs.json
        for body in _items(record, "payloads"):
            yield None, body, True
    elif "turns" in record:  # AIPerf's multi_turn has no answers: placeholders stand between the questions
        questions = [message for item in _items(record, "turns") for message in _items(_from_aiperf(item), "messages")]
        yield from _one_per_question(
            [m for question in questions for m in (question, _PLACEHOLDER_ANSWER)][:-1], all_turns
        )
    elif {"text", "texts", "image", "images"} & record.keys():  # AIPerf's single_turn and random_pool
        yield None, _from_aiperf(record), False
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


def _one_per_question(messages: list[Body], all_turns: bool) -> Iterator[tuple[str | None, Body, bool]]:
    questions = [i for i, message in enumerate(messages) if message["role"] == "user"]
    for i in questions if all_turns else questions[:1]:
        yield None, {"messages": copy.deepcopy(messages[: i + 1])}, False


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


def _file_request(body: Body, url: str | None, folder: Path, is_openai: bool) -> FileRequest:
    if not isinstance(body, dict) or not ("messages" in body or "prompt" in body):
        raise ValueError("a body with messages or a prompt was expected")
    if url is not None and (not isinstance(url, str) or not url.startswith("/") or not url.isprintable() or " " in url):
        raise ValueError(f"a path such as {_CHAT} was expected as url (got {url!r})")
    body = dict(body)
    model, stream = body.pop("model", None), body.pop("stream", None)
    # An invalid limit is sent as it is, as the file may test the server's reaction to it.
    limit = next((v for k in _LIMITS if type(v := body.get(k)) is int and v > 0), None)
    images = 0
    for part in _image_parts(body):
        images += 1
        _embed(part, folder)
    path = url or (_CHAT if "messages" in body else _COMPLETIONS)
    return FileRequest(
        path,
        None if model is None else str(model),
        orjson.dumps(body)[1:-1],
        None if stream is None else bool(stream),
        "stream_options" in body,
        limit,
        images,
        not is_openai and limit is None,
        n if isinstance(n := body.get("n"), int) and n > 1 else 1,
        contract_of_body(body),
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
