"""Write repro.py: at most 40 lines, standard library and httpx only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from loadchaos.campaigns.minimise import rewrite
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.core.urls import CHAT_PATH, MODELS_PATH
from loadchaos.load.endpoints import api_of_path
from loadchaos.profile.request_trace import RequestTrace
from loadchaos.server.dialects import DIALECTS, UNKNOWN

MOST_LINES = 40
_MOST_INLINE = 1000
"""Characters of a body that stands in the script."""
_LEAST_DELAY_S = 0.02
_ADDED = ("model", "messages")

_PNG = r"""
def png(width, height, seed):
    rows, head = (b"\0" + seed.to_bytes(3, "big") * width) * height, struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    data = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + data).decode()
"""
_CONTENT = """\
    parts = [{"type": "image_url", "image_url": {"url": png(*image)}} for image in r.get("images", ())]
    content = [*parts, {"type": "text", "text": "time " * r["words"]}] if parts else "time " * r["words"]
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], **r["body"]}
"""
_WORDS = """\
    body = {"model": MODEL, "messages": [{"role": "user", "content": "time " * r["words"]}], **r["body"]}
"""
_RAW = """\
    body = {**r["body"], "model": MODEL}
"""
WRONG = "WRONG ANSWER"
"""Begin of the line that a script prints for an answer that breaks its schema."""
CHECKS = {
    "schema_violated": "jsonschema.validate(json.loads(text), schema)",
    "schema_control_character": "json.loads(text)",
}
"""Wrong answers that a script can see, by id, and the Python that raises for one."""
_CHECK = """
def check(text, schema):
    try:
        {check}
    except Exception as e:
        BAD.append(print(f"{wrong} {{repr(e)[:150]}} {{repr(text)[:150]}}\\n", end=""))
"""
_CHOICES = """\
                for c in json.loads(line.removeprefix("data: ")).get("choices", ()) if "{" in line else ():
                    said = (c.get("delta") or c.get("message") or {}).get("content") or ""
                    texts[c["index"]] = texts.get(c["index"], "") + said
                    ends[c["index"]] = c.get("finish_reason") or ends.get(c["index"])
            form = body.get("response_format", {}).get("json_schema", {})
            [check(text, form.get("schema")) for j, text in texts.items() if form and ends[j] == "stop"]
"""
_ALIVE = """
def alive():
    try:
        return httpx.get(URL + "/health", timeout=30).status_code < 500
    except httpx.HTTPError:
        return False
"""

Spec = dict[str, Any]
"""A request as a script has it."""


@dataclass(frozen=True)
class ScriptFacts:
    """Text about the failure and the server for a script. `deadly`: the script exits with 1 when the server died, else
    when a request failed. `check`: it exits with 1 when an answer breaks its schema; Python of `CHECKS`.
    """

    failure: str
    url: str
    dialect: str = "vllm"
    deadly: bool = True
    check: str = ""


def specifications(trace: RequestTrace) -> list[Spec]:
    """Describe each request as the script has it. Bodies are as short as they allow."""
    position = {send.id: i for i, send in enumerate(trace.sends)}
    aborts = {a.request: a for a in trace.aborts}
    found = []
    for send in trace.sends:
        body: Spec = orjson.loads(trace.body_file(send).read_bytes())
        spec = _generated(body) or {"body": body}
        if send.path != CHAT_PATH:
            spec["path"] = send.path
        at_s = max((c.delay_s for c in send.after), default=send.at_s)
        if send.after:
            spec["after"] = [position[c.request] for c in send.after]
        if at_s >= _LEAST_DELAY_S:
            spec["at"] = round(at_s, 3)
        if (abort := aborts.get(send.id)) is not None:
            spec["abort"] = abort.after_token or 1
        found.append(spec)
    return found


def _whole_bodies(trace: RequestTrace) -> list[Spec]:
    found = []
    for send, spec in zip(trace.sends, specifications(trace), strict=True):
        rest = {k: v for k, v in spec.items() if k not in ("words", "images")}
        found.append({**rest, "body": orjson.loads(trace.body_file(send).read_bytes())})
    return found


def _generated(body: Spec) -> Spec | None:
    """Describe a body by words and images; None where that is not enough."""
    messages = body.get("messages")
    if not isinstance(messages, list) or len(messages) != 1 or messages[0].get("role") != "user":
        return None
    content = messages[0].get("content")
    images: list[list[int]] = []
    texts: list[str] = []
    for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
        if part.get("type") == "text" and isinstance(part.get("text"), str) and not texts:
            texts.append(part["text"])
        elif (url := rewrite.image_url(part)) is not None and not texts:
            seed, size = rewrite.generated_seed(url), rewrite.image_size(url)
            if seed is None or size is None:
                return None
            images.append([*size, seed])
        else:
            return None
    words = len(texts[0].split()) if texts else 0
    if not texts or texts[0].strip() != (rewrite.WORD * words).strip():
        return None
    rest = {k: v for k, v in body.items() if k not in _ADDED}
    return {"words": words, **({"images": images} if images else {}), "body": rest}


def write(candidate: Reduction, facts: ScriptFacts, folder: Path) -> Path:
    """Write repro.py, and requests.json where the requests do not fit into it. Returns the script."""
    attacks = _attacks(candidate.trace, facts.dialect)
    short = [*specifications(candidate.trace), *({"words": 0, **a} for a in attacks)]
    whole = [*_whole_bodies(candidate.trace), *attacks]
    forms = [(short, True), (short, False)] if all("words" in s for s in short) else []
    forms += [(whole, all(len(json.dumps(s)) < _MOST_INLINE for s in whole)), (whole, False)]
    specs, inline = next(f for f in forms if _lines(_script(f[0], candidate.rounds, facts, inline=f[1])) <= MOST_LINES)
    if not inline:
        (folder / "requests.json").write_text(json.dumps(specs, indent=1) + "\n")
    file = folder / "repro.py"
    file.write_text(_script(specs, candidate.rounds, facts, inline=inline))
    return file


def _lines(text: str) -> int:
    return text.count("\n")


def _attacks(trace: RequestTrace, dialect: str) -> list[Spec]:
    operations = DIALECTS.get(dialect, UNKNOWN).admin
    found = []
    for attack in trace.attacks:
        operation = operations.get(str(attack.attack.get("admin")))
        if operation is not None:
            found.append({"path": operation.path, "body": dict(operation.body or {}), "at": attack.at_s})
    return found


def _requests(specs: Sequence[Spec]) -> str:
    groups: list[tuple[str, int]] = []
    for text in (_python(dict(s)) for s in specs):
        if groups and groups[-1][0] == text:
            groups[-1] = (text, groups[-1][1] + 1)
        else:
            groups.append((text, 1))
    if len(groups) == 1:
        text, n = groups[0]
        return f"REQUESTS = [{text}]{'' if n == 1 else f' * {n}'}\n"
    rows = "".join(f"    {text},\n" if n == 1 else f"    *[{text}] * {n},\n" for text, n in groups)
    return f"REQUESTS = [\n{rows}]\n"


def _python(value: Any) -> str:
    text = repr(value)
    return text.replace("'", '"') if '"' not in text and "\\'" not in text else text


def _script(specs: Sequence[Spec], rounds: int, facts: ScriptFacts, *, inline: bool) -> str:
    api = api_of_path(specs[0].get("path", CHAT_PATH))
    images, waits = any("images" in s for s in specs), any("after" in s for s in specs)
    delays, aborts = any("at" in s for s in specs), any("abort" in s for s in specs)
    modules = ["os", "sys", "threading", *(["base64", "struct", "zlib"] if images else [])]
    modules += [] if inline else ["json", "pathlib"]
    modules += ["json"] if facts.check and inline else []
    modules += ["jsonschema"] if "jsonschema" in facts.check else []
    modules += ["time"] if delays or facts.deadly else []
    causes = ['[DONE[j].wait() for j in r.get("after", ())]'] if waits else []
    causes += ['time.sleep(r.get("at", 0))'] if delays else []
    read = 'REQUESTS = json.loads(pathlib.Path(__file__).with_name("requests.json").read_text())\n'
    body = _RAW if "words" not in specs[0] else _CONTENT if images else _WORDS
    said = "an answer broke its schema" if facts.check else "the server died" if facts.deadly else "a request failed"
    said_by = 'print(f"{i} {repr(e)[:200]}\\n", end="")'
    pieces = (
        f'"""{_safe(facts.failure)}: python repro.py [URL]; exits 1 when {said}."""\n',
        f"import {', '.join(sorted(modules))}, httpx\n",
        f'URL = sys.argv[1] if len(sys.argv) > 1 else "{facts.url}"\n',
        # One client: each thread's own would load certificates first, and a burst would come over seconds.
        "CLIENT = httpx.Client(timeout=600, limits=httpx.Limits(max_keepalive_connections=0))\n",
        "sys.excepthook = lambda *e: (sys.__excepthook__(*e), sys.stdout.flush(), os._exit(2))  # 1 is the failure\n",
        f'MODEL = CLIENT.get(URL + "{api.path(MODELS_PATH)}").json()["data"][0]["id"]\n',
        _requests(specs) if inline else read,
        _PNG if images else "",
        _CHECK.format(check=facts.check, wrong=WRONG) if facts.check else "",
        "\ndef send(i, r):\n",
        f"    {', '.join(causes)}\n" if causes else "",
        body,
        "    try:\n",
        "        texts, ends = {}, {}\n" if facts.check else "",
        f'        with CLIENT.stream("POST", URL + r.get("path", "{CHAT_PATH}"), json=body) as answer:\n',
        "            for n, line in enumerate(filter(None, answer.iter_lines()), 1):\n",
        '                if n == r.get("abort"):\n                    break\n' if aborts else "",
        "                if answer.status_code >= 400 or line.startswith('data: {\"error\"'):\n",
        "                    raise httpx.HTTPError(line)\n",
        _CHOICES if facts.check else "",
        '            print(f"{i} {answer.status_code}\\n", end="")\n',  # one write: threads print at the same time
        "    except httpx.HTTPError as e:\n",
        f"        {said_by if facts.check else f'BAD.append({said_by})'}\n",
        "    DONE[i].set()\n" if waits else "",
        _ALIVE if facts.deadly else "",
        f"\nfor number in range({rounds}):\n",
        "    BAD, DONE = [], [threading.Event() for _ in REQUESTS]\n" if waits else "    BAD = []\n",
        "    threads = [threading.Thread(target=send, args=pair) for pair in enumerate(REQUESTS)]\n",
        "    [t.start() for t in threads], [t.join() for t in threads]\n",
        "    if BAD and not all(time.sleep(0.5) or alive() for _ in range(6)):\n" if facts.deadly else "    if BAD:\n",
        f'        sys.exit(f"{said} in round {{number + 1}}")\n',
    )
    return "".join(pieces)


def _safe(text: str) -> str:
    return text.replace("\\", "/").replace('"', "'").replace("\n", " ")
