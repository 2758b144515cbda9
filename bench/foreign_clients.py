"""Ask load tools about answers that are spoiled: what each says itself, and what `loadchaos watch` says beside it.

    python -m bench.foreign_clients [--tool NAME ...] [--fault NAME ...] [--healthy N] [--direct] [--keep FILE] [--write]

Each tool sends some 24 chat requests to the embedded server behind bench/foreign_server.py. A tool that is not installed in
~/.cache/loadchaos/clients (LOADCHAOS_CLIENTS) is left out; docs/measured/foreign-clients.md says how to install them.
`--healthy N` makes N runs without a fault for each tool and prints every alarm. `--direct` runs the tools without watch.
Results are added to FILE, and the tables of all that it has are printed. `--write` puts them into
docs/measured/foreign-clients.md; `--add FILE` takes the results of another FILE, too.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from bench.cost.tools import TOKENIZER
from bench.foreign_server import FAULTS, Gateway, served
from bench.record import free_port, wait_for
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.campaigns.recorder.reported.find import find_result_file

PAGE = Path(__file__).parent.parent / "docs/measured/foreign-clients.md"
CACHE = Path.home() / ".cache/loadchaos"
CLIENTS = Path(os.environ.get("LOADCHAOS_CLIENTS", CACHE / "clients"))
REQUESTS, USERS, PROMPT, OUTPUT = 24, 4, 48, 24
_LONGEST_S = 600
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "NO_COLOR": "1", "VLLM_NO_USAGE_STATS": "1"}
_ENVIRONMENT |= {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}
DEATH = "death"
DEATH_TITLE = "the engine dies behind a gateway, which asks another one"

_WORDS = "left the harbour on a bright morning and reached the other side of the lake before the rain"
"""Behind them, the prompts of k6 have an id: the embedded server repeats it."""

_LOCUSTFILE = f"""
import os
from locust import HttpUser, task

class Chat(HttpUser):
    host = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")

    @task
    def ask(self):
        messages = [{{"role": "user", "content": "Say some words."}}]
        body = {{"model": "sim", "stream": True, "max_tokens": {OUTPUT}, "messages": messages}}
        self.client.post("/v1/chat/completions", json=body)
"""
_K6_SCRIPT = f"""
import http from 'k6/http';
export const options = {{ vus: {USERS}, iterations: Number(__ENV.REQUESTS) }};
export default function () {{
  const order = `q7${{__VU}}x3k${{__ITER}}m9z5w`;
  const messages = [{{ role: 'user', content: `Repeat these words: order ${{order}} {_WORDS}` }}];
  const body = JSON.stringify({{ model: 'sim', stream: true, max_tokens: {OUTPUT}, messages }});
  http.post(`${{__ENV.OPENAI_BASE_URL}}/chat/completions`, body, {{ headers: {{ 'Content-Type': 'application/json' }} }});
}}
"""


@dataclass(frozen=True)
class Tool:
    """A load tool: its program, the words after it, and the files that it needs. `{url}` in words is the server's URL."""

    program: Path
    words: Sequence[str]
    files: Mapping[str, str]
    environment: Mapping[str, str]


def _vllm(program: Path, requests: int) -> Tool:
    words = "bench serve --backend openai-chat --endpoint /v1/chat/completions --base-url {url} --model sim"
    words += f" --dataset-name random --random-input-len {PROMPT} --random-output-len {OUTPUT} --num-prompts {requests}"
    words += (
        f" --max-concurrency {USERS} --disable-tqdm --save-result --result-dir . --percentile-metrics ttft,tpot,e2el"
    )
    return Tool(program, [*words.split(), "--tokenizer", str(TOKENIZER)], {}, _ENVIRONMENT)


def _guidellm(program: Path, requests: int) -> Tool:
    words = f"run --backend kind=openai_http,target={{url}},model=sim --profile kind=concurrent,streams={USERS}"
    words += f" --constraint kind=max_requests,count={requests} --disable-console --output kind=json,path=guidellm.json"
    words += f" --data kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}"
    return Tool(program, [*words.split(), "--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"], {}, _ENVIRONMENT)


def _aiperf(program: Path, requests: int) -> Tool:
    words = f"profile --model sim --url {{url}} --endpoint-type chat --streaming --tokenizer {TOKENIZER} --ui-type none"
    words += f" --concurrency {USERS} --request-count {requests} --isl {PROMPT} --osl {OUTPUT} --use-server-token-count"
    # AIPerf takes a folder for a name of the hub when it is told to be offline.
    return Tool(program, words.split(), {}, {"NO_COLOR": "1"})


def _inference_perf(program: Path, requests: int) -> Tool:
    prefix = (
        f"{{num_groups: 2, num_prompts_per_group: 12, system_prompt_len: 16, question_len: 32, output_len: {OUTPUT}}}"
    )
    config = f"""
api: {{type: chat, streaming: true}}
data: {{type: shared_prefix, shared_prefix: {prefix}}}
load: {{type: constant, num_workers: 1, stages: [{{rate: {requests // 2}, duration: 2}}]}}
server: {{type: vllm, model_name: sim, base_url: "URL", ignore_eos: true}}
tokenizer: {{pretrained_model_name_or_path: {TOKENIZER}}}
storage: {{local_storage: {{path: reports}}}}
"""
    words = ["--config_file", "config.yml", "--server.base_url", "{url}"]
    return Tool(program, words, {"config.yml": config.replace("URL", "http://127.0.0.1:1")}, _ENVIRONMENT)


def _locust(program: Path, _: int) -> Tool:
    words = f"-f locustfile.py --headless -u {USERS} -r {USERS} -t 6s --csv out --json-file out".split()
    return Tool(program, words, {"locustfile.py": _LOCUSTFILE}, {})


def _k6(program: Path, requests: int) -> Tool:
    words = ["run", "--quiet", "--summary-export", "summary.json", "chat.js"]
    return Tool(program, words, {"chat.js": _K6_SCRIPT}, {"NO_COLOR": "1", "REQUESTS": str(requests)})


TOOLS: Mapping[str, tuple[Path, Callable[[Path, int], Tool]]] = {
    "vllm bench serve 0.32.0": (CACHE / "vllm-0.32.0/bin/vllm", _vllm),
    "vllm-rs bench serve 0.33.0": (CLIENTS / "vllm-rs-0.33.0/bin/vllm-rs", _vllm),
    "GuideLLM 0.8.1": (CLIENTS / "guidellm-0.8.1/bin/guidellm", _guidellm),
    "AIPerf 0.13.0": (CLIENTS / "aiperf-0.13.0/bin/aiperf", _aiperf),
    "inference-perf 0.7.0": (CLIENTS / "inference-perf-0.7.0/bin/inference-perf", _inference_perf),
    "Locust 2.47.0": (CLIENTS / "locust-2.47.0/bin/locust", _locust),
    "k6 1.1.0": (CLIENTS / "k6-1.1.0/bin/k6", _k6),
}


@dataclass(frozen=True)
class Said:
    """What a tool said of one run, and watch beside it. `spoiled` of `posts` answers were spoiled; None in runs of which
    only the cell of the page is left.
    """

    tool: str
    fault: str
    posts: int | None
    spoiled: int | None
    exit_code: int
    sent: int | None = None
    ok: int | None = None
    failed: int | None = None
    verdict: str = ""
    told: str = ""
    sentence: str = ""


@dataclass(frozen=True)
class Engine:
    """An embedded server with its log."""

    port: int
    process: psutil.Process
    log: Path

    def kill(self) -> None:
        """Kill the engine core, a child of the API server."""
        for child in self.process.children(recursive=True):
            child.kill()


@contextlib.contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    port = free_port()
    log = folder / f"server-{port}.log"
    with log.open("wb") as out:
        argv = [sys.executable, "-m", "loadchaos", "sim", "--port", str(port)]
        process = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        yield Engine(port, wait_for(port, process)[0], log)
    finally:
        process.terminate()
        process.wait(30)


def run(name: str, fault: str, first: Engine, second: Engine | None, requests: int, *, direct: bool) -> Said:
    """Run a tool once against the gateway, alone or as the command of `loadchaos watch`."""
    path, make = TOOLS[name]
    tool = make(path, requests)
    gateway = Gateway(("127.0.0.1", first.port), FAULTS.get(fault))
    if second is not None:
        gateway.second, gateway.kill = ("127.0.0.1", second.port), first.kill
    with tempfile.TemporaryDirectory(prefix="foreign-") as place, served(gateway) as port:
        folder, url = Path(place), f"http://127.0.0.1:{port}"
        for file, text in tool.files.items():
            (folder / file).write_text(text)
        command = [str(tool.program), *tool.words]
        out = folder / "loadchaos-watch"
        if direct:
            command = [word.replace("{url}", url) for word in command]
        else:
            command = [*_watch(url, first.log, out), "--", *command]
        environment = {**os.environ, **tool.environment, "OPENAI_BASE_URL": f"{url}/v1"}
        since_ns = time.time_ns()
        with (folder / "output.txt").open("wb") as output:
            code = subprocess.run(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                timeout=_LONGEST_S, check=False,
            ).returncode  # fmt: skip
        found = find_result_file(folder, command, since_ns)
        said = Said(name, fault, gateway.posts, gateway.spoiled, code)
        if found is None or not found.tool:
            sys.stderr.write((folder / "output.txt").read_text(errors="replace")[-2000:])
            return said
        said = replace(said, sent=found.requests_sent, ok=found.requests_ok, failed=found.requests_failed)
        return said if direct else _with_watch(said, next(out.iterdir()))


def _watch(url: str, log: Path, out: Path) -> list[str]:
    argv = [sys.executable, "-m", "loadchaos", "watch", "--target", url, "--server-log", str(log), "--out", str(out)]
    return [*argv, "--no-live", "--exporter-port", "0"]


def _with_watch(said: Said, run: Path) -> Said:
    verdict = Verdict.from_json(json.loads((run / "verdict.json").read_text()))
    failures = [f"{failure.id} ({failure.count})" for failure in verdict.failures]
    sentence = verdict.reported.sentence if verdict.reported is not None else ""
    return replace(said, verdict=verdict.verdict, told=", ".join(failures), sentence=sentence)


def table(results: Sequence[Said]) -> str:
    """Markdown: a row for each fault, a column for each tool with the answers that it calls ok, and what watch said."""
    tools = [name for name in TOOLS if any(r.tool == name and r.fault for r in results)]
    by = {(r.fault, r.tool): r for r in results}
    titles = {**{name: fault.title for name, fault in FAULTS.items()}, DEATH: DEATH_TITLE}
    lines = [f"| fault | {' | '.join(tools)} | loadchaos watch |", "|---" * (len(tools) + 2) + "|"]
    for fault, title in titles.items():
        found = [by.get((fault, tool)) for tool in tools]
        told = Counter(_told(said) for said in found if said is not None and said.verdict)
        watch = "; ".join(f"{text} ({n} of {told.total()})" for text, n in told.most_common())
        if any(found):
            lines.append(f"| {title} | {' | '.join(map(_cell, found))} | {watch} |")
    return "\n".join(lines)


def healthy_table(results: Sequence[Said]) -> str:
    """Markdown: the verdicts about the runs of each tool without a fault."""
    lines = ["| tool | runs | requests a run | verdicts |", "|---|---|---|---|"]
    for tool in TOOLS:
        runs = [r for r in results if r.tool == tool and not r.fault]
        told = ", ".join(f"{text} {n}" for text, n in Counter(map(_told, runs)).most_common())
        posts = sorted({r.posts for r in runs if r.posts is not None})
        lines.append(f"| {tool} | {len(runs)} | {' to '.join(map(str, posts[:1] + posts[1:][-1:])) or '–'} | {told} |")
    return "\n".join(lines)


def _cell(said: Said | None) -> str:
    if said is None:
        return ""
    return f"no result, exit code {said.exit_code}" if said.sent is None else f"{said.ok} of {said.sent} ok"


def _told(said: Said) -> str:
    names = [f"`{name.partition(' ')[0]}`" for name in said.told.split(", ") if name]
    return f"{said.verdict}: {', '.join(names)}" if names else said.verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", action="append", help="part of a tool's name")
    parser.add_argument("--fault", action="append", choices=[*FAULTS, DEATH])
    parser.add_argument("--healthy", type=int, default=0)
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--keep", type=Path, default=PAGE.with_suffix(".json"))
    parser.add_argument("--add", type=Path, action="append", default=[], help="only take the results of this file, too")
    parser.add_argument("--print", action="store_true", help="only print the tables of FILE")
    parser.add_argument("--write", action="store_true", help="write the tables to the page")
    args = parser.parse_args()
    names = [n for n, (path, _) in TOOLS.items() if path.exists() and any(t in n for t in args.tool or [""])]
    faults = [""] * args.healthy if args.healthy else args.fault or [*FAULTS, DEATH]
    kept = _read(args.keep)
    for file in args.add:
        for said in _read(file):
            kept = _with(kept, said)
    if not (args.print or args.add or args.write):
        with tempfile.TemporaryDirectory() as place, engine(Path(place)) as first:
            for fault, name in itertools.product(faults, names):
                with contextlib.ExitStack() as extra:
                    if fault == DEATH:
                        dying = extra.enter_context(engine(Path(place)))
                        said = run(name, fault, dying, first, args.requests, direct=args.direct)
                    else:
                        said = run(name, fault, first, None, args.requests, direct=args.direct)
                print(said, flush=True)
                kept = _with(kept, said)
                _save(args.keep, kept)
    _save(args.keep, kept)
    tables = {"faults": table(kept), "healthy runs": healthy_table(kept)}
    print("\n\n".join(tables.values()))
    if args.write:
        block = re.compile(r"(<!-- measured: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
        PAGE.write_text(block.sub(lambda b: f"{b[1]}{tables[b[2]]}\n{b[3]}", PAGE.read_text()))
    return 0


def _read(file: Path) -> list[Said]:
    return [Said(**row) for row in json.loads(file.read_text())] if file.exists() else []


def _save(file: Path, kept: Sequence[Said]) -> None:
    file.write_text("[\n" + ",\n".join(json.dumps(asdict(said)) for said in kept) + "\n]\n")


def _with(kept: Sequence[Said], said: Said) -> list[Said]:
    """Results with a new one: each fault of a tool has one, a run without a fault is one more."""
    return [r for r in kept if not said.fault or (r.tool, r.fault) != (said.tool, said.fault)] + [said]


if __name__ == "__main__":
    sys.exit(main())
