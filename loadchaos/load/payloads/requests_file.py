"""Requests out of a file, sent as they are: OpenAI bodies, OpenAI batch files, ShareGPT conversations, AIPerf inputs.

Only the model's name is put in (the file's own may not be served here), and streamed requests ask for usage. Images may
be paths beside the file, data URLs or URLs.
"""

from __future__ import annotations

import base64
import copy
import functools
import json
import mimetypes
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, model_validator

from loadchaos.core.errors import why_unread
from loadchaos.core.model import Facts, Request, Step
from loadchaos.core.rng import Rng
from loadchaos.load.payloads.base import Draft

ORDER = 0
_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_ELSEWHERE = ("data:", "http://", "https://", "file:", "ftp:")
_SHAREGPT = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "bard": "assistant", "bing": "assistant", "system": "system",
}  # fmt: skip
_MADE_UP = {"role": "assistant", "content": "I see. Please go on."}
_LIMITS = ("max_completion_tokens", "max_tokens")


class Options(BaseModel):
    """`file` holds one request a line (.jsonl) or all of them (.json); `in_order` begins again behind the last.

    A conversation (ShareGPT, AIPerf's multi_turn) is a request for each of its questions, with all that was said before;
    `turns: first` takes only the first question, as most benchmarks do. `keep_model` sends the model in the file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    order: Literal["in_order", "sampled"] = "in_order"
    turns: Literal["all", "first"] = "all"
    keep_model: bool = False

    @classmethod
    def ignored_payloads(cls, names: Iterable[str]) -> list[str]:
        """A request of a file is sent as it is."""
        return [name for name in names if name != "requests"]

    @model_validator(mode="after")
    def _readable(self) -> Options:
        if not read(self.file, self.turns):
            raise ValueError(f"{self.file} holds no request")
        return self

    def outputs(self, own: float) -> list[float | None]:
        """For `explain`: the most tokens of output that each request asks for, in turn; None where it sets no bound."""
        found = read(self.file, self.turns)
        return [own if g.open_ended else None if g.max_tokens is None else g.max_tokens * g.answers for g in found]

    def per_request(self) -> dict[str, float]:
        """For `explain`: the mean of what one request carries; what it costs in tokens nobody has counted."""
        found = read(self.file, self.turns)
        images = sum(g.images for g in found) / len(found)
        return {"bodies": 1.0, **({"images": images, "uncounted_images": images} if images else {})}

    def describe(self) -> str:
        """For `explain`."""
        return (
            f"the {len(read(self.file, self.turns))} requests of {Path(self.file).name}, {self.order.replace('_', ' ')}"
        )


@dataclass(frozen=True)
class Given:
    """One request of the file: `rest` is its JSON body from behind the model's name on, without `stream`."""

    path: str
    model: str | None
    rest: bytes
    stream: bool | None
    stream_options: bool
    max_tokens: int | None
    images: int
    open_ended: bool
    """The file says no limit and is no OpenAI body: then the traffic's `output` is asked for."""
    answers: int = 1
    """How many it asks for at once (`n`)."""


def add(draft: Draft, options: BaseModel, step: Step, facts: Facts, rng: Rng) -> None:
    """The whole request; nothing of it is fitted to the server."""
    assert isinstance(options, Options)
    found = read(options.file, options.turns)
    given = found[rng.bits() % len(found) if options.order == "sampled" else step.ordinal % len(found)]
    stream = step.stream if given.stream is None else given.stream
    model = given.model if options.keep_model and given.model is not None else facts.model
    parts = [b'{"model":', orjson.dumps(model)]
    limit = given.max_tokens
    if given.open_ended:
        limit = step.output.exact or step.output.max or 128
        parts.append(b',"max_tokens":%d' % limit)
    if stream:
        parts.append(b',"stream":true')
        if not given.stream_options:
            parts.append(b',"stream_options":{"include_usage":true}')
    parts += [b",", given.rest, b"}"]
    draft.request = Request(
        step,
        given.path,
        b"".join(parts),
        stream,
        None,
        given.images,
        max_tokens=limit,
        image_names=None if given.images else (),
    )


@functools.lru_cache(maxsize=8)
def read(file: str, turns: Literal["all", "first"] = "all") -> tuple[Given, ...]:
    """Every request of a file. Raises ValueError with file and line of what is none, or of an image that is not there."""
    path = Path(file)
    found: list[Given] = []
    try:
        for where, record in _records(path):
            try:
                found += [_given(body, url, path.parent, own) for url, body, own in _bodies(record, turns == "all")]
            except (ValueError, KeyError, TypeError, AttributeError) as e:
                raise ValueError(f"{where}: {e}") from e
            except OSError as e:
                raise ValueError(f"{where}: {e.filename}: {e.strerror}") from e
    except OSError as e:
        raise ValueError(f"{file}: {why_unread(e)}") from e
    except UnicodeDecodeError as e:
        raise ValueError(f"{file}: not UTF-8 text") from e
    return tuple(found)


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """(where, value) of each record: of a JSON array, of `{"data": [...]}`, or of each line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        try:
            whole = json.loads(text)
        except json.JSONDecodeError as e:
            raise ValueError(f"{path}:{e.lineno}:{e.colno}: no JSON: {e.msg}") from e
        many = whole.get("data", [whole]) if isinstance(whole, dict) else whole
        if not isinstance(many, list):
            raise ValueError(f"{path}: a request or a list of them was expected (got {many!r:.40})")
        for i, record in enumerate(many, 1):
            yield f"{path} entry {i}", record
        return
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield f"{path}:{number}", json.loads(line)
        except json.JSONDecodeError as e:
            raise ValueError(f"{path}:{number}:{e.colno}: no JSON: {e.msg}") from e


def _bodies(record: Any, all_turns: bool) -> Iterator[tuple[str | None, dict[str, Any], bool]]:
    """(path, body, whether it is an OpenAI body) of a record in any of the known forms."""
    if not isinstance(record, dict):
        raise ValueError(f"an object was expected (got {type(record).__name__})")
    if isinstance(record.get("body"), dict):  # OpenAI's batch files
        yield record.get("url"), record["body"], True
    elif "messages" in record or ("prompt" in record and not isinstance(record["prompt"], Mapping)):
        yield None, record, True
    elif "conversations" in record:  # ShareGPT
        said = [{"role": _role(t["from"]), "content": str(t["value"])} for t in _said(record["conversations"])]
        while said and said[0]["role"] == "assistant":  # cut out of a longer one; templates want a question first
            said.pop(0)
        yield from _questions(said, all_turns)
    elif "payloads" in record:  # AIPerf's inputs.json
        for body in record["payloads"]:
            yield None, body, True
    elif "turns" in record:  # AIPerf's multi_turn has no answers: what was said in between is made up
        asked = [message for turn in record["turns"] for message in _of_aiperf(turn)["messages"]]
        yield from _questions([m for question in asked for m in (question, _MADE_UP)][:-1], all_turns)
    elif {"text", "texts", "image", "images"} & record.keys():  # AIPerf's single_turn and random_pool
        yield None, _of_aiperf(record), False
    else:
        raise ValueError(
            f"no request: it has {', '.join(sorted(record)[:6]) or 'nothing'}, but no messages and no prompt"
        )


def _said(turns: Any) -> list[Mapping[str, Any]]:
    whole = isinstance(turns, list) and all(isinstance(t, Mapping) and {"from", "value"} <= t.keys() for t in turns)
    if not whole:
        raise ValueError('conversations: a list of {"from": ..., "value": ...} was expected')
    return list(turns)


def _role(name: object) -> str:
    if name not in _SHAREGPT:
        raise ValueError(f"from: {', '.join(_SHAREGPT)} was expected (got {name!r})")
    return _SHAREGPT[str(name)]


def _questions(said: list[dict[str, Any]], all_turns: bool) -> Iterator[tuple[str | None, dict[str, Any], bool]]:
    """A request for each question, with everything before it."""
    asked = [i for i, message in enumerate(said) if message["role"] == "user"]
    for i in asked if all_turns else asked[:1]:
        yield None, {"messages": copy.deepcopy(said[: i + 1])}, False


def _of_aiperf(record: Any) -> dict[str, Any]:
    if not isinstance(record, Mapping):
        raise ValueError(f"a turn with text or images was expected (got {record!r:.40})")
    texts, images = record.get("texts") or [record.get("text") or ""], record.get("images") or []
    images = images or ([record["image"]] if record.get("image") else [])
    # Named items stand as {"name": ..., "contents": [...]}.
    flat = [c for t in texts for c in (t["contents"] if isinstance(t, dict) else [t])]
    pictures = [c for i in images for c in (i["contents"] if isinstance(i, dict) else [i])]
    return _chat(" ".join(flat), pictures)


def _chat(text: str, images: list[str]) -> dict[str, Any]:
    if not images:
        return {"messages": [{"role": "user", "content": text}]}
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]}


def _given(body: dict[str, Any], url: str | None, folder: Path, own: bool) -> Given:
    if not isinstance(body, dict) or not ("messages" in body or "prompt" in body):
        raise ValueError("a body with messages or a prompt was expected")
    if url is not None and (not isinstance(url, str) or not url.startswith("/") or not url.isprintable() or " " in url):
        raise ValueError(f"a path such as {_CHAT} was expected as url (got {url!r})")
    body = dict(body)
    model, stream = body.pop("model", None), body.pop("stream", None)
    # What is no limit is sent as it is: to see what a server makes of it may be what the file is for.
    limit = next((v for k in _LIMITS if type(v := body.get(k)) is int and v > 0), None)
    images = 0
    for part in _image_parts(body):
        images += 1
        _embed(part, folder)
    path = url or (_CHAT if "messages" in body else _COMPLETIONS)
    return Given(
        path,
        None if model is None else str(model),
        orjson.dumps(body)[1:-1],
        stream,
        "stream_options" in body,
        limit,
        images,
        not own and limit is None,
        n if isinstance(n := body.get("n"), int) and n > 1 else 1,
    )


def _image_parts(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for message in body.get("messages") or ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") == "image_url":
                yield part


def _embed(part: dict[str, Any], folder: Path) -> None:
    """A path becomes a data URL; whatever names a scheme is left as it is."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or not url or url.startswith(_ELSEWHERE):
        return
    data = (folder / url).read_bytes()
    mime = mimetypes.guess_type(url)[0] or "image/png"
    whole = f"data:{mime};base64,{base64.b64encode(data).decode()}"
    part["image_url"] = {**image, "url": whole} if isinstance(image, dict) else {"url": whole}
