#!/usr/bin/env python
"""Run loadchaos against healthy real servers and print every false alarm.

    .venv/bin/python scripts/real/healthy_runs.py [--out DIR] [--seconds 50] [--only TEXT]
    .venv/bin/python scripts/real/healthy_runs.py --oracles [--results FILE] [--lanes 2] [--only TEXT] [--table]

12 runs on three vLLM servers (preemption in a small KV cache, long chunked prefills, images and the first requests of a new
process) and 8 on LMDeploy's HTTP layer. Each server is seen in three ways: launched by the run, by its process id, and
through a gateway that lets only /v1 through, so that only the answers to our requests carry the state. A false alarm is
any state but starting, healthy and degraded, any failure, and a verdict `fail`. The exit code is the number of runs with
one.

`--oracles` makes 24 other runs of 300 s, with the questions of the profile `corruption` beside the load: vLLM 0.32.0 and
0.22.1 with preemptions, drafts and images, and LMDeploy's HTTP layer. Each run becomes a line of FILE at once, and a run
that has a line is not made again. A run whose oracles all left their check unknown is unproven. `--table` prints the
lines of FILE and starts nothing.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

PROJECT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(PROJECT))

from ruamel.yaml import YAML

from bench.states.gateway import ApiGateway
from loadchaos.analysis.oracles import ORACLES
from tests.real import servers
from tests.real.conftest import running, typed

CALM = {"starting", "healthy", "degraded"}


def text(tokens, output, **more):
    return {"name": more.pop("name", "text"), "payload": {"text": {"tokens": tokens}}, "output": output, **more}


LOADS = {
    # More KV cache than there is: requests are preempted and computed again.
    "preemption": ([text("64..900", {"exact": 160})], [{"users": 24}]),
    "preemption, shared prefixes": (
        [{"name": "text", "payload": {"text": {"tokens": "300..900", "shared_prefix": {"tokens": 256, "groups": 3}}},
          "output": {"exact": 120}}],
        [{"users": 32}],
    ),
    "preemption, bursts": ([text("64..700", {"exact": 120})], [{"burst": 40, "repeat": 3, "every": "15s"}]),
    "prompts near the context limit": (
        [text("12000..15800", {"max": 64}, name="long"), text("32..256", {"max": 64}, weight=3)], [{"users": 8}],
    ),
    "only prompts near the context limit": ([text("14000..15800", {"max": 32})], [{"users": 6}]),
    "a long prompt beside streams": (
        [text("15000..15800", {"max": 8}, name="long"), text("32..128", {"exact": 400}, weight=2)], [{"rate": "0.6/s"}],
    ),
    "images": (
        [{"name": "images", "payload": {"images": {"count": 2, "size": "448x448"}, "text": {"tokens": "32..128"}},
          "output": {"max": 32}}, text("32..512", {"max": 64})],
        [{"users": 6}],
    ),
    "images, all new, large": (
        [{"name": "images", "payload": {"images": {"count": 2, "size": "1024x1024", "unique": "100%"},
                                        "text": {"tokens": 64}}, "output": {"max": 64}}],
        [{"users": 6}],
    ),
    # Without a temperature: vLLM 0.32.0 on the CPU dies of it (cpu_generator_offset).
    "schemas and log probabilities": (
        [{"name": "schema", "payload": {"structured": {"json_schema": "deep", "variants": 40}, "text": {"tokens": 256}},
          "output": {"max": 96}},
         {"name": "logprobs", "payload": {"sampling": {"logprobs": 5}, "text": {"tokens": "32..900"}},
          "output": {"max": 96}}],
        [{"users": 8}],
    ),
    "text": ([text("32..2000", {"exact": 64})], [{"users": 12}]),
    "one user": ([text("2000..3500", {"exact": 200})], [{"users": 1}]),
    "clients that leave": (
        [text("32..1500", {"exact": 128}, behaviour={"abort": {"share": "30%", "at_token": "1..40"}})], [{"users": 16}],
    ),
    "bursts": ([text("32..3000", {"exact": 64})], [{"burst": 40, "repeat": 3, "every": "15s"}]),
}  # fmt: skip


def small_kv():
    flags = (
        "--num-gpu-blocks-override",
        "36",
        "--max-num-batched-tokens",
        "2048",
        "--limit-mm-per-prompt",
        '{"image":0,"video":0}',
    )
    return servers.vllm("0.32.0", *flags, env={})


def long_context():
    flags = (
        "--max-num-batched-tokens",
        "1024",
        "--limit-mm-per-prompt",
        '{"image":0,"video":0}',
        "--no-enable-prefix-caching",
    )
    return servers.vllm("0.32.0", *flags, env={}, length=16384)


def lmdeploy():
    return servers.lmdeploy_018("--blocks", "400", "--vlm", "--max-batch-size", "8")


def slow_lmdeploy():
    return servers.lmdeploy_018("--blocks", "160", "--max-batch-size", "4", "--tps", "25", "--prefill-tps", "1500")


# server, load, view; runs of one server in a row share its process, except those that launch their own
RUNS = [
    ("vLLM, small KV cache", small_kv, [
        ("preemption", "launched"), ("preemption", "gateway"), ("preemption, shared prefixes", "gateway"),
        ("preemption, bursts", "pid")]),
    ("vLLM, 16,384 tokens", long_context, [
        ("prompts near the context limit", "gateway"), ("only prompts near the context limit", "gateway"),
        ("a long prompt beside streams", "pid"), ("only prompts near the context limit", "launched")]),
    ("vLLM, images", servers.vllm_032, [
        ("schemas and log probabilities", "gateway"), ("images", "gateway"), ("images, all new, large", "pid"),
        ("schemas and log probabilities", "launched")]),
    ("LMDeploy", lmdeploy, [
        ("text", "launched"), ("images", "gateway"), ("clients that leave", "gateway"), ("bursts", "pid")]),
    ("LMDeploy, slow", slow_lmdeploy, [
        ("text", "gateway"), ("one user", "gateway"), ("bursts", "gateway"), ("clients that leave", "launched")]),
]  # fmt: skip


def run(home, load, seconds, options, **more):
    """One `loadchaos run`; gives its run folder."""
    home.mkdir(parents=True)
    traffic, phases = LOADS[load]
    phases = [phase if "burst" in phase else {**phase, "for": f"{seconds}s"} for phase in phases]
    profile = {"name": "healthy", "traffic": traffic, "load": phases, **more,
               "limits": {"first_byte": "4m", "between_bytes": "3m", "total": "8m"},
               "accept": [{"id": "answers_not_judged", "because": "random weights", "until": "2099-01-01"}],
               "expect": ["engine_deaths == 0", "hangs == 0", "outages == 0", "failures == 0"]}  # fmt: skip
    (home / "healthy.yaml").write_text(json.dumps(profile))
    argv = [sys.executable, "-m", "loadchaos", "run", "healthy.yaml", "--no-live", "--exporter-port", "0", *options]
    env = {k: v for k, v in os.environ.items() if k != "CI"}
    with (home / "output").open("wb") as output:
        subprocess.run(argv, cwd=home, stdout=output, stderr=subprocess.STDOUT, timeout=1200, check=False, env=env)
    return next(home.glob("runs/*"))


def counter(url, name):
    """A counter of a vLLM, summed over its engines; None where it does not tell."""
    with contextlib.suppress(OSError):
        page = urllib.request.urlopen(f"{url}/metrics", timeout=5).read().decode()  # noqa: S310
        found = [line for line in page.splitlines() if line.startswith((f"vllm:{name} ", f"vllm:{name}{{"))]
        if found:
            return int(sum(float(line.rsplit(" ", 1)[1]) for line in found))
    return None


def preemptions(url, folder):
    """Requests that the server preempted so far; "" where it does not tell."""
    told = counter(url, "num_preemptions_total")
    if told is not None:
        return told
    values = [row["values"] for row in rows(folder, "metrics.jsonl") if row.get("row") == "metrics"]
    return int(values[-1]["preemptions_total"]) if values and "preemptions_total" in values[-1] else ""


def rows(folder, pattern):
    for path in sorted(folder.glob(pattern)):
        with path.open() as f:
            yield from (json.loads(line) for line in f)


def longest_silence_s(folder):
    """Longest time with requests in flight and no token on any."""
    longest = since = None
    for row in rows(folder, "requests-*.jsonl"):
        if row.get("row") != "heartbeat" or not row["in_flight"] or row["tokens"]:
            if row.get("row") == "heartbeat":
                since = None
            continue
        since = since or row["at_ns"]
        longest = max(longest or 0, row["at_ns"] - since)
    return (longest or 0) / 1e9


def describe(name, load, view, folder, before, url):
    verdict = json.loads((folder / "verdict.json").read_text())
    states = [s["state"] for s in verdict["states"]]
    if view == "launched" and states[-1] == "terminated":
        states.pop()  # the run ends what it has launched
    alarms = Counter(s for s in states if s not in CALM)
    failed = [f"{f['id']} ({f['count']})" for f in verdict["failures"]]
    after = preemptions(url, folder)
    waits = verdict["latency"]
    ttft = max((t["ttft_s"].get("p99") or 0 for t in waits.values() if t.get("ttft_s")), default=0)
    return {
        "server": name, "seen": view, "load": load, "requests": sum(verdict["outcomes"].values()),
        "ok": verdict["outcomes"].get("ok", 0), "preemptions": "" if after == "" else after - (before or 0),
        "TTFT p99": f"{ttft:.1f} s", "silence": f"{longest_silence_s(folder):.1f} s", "degraded": states.count("degraded"),
        "alarms": ", ".join([*(f"{n} x {s}" for s, n in alarms.items()), *failed]) or "none", "verdict": verdict["verdict"],
        "folder": str(folder),
    }  # fmt: skip


CORRUPTION = YAML(typ="safe").load((PROJECT / "profiles/corruption.yaml").read_text())
LEAVING = {"abort": {"share": "30%", "at_token": "1..20"}}
LOADS |= {
    "corruption": (CORRUPTION["traffic"], [{"users": 8}]),
    "corruption, bursts": (CORRUPTION["traffic"], [{"burst": 24, "repeat": 10, "every": "30s"}]),
    "long answers": ([text("64..600", {"exact": 160}, behaviour=LEAVING)], [{"users": 12}]),
    "images and text": (
        [{"name": "images", "payload": {"images": {"count": 1, "size": "256x256"}, "text": {"tokens": "16..64"}},
          "output": {"max": 32}}, text("32..512", {"max": 64}, behaviour=LEAVING)],
        [{"users": 6}],
    ),
    "pairs of images, each one twice": (
        [{"name": "images", "payload": {"images": {"count": 2, "size": "224x224", "unique": "50%"},
                                        "text": {"tokens": "16..64"}}, "output": {"max": 32}}],
        [{"users": 5}],
    ),
}  # fmt: skip


def one_core(version):
    """Environment of a vLLM that leaves a core to the server in the other lane."""
    return {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "1" if version == "0.22.1" else "0"}


def ngram(version):
    return servers.vllm_copy(version, **one_core(version))


def pictures(version):
    return servers.vllm_images(version, **one_core(version))


def colours(version):
    return servers.vllm_colour(version, **one_core(version))


def chunked(version):
    flags = ("--load-format", "auto", "--dtype", "float32", "--generation-config", "vllm", "--max-num-batched-tokens", "512",
             "--num-gpu-blocks-override", "24")  # fmt: skip
    return servers.vllm(version, *flags, env=one_core(version), model="tiny-copy", length=2048)


def mtp(version):
    """With full attention: MTP beside linear attention kills 0.22.1 on the CPU."""
    flags = ("--generation-config", "vllm", "--no-enable-prefix-caching", "--max-num-batched-tokens", "512",
             "--limit-mm-per-prompt", '{"image":0,"video":0}', "--num-gpu-blocks-override", "24",
             "--speculative-config", '{"method":"mtp","num_speculative_tokens":2}')  # fmt: skip
    return servers.vllm(version, *flags, env=one_core(version), model="tiny-qwen3_5-full", length=2048)


NGRAM, CHUNKED = "small KV cache, n-gram drafts", "small KV cache, chunks of 512 tokens"
TWO_TEXTS, TWO_IMAGES = ["corruption", "long answers"], ["images and text", "pairs of images, each one twice"]
# name, what starts the server, loads: 24 runs
ORACLE_RUNS = [
    (f"vLLM 0.32.0, {NGRAM}", lambda: ngram("0.32.0"), [*TWO_TEXTS, "corruption, bursts"]),
    (f"vLLM 0.22.1, {NGRAM}", lambda: ngram("0.22.1"), [*TWO_TEXTS, "corruption, bursts"]),
    ("vLLM 0.32.0, images", lambda: pictures("0.32.0"), TWO_IMAGES),
    ("vLLM 0.22.1, images", lambda: pictures("0.22.1"), TWO_IMAGES),
    (f"vLLM 0.32.0, {CHUNKED}", lambda: chunked("0.32.0"), TWO_TEXTS),
    ("vLLM 0.22.1, small KV cache, MTP", lambda: mtp("0.22.1"), TWO_TEXTS),
    ("LMDeploy 0.18.0", lmdeploy, ["corruption", "images and text", "clients that leave", "corruption, bursts"]),
    (f"vLLM 0.22.1, {CHUNKED}", lambda: chunked("0.22.1"), TWO_TEXTS),
    ("vLLM 0.32.0, model that names colours", lambda: colours("0.32.0"), TWO_IMAGES),
    ("vLLM 0.22.1, model that names colours", lambda: colours("0.22.1"), TWO_IMAGES),
]  # fmt: skip
DRAFTED, ACCEPTED = "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"


def judge_oracles(name, load, folder, moved):
    """A row of the table: what the oracles proved in one run, and each alarm."""
    verdict = json.loads((folder / "verdict.json").read_text())
    checks = {c["name"]: c for c in verdict["checks"]}
    told = {o.name: checks[o.check] for o in ORACLES.values() if o.check in checks}
    asked = Counter(row["when"] for row in rows(folder, "*.jsonl") if row.get("row") == "question")
    states = [s["state"] for s in verdict["states"] if s["state"] not in CALM]
    failed = [f"{f['id']} ({f['count']})" for f in verdict["failures"]]
    return {
        "server": name, "load": load, "requests": sum(verdict["outcomes"].values()), "ok": verdict["outcomes"].get("ok", 0),
        "questions": asked["load"] + asked["after"], **moved,
        "proved": ", ".join(n for n, c in told.items() if c["verdict"] == "pass") or "unproven",
        "unknown checks": ", ".join(n for n, c in checks.items() if c["verdict"] == "unknown") or "none",
        "alarms": ", ".join([*states, *failed, *(n for n, c in checks.items() if c["verdict"] == "fail")]) or "none",
        "verdict": verdict["verdict"], "folder": str(folder), "checks": {n: c["actual"] for n, c in told.items()},
    }  # fmt: skip


def oracle_group(args, home, note, group):
    """The runs of one server, one after the other."""
    name, make, loads = group
    place = home / name.replace(" ", "_")
    place.mkdir(parents=True)
    command = make()
    with running(command, place / "server.log") as server:
        for n, load in enumerate(loads):
            questions = {**CORRUPTION["correctness"], **({"images": {"every": "2s"}} if "image" in load else {})}
            names = ("num_preemptions_total", DRAFTED, ACCEPTED)
            before = [counter(server.url, of) for of in names]
            options = (
                "--target",
                server.url,
                "--server-log",
                str(server.log),
                "--pid",
                pid_of(urlsplit(server.url).port),
            )
            folder = run(place / str(n), load, args.seconds, options, correctness=questions)
            moved = [None if b is None else counter(server.url, of) - b for of, b in zip(names, before, strict=True)]
            shown = {"preemptions": moved[0], "drafts accepted": f"{moved[2]} of {moved[1]}" if moved[1] else None}
            note(judge_oracles(name, load, folder, shown))


def oracle_main(args):
    """Make the runs that have no line yet, print the table; gives the number of runs with an alarm."""
    lock, home = threading.Lock(), args.out / time.strftime("%H%M%S")

    def note(row):
        with lock, args.results.open("a") as f:
            f.write(json.dumps(row) + "\n")
        print(
            " | ".join(str(row[k]) for k in ("server", "load", "requests", "questions", "alarms", "verdict")),
            flush=True,
        )

    args.results.touch()
    made = {(row["server"], row["load"]) for row in map(json.loads, args.results.read_text().splitlines())}
    groups = [
        (name, make, [load for load in loads if (name, load) not in made and args.only in f"{name}, {load}"])
        for name, make, loads in ORACLE_RUNS
    ]
    if not args.table:
        with ThreadPoolExecutor(args.lanes) as lanes:
            jobs = [lanes.submit(oracle_group, args, home, note, group) for group in groups if group[2]]
        for job in jobs:
            if (error := job.exception()) is not None:
                print(f"ended: {str(error)[-1000:]}", file=sys.stderr)
    found = [json.loads(line) for line in args.results.read_text().splitlines()]
    if not found:
        raise SystemExit("no run was made")
    told = ("preemptions", "drafts accepted")
    found = [judge_oracles(r["server"], r["load"], Path(r["folder"]), {name: r[name] for name in told}) for r in found]
    columns = [c for c in found[0] if c not in ("folder", "checks", "ok")]
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in found:
        print("| " + " | ".join("" if row[c] is None else str(row[c]) for c in columns) + " |")
    alarms = sum(row["alarms"] != "none" or row["verdict"] == "fail" for row in found)
    unproven = sum(row["proved"] == "unproven" for row in found)
    requests, questions = (sum(row[name] for row in found) for name in ("requests", "questions"))
    print(f"\n{len(found)} runs, {alarms} with an alarm, {unproven} unproven")
    print(f"{requests:,} requests, {questions:,} questions")
    return alarms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("healthy"))
    parser.add_argument("--seconds", type=int, help="50, with --oracles 300")
    parser.add_argument("--only", default="")
    parser.add_argument("--oracles", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("healthy-oracles.jsonl"))
    parser.add_argument("--lanes", type=int, default=1, help="servers of --oracles that run at once")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    args.seconds = args.seconds or (300 if args.oracles else 50)
    if args.oracles:
        return oracle_main(args)
    home, found = args.out / time.strftime("%H%M%S"), []
    home.mkdir(parents=True)

    def note(row):
        found.append(row)
        with (home / "runs.jsonl").open("a") as f:
            f.write(json.dumps(row) + "\n")
        print(" | ".join(str(v) for k, v in row.items() if k != "folder"), flush=True)

    for name, make, runs in RUNS:
        runs = [(load, view) for load, view in runs if args.only in f"{name}, {load}, {view}"]
        for n, (load, view) in enumerate(runs):
            if view == "launched":
                command, at = make(), home / f"{name}, launched {n}".replace(" ", "_")
                note(describe(name, load, view, run(at, load, args.seconds, typed(command)), 0, command.url))
        if not any(view != "launched" for _, view in runs):
            continue
        command = make()
        with running(command, home / f"{name}.log".replace(" ", "_")) as server:
            port = urlsplit(server.url).port
            for n, (load, view) in enumerate(runs):
                if view == "launched":
                    continue
                at, before = home / f"{name}, {n}".replace(" ", "_"), preemptions(server.url, home)
                with ApiGateway(port) if view == "gateway" else contextlib.nullcontext() as gateway:
                    options = (
                        "--target",
                        gateway.url if gateway else server.url,
                        *((), ("--pid", pid_of(port)))[view == "pid"],
                    )
                    note(describe(name, load, view, run(at, load, args.seconds, options), before, server.url))
    columns = [c for c in found[0] if c != "folder"]
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in found:
        print("| " + " | ".join(str(row[c]) for c in columns) + " |")
    return sum(row["alarms"] != "none" or row["verdict"] == "fail" for row in found)


def pid_of(port):
    import psutil

    return str(
        next(c.pid for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr.port == port)
    )


if __name__ == "__main__":
    sys.exit(main())
