"""Once, before the load: what is this server, what are its limits, how does it count tokens -> Facts.

Reads and tokenizer calls first; at most a handful of one-token generations where counting leaves something open. What
the server answers is data for the Facts; only what makes a run impossible (401, wrong model, not HTTP) is an error.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from loadchaos.dialects import DIALECTS, Dialect, version_key
from loadchaos.dialects.detect import PATHS, Page, detect
from loadchaos.errors import OptionError, TargetError
from loadchaos.model import Facts, TextFacts

# Short common words: most tokenizers have each, with its leading blank, as one token. What they really cost is measured.
_WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with", "his", "they", "at",
    "be", "this", "from", "have", "or", "by", "one", "time", "day", "man", "new", "old", "good", "year", "work",
    "life", "hand", "part", "place", "case", "group", "number", "world", "house", "water", "night", "city", "light",
    "music", "paper", "river", "stone", "table", "image", "picture", "server", "request", "answer", "question",
    "color", "hello",
)  # fmt: skip
_UNITS = ("a", "x", ".", "!", "1")
_QUICK_WORDS = 3
_QUICK_GENERATIONS = 3
_REPEAT = 8
_READ_LIMIT_S = 10.0
_FIRST_GENERATION_LIMIT_S = 120.0  # a first request may compile for 15 s, on a loaded machine for longer


def parse_target(text: str) -> str:
    """The base URL without a trailing `/v1`, path prefix kept. Raises OptionError for what is no http(s) URL."""
    clean = text.strip()
    if not clean:
        raise OptionError("--target is empty: give the server's URL, e.g. http://127.0.0.1:8000")
    if "://" not in clean:
        clean = f"http://{clean}"
    parts = urlsplit(clean)
    try:
        port = parts.port
    except ValueError as e:
        raise OptionError(f"--target {text!r}: {e}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionError(f"--target {text!r}: a URL such as http://127.0.0.1:8000 was expected")
    if parts.username or parts.password:
        raise OptionError(
            "--target holds a user or password; give secrets through --api-key-env or --header NAME=env:VAR"
        )
    path = parts.path.rstrip("/")
    path = path.removesuffix("/v1")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return urlunsplit((parts.scheme, host if port is None else f"{host}:{port}", path, "", ""))


@dataclass(frozen=True)
class Answer:
    """One answer of the server, or why there was none (`status` 0, `text` the reason)."""

    status: int
    headers: Mapping[str, str]
    text: str

    def json(self) -> Any:
        """The body as JSON, None when it is not."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


@dataclass
class Asker:
    """Asks the server one thing at a time; a failed connection is an Answer with status 0.

    `reads` and `generations` count what was asked so far, `pages` keeps the last answer to each GET by its path;
    `failed` says how the last generation went wrong that got no answer, or that of a broken server.
    """

    client: httpx.AsyncClient
    base_url: str
    admin_url: str
    generations: int = 0
    reads: int = 0
    pages: dict[str, Answer] = field(default_factory=dict)
    failed: str | None = None

    async def ask(
        self, method: str, path: str, body: Any = None, *, admin: bool = False, limit_s: float = _READ_LIMIT_S
    ) -> Answer:
        """Send one request and read the whole answer."""
        self.reads += 1
        answer = await self._send(method, (self.admin_url if admin else self.base_url) + path, body, limit_s)
        if method == "GET":
            self.pages[path] = answer
        return answer

    async def _send(self, method: str, url: str, body: Any, limit_s: float) -> Answer:
        try:
            response = await self.client.request(method, url, json=body, timeout=limit_s)
            text = response.text
        except httpx.TimeoutException:
            return Answer(0, {}, f"no answer within {limit_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as e:
            return Answer(0, {}, f"{type(e).__name__}: {e}" if str(e) else type(e).__name__)
        return Answer(response.status_code, {k.lower(): v for k, v in response.headers.items()}, text)

    async def generate(self, model: str, content: Any) -> Answer:
        """A one-token chat completion, counted in `generations`."""
        self.generations += 1
        self.reads -= 1  # counted by themselves
        body = {
            "model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0,
        }  # fmt: skip
        answer = await self.ask("POST", "/v1/chat/completions", body, limit_s=_FIRST_GENERATION_LIMIT_S)
        if answer.status == 0 or answer.status >= 500:
            self.failed = f"{answer.status}: {answer.text[:160]}" if answer.status else answer.text[:160]
        return answer


@dataclass(frozen=True)
class Wanted:
    """What the profile will send, so that only that is measured.

    `quick` is a look without a load to come: three words in place of sixty, and at most three generations.
    """

    image_sizes: Sequence[tuple[int, int]] = ()
    images_per_request: int = 0
    dialect: str = "auto"
    model: str | None = None
    api_key_env: str | None = None
    needs_development: bool = False
    quick: bool = False


async def look(asker: Asker, wanted: Wanted) -> Facts:
    """Reads only: dialect, version, model, limits, development endpoints. Raises TargetError where a run is impossible."""
    paths = tuple(path for path in PATHS if path != "/v1/models")
    answers = await asyncio.gather(
        asker.ask("GET", "/v1/models"), *(asker.ask("GET", path, admin=True) for path in paths)
    )
    pages = dict(zip(("/v1/models", *paths), answers, strict=True))
    models = pages["/v1/models"]
    _refuse_impossible(asker, models, wanted)
    found = detect({path: Page(a.status, a.headers, a.text.encode()) for path, a in pages.items() if a.status})
    name = found.dialect.name if wanted.dialect == "auto" else wanted.dialect
    model, entry = _choose_model(models, wanted.model)
    sources = {"dialect": "; ".join(found.signs) if wanted.dialect == "auto" else "the profile"}
    version = found.version or _era_in_words(found.at_least, found.below)
    sources["version"] = "/version" if found.version else "its paths"
    facts = Facts(
        base_url=asker.base_url, admin_url=asker.admin_url, dialect=name, model=model, version=version,
        metrics=pages["/metrics"].status == 200, sources=sources,
    )  # fmt: skip
    return await _development(asker, DIALECTS[name], _limits(facts, entry, pages))


def _era_in_words(at_least: str | None, below: str | None) -> str | None:
    """A server that tells its version nowhere: what its paths allow, beginning with a number, as `Dialect.at` reads it."""
    if below is None:
        return f"{at_least} or later" if at_least else None
    major, minor = (int(n) for n in below.split(".")[:2])
    last = f"{major}.{minor - 1}"
    return f"{at_least} to {last}" if at_least else f"{last} or earlier"


def _refuse_impossible(asker: Asker, models: Answer, wanted: Wanted) -> None:
    where = asker.base_url
    if models.status == 0:
        raise TargetError(f"{where}: {_why_unreachable(models.text)}")
    if models.status in (401, 403):
        variable = wanted.api_key_env or "OPENAI_API_KEY"
        state = "its key was refused" if wanted.api_key_env else "no key was given"
        raise TargetError(
            f"{where} answered {models.status}: {state}. Set the key in a variable and name it: "
            f"export {variable}=... and --api-key-env {variable}"
        )
    if models.status != 200 or not isinstance(models.json(), dict):
        raise TargetError(
            f"{where}/v1/models answered {models.status} {models.text[:120]!r}: this is no OpenAI-compatible server "
            "(a path prefix belongs into --target)"
        )


def _why_unreachable(text: str) -> str:
    if "ConnectError" in text and ("refused" in text.lower() or "All connection attempts failed" in text):
        return "connection refused: nothing listens there"
    if "RemoteProtocolError" in text or "InvalidHTTP" in text:
        return f"something listens there, but it does not speak HTTP ({text})"
    return text


def _choose_model(models: Answer, wanted: str | None) -> tuple[str, Mapping[str, Any]]:
    entries = [m for m in (models.json().get("data") or []) if isinstance(m, dict) and "id" in m]
    names = [str(m["id"]) for m in entries]
    if wanted is not None:
        if wanted not in names:
            raise TargetError(f"the server does not serve the model {wanted!r}; it has: {', '.join(names) or 'none'}")
        return wanted, entries[names.index(wanted)]
    if not names:
        raise TargetError("the server lists no model at /v1/models; name one with --model")
    return names[0], entries[0]


def _limits(facts: Facts, entry: Mapping[str, Any], pages: Mapping[str, Answer]) -> Facts:
    sources = dict(facts.sources)
    values: dict[str, Any] = {}
    if isinstance(entry.get("max_model_len"), int):
        values["max_model_len"] = entry["max_model_len"]
        sources["max_model_len"] = "/v1/models"
    values.update(_vllm_capacity(pages["/metrics"].text, sources))
    values.update(_lmdeploy_capacity(pages["/distserve/engine_info"], facts.version, sources))
    # Only vLLM's page tells: it has the counters where it drafts; LMDeploy has them always.
    if facts.dialect == "vllm" and pages["/metrics"].status == 200:
        drafts = re.search(r"^vllm:spec_decode_num_drafts(?:_total)?\{", pages["/metrics"].text, re.MULTILINE)
        values["speculative_decoding"] = drafts is not None
        sources["speculative_decoding"] = f"/metrics has {'its counters' if drafts else 'no counters of it'}"
    return replace(facts, **values, sources=sources)


def _vllm_capacity(metrics: str, sources: dict[str, str]) -> dict[str, int]:
    """vllm:cache_config_info carries block_size and num_gpu_blocks as labels (facts of every V1 version)."""
    line = re.search(r"^vllm:cache_config_info\{(.*)\}", metrics, re.MULTILINE)
    if line is None:
        return {}
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line[1]))
    try:
        blocks, block_size = int(labels["num_gpu_blocks"]), int(labels["block_size"])
    except (KeyError, ValueError):
        return {}
    sources["capacity_tokens"] = "vllm:cache_config_info"
    return {"kv_blocks": blocks, "kv_block_size": block_size, "capacity_tokens": blocks * block_size}


def _lmdeploy_capacity(page: Answer, version: str | None, sources: dict[str, str]) -> dict[str, int]:
    """/distserve/engine_info is a JSON text inside a JSON text."""
    info = page.json() if page.status == 200 else None
    if isinstance(info, str):
        try:
            info = json.loads(info)
        except ValueError:
            return {}
    if not isinstance(info, dict) or not info.get("num_gpu_blocks") or not info.get("block_size"):
        return {}
    limits = _lmdeploy_limits(int(info["num_gpu_blocks"]), int(info["block_size"]), version)
    sources.update(dict.fromkeys(limits, "/distserve/engine_info"))
    return limits


def _lmdeploy_limits(blocks: int, block_size: int, version: str | None) -> dict[str, int]:
    """The longest prompt by version: `_get_max_session_len` of lmdeploy/pytorch/engine/engine.py.

    All blocks up to 0.9.1, all but one in 0.9.2 to 0.11, all but two (one is reserved) since 0.12; the context may be
    shorter, which LMDeploy tells nowhere.
    """
    capacity = {"kv_blocks": blocks, "kv_block_size": block_size, "capacity_tokens": blocks * block_size}
    key = version_key(version) or (99,)
    if version is not None and version.endswith("earlier") and key > (0, 9):
        return capacity  # the formula changed in between: which one holds is not known
    kept = 0 if key < (0, 9, 2) else 1 if key < (0, 12) else 2
    return {**capacity, "input_limit": (blocks - kept) * block_size}


_BLOCKS_IN_LOG = re.compile(r"num_gpu_blocks=(\d+)|\bblock num: (\d+)|Initialize cache engine with (\d+) gpu blocks")
_BLOCK_SIZE_IN_LOG = re.compile(r"\bblock_size=(\d+)")


def with_log(facts: Facts, log: str) -> Facts:
    """What the head of the server's log tells and its endpoints do not: LMDeploy's KV capacity (--log-level INFO)."""
    if facts.dialect != "lmdeploy" or facts.kv_blocks is not None:
        return facts
    blocks, size = _BLOCKS_IN_LOG.search(log), _BLOCK_SIZE_IN_LOG.search(log)
    if blocks is None or size is None:
        return facts
    n = int(next(group for group in blocks.groups() if group))
    limits: dict[str, Any] = _lmdeploy_limits(n, int(size[1]), facts.version)
    return replace(facts, **limits, sources={**facts.sources, **dict.fromkeys(limits, "the server's log")})


async def _development(asker: Asker, dialect: Dialect, facts: Facts) -> Facts:
    """Whether the admin endpoints are there: GET on a POST route is 405 where it exists and 404 where it does not."""
    if dialect.development_path is None:
        return facts
    answer = asker.pages.get(dialect.development_path)
    if answer is None:
        answer = await asker.ask("GET", dialect.development_path, admin=True)
    there = answer.status in (200, 405) if answer.status in (200, 404, 405) else None
    sources = {**facts.sources, "development_endpoints": f"GET {dialect.development_path} answered {answer.status}"}
    return replace(facts, development_endpoints=there, sources=sources)


async def calibrate(asker: Asker, facts: Facts, wanted: Wanted) -> Facts:
    """How text and images become tokens here. Needs a healthy server; generates at most a few single tokens."""
    text = await _text_facts(asker, facts, _WORDS[:_QUICK_WORDS] if wanted.quick else _WORDS)
    facts = replace(facts, text=text, sources={**facts.sources, "text": text.source if text else "not learned"})
    if not (wanted.quick and text is not None and text.source == "usage"):  # what generations told needs no other
        facts = await _check_text(asker, facts)
    if wanted.images_per_request:
        facts = await _image_facts(asker, facts, wanted)
    return facts


# --- text -----------------------------------------------------------------------------------------------------------


async def _text_facts(asker: Asker, facts: Facts, words: Sequence[str]) -> TextFacts | None:
    dialect = DIALECTS[facts.dialect]
    counters: list[_CountByTokenize | _CountByEncode] = [_CountByTokenize(asker, facts.model), _CountByEncode(asker)]
    if dialect.name == "lmdeploy":
        counters.reverse()
    for counter in counters:
        if await counter.plain(" the") is None:
            continue
        found = await _measure_words(counter, words)
        if found is not None:
            return found
    return await _measure_by_usage(asker, facts.model)


class _CountByTokenize:
    """vLLM's POST /tokenize, with a prompt or with messages (template included)."""

    source = "tokenize"

    def __init__(self, asker: Asker, model: str) -> None:
        self._asker, self._model = asker, model

    async def plain(self, text: str) -> int | None:
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return _count(await self._asker.ask("POST", "/tokenize", body, admin=True))

    async def chat(self, text: str) -> int | None:
        body = {"model": self._model, "messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        return _count(await self._asker.ask("POST", "/tokenize", body, admin=True))

    async def completion(self, text: str) -> int | None:
        body = {"model": self._model, "prompt": text}
        return _count(await self._asker.ask("POST", "/tokenize", body, admin=True))


class _CountByEncode:
    """LMDeploy's POST /v1/encode; `do_preprocess` applies the chat template."""

    source = "encode"

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def plain(self, text: str) -> int | None:
        return await self._encode(text, preprocess=False, bos=False)

    async def chat(self, text: str) -> int | None:
        return await self._encode(text, preprocess=True, bos=True)

    async def completion(self, text: str) -> int | None:
        return await self._encode(text, preprocess=False, bos=True)

    async def _encode(self, text: str, *, preprocess: bool, bos: bool) -> int | None:
        body = {"input": text, "do_preprocess": preprocess, "add_bos": bos}
        return _count(await self._asker.ask("POST", "/v1/encode", body))


def _count(answer: Answer) -> int | None:
    data = answer.json() if answer.status == 200 else None
    if not isinstance(data, dict):
        return None
    value = data.get("count", data.get("length"))
    return value if isinstance(value, int) else None


async def _measure_words(counter: _CountByTokenize | _CountByEncode, asked: Sequence[str]) -> TextFacts | None:
    async def cost(word: str) -> int | None:
        total = await counter.plain(word * _REPEAT)
        return total // _REPEAT if total and total % _REPEAT == 0 else None

    costs = await asyncio.gather(*(cost(f" {w}") for w in asked))
    words = [(f" {w}", c) for w, c in zip(asked, costs, strict=True) if c]
    cheapest = min((c for _, c in words), default=0)
    words = [(w, c) for w, c in words if c <= cheapest + 8]
    units = [w for w, c in words if c == 1]
    for unit in _UNITS if words and not units else ():
        if await cost(unit) == 1:
            units.append(unit)
            break
    if not words or not units:
        return None
    text, expected = _sample(words, units[0], seed=1)
    chat, completion = await counter.chat(text), await counter.completion(text)
    if chat is None:
        return None
    return TextFacts(
        overhead=chat - expected, words=tuple(words), unit=units[0], source=counter.source,
        completions_overhead=(completion or expected) - expected,
    )  # fmt: skip


async def _measure_by_usage(asker: Asker, model: str) -> TextFacts | None:
    """No tokenizer endpoint: three one-token generations tell the template's overhead and the cost of one word."""

    async def used(text: str) -> int | None:
        data = (await asker.generate(model, text)).json()
        usage = data.get("usage") if isinstance(data, dict) else None
        value = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return value if isinstance(value, int) else None

    words = [f" {w}" for w in _WORDS[:24]]
    few, many = await used("".join(words)), await used("".join(words * 3))
    if few is None or many is None or (many - few) % (2 * len(words)):
        return None
    cost = (many - few) // (2 * len(words))
    if cost < 1 or few < cost * len(words):
        return None  # a usage that does not grow with the prompt counts something else
    # Costs are equal on average only; a single odd word would show in the check that follows.
    unit = words[0] if cost == 1 else "a"
    return TextFacts(overhead=few - cost * len(words), words=tuple((w, cost) for w in words), unit=unit, source="usage")


def _sample(words: Sequence[tuple[str, int]], unit: str, seed: int, length: int = 40) -> tuple[str, int]:
    rng = random.Random(seed)
    chosen = [rng.choice(words) for _ in range(length)]
    return "".join(w for w, _ in chosen) + unit * 3, sum(c for _, c in chosen) + 3


async def _check_text(asker: Asker, facts: Facts) -> Facts:
    """One real request: does usage agree with the count? A constant difference is the template's, and is put right."""
    text = facts.text
    if text is None:
        return facts
    sample, expected = _sample(text.words, text.unit, seed=2)
    answer = await asker.generate(facts.model, sample)
    data = answer.json()
    if answer.status != 200 or not isinstance(data, dict):
        raise TargetError(
            f"the server is up, but its first request failed: {answer.status or 'no answer'} {answer.text[:300]}"
        )
    used = (data.get("usage") or {}).get("prompt_tokens")
    if not isinstance(used, int) or used == expected + text.overhead:
        return facts
    if used < expected:
        return replace(facts, text=None, sources={**facts.sources, "text": "usage contradicts the tokenizer"})
    fixed = replace(text, overhead=used - expected, source=f"{text.source}, put right by usage")
    return replace(facts, text=fixed)


# --- images ---------------------------------------------------------------------------------------------------------


def plain_png(width: int, height: int) -> str:
    """A data URL of a one-colour PNG: what an image of that size costs does not depend on what it shows."""
    from PIL import Image  # only where images are measured

    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (90, 140, 200)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _image_content(text: str, urls: Sequence[str]) -> list[dict[str, Any]]:
    images: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*images, {"type": "text", "text": text}]


async def _image_facts(asker: Asker, facts: Facts, wanted: Wanted) -> Facts:
    """Whether images are taken, how many a request may have, and what one of each size costs in prompt tokens."""
    sources = dict(facts.sources)
    tokens: dict[str, int] = {}
    if facts.text is None:
        return facts
    sample, expected = _sample(facts.text.words, facts.text.unit, seed=3, length=8)
    for width, height in dict.fromkeys(wanted.image_sizes):
        answer = await asker.generate(facts.model, _image_content(sample, [plain_png(width, height)]))
        data = answer.json()
        if answer.status == 200 and isinstance(data, dict):
            used = (data.get("usage") or {}).get("prompt_tokens")
            if isinstance(used, int):
                tokens[f"{width}x{height}"] = used - expected - facts.text.overhead
                sources["image_tokens"] = "usage"
            continue
        if answer.status in (400, 415, 422, 501) and not tokens:
            said = f"refused with {answer.status}: {answer.text[:160]}"
            if "context length" in answer.text or "max_model_len" in answer.text:
                sources["image_tokens"] = said  # too large for the context, which says nothing against images
                continue
            return replace(facts, images=False, sources={**sources, "images": said})
    if not tokens:
        return replace(facts, sources=sources)
    # LMDeploy's text-only models drop images silently in some eras: an image that costs nothing was not looked at.
    if all(cost <= 0 for cost in tokens.values()):
        sources["images"] = "an image adds no prompt token: the server drops it"
        return replace(facts, images=False, sources=sources)
    facts = replace(facts, images=True, image_tokens=tokens, sources={**sources, "images": "a request with one"})
    if wanted.images_per_request > 1 and not (wanted.quick and asker.generations >= _QUICK_GENERATIONS):
        facts = await _max_images(asker, facts, wanted, sample)
    return facts


async def _max_images(asker: Asker, facts: Facts, wanted: Wanted, sample: str) -> Facts:
    """The limit of images a prompt, taken from the refusal's own words; the images asked with are small."""
    urls = [plain_png(32, 32)] * wanted.images_per_request
    answer = await asker.generate(facts.model, _image_content(sample, urls))
    if answer.status == 200:
        return replace(facts, sources={**facts.sources, "max_images": f"a request with {len(urls)} was answered"})
    limit = re.search(r"[Aa]t most (\d+) image", answer.text)
    if limit is None:
        return facts
    sources = {**facts.sources, "max_images": "the server's refusal of more"}
    return replace(facts, max_images=int(limit[1]), sources=sources)
