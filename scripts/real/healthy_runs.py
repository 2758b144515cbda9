#!/usr/bin/env python
"""Run loadchaos against healthy real servers and print every false alarm.

    .venv/bin/python scripts/real/healthy_runs.py [--out DIR] [--seconds 50] [--only TEXT]

12 runs on three vLLM servers (preemption in a small KV cache, long chunked prefills, images and the first requests of a new
process) and 8 on LMDeploy's HTTP layer. Each server is seen in three ways: launched by the run, by its process id, and
through a gateway that lets only /v1 through, so that only the answers to our requests carry the state. A false alarm is
any state but starting, healthy and degraded, any failure, and a verdict `fail`. The exit code is the number of runs with
one.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

PROJECT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(PROJECT))

from bench.states.gateway import ApiGateway
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


def run(home, load, seconds, options):
    """One `loadchaos run`; gives its run folder and exit code."""
    home.mkdir(parents=True)
    traffic, phases = LOADS[load]
    phases = [phase if "burst" in phase else {**phase, "for": f"{seconds}s"} for phase in phases]
    profile = {"name": "healthy", "traffic": traffic, "load": phases,
               "limits": {"first_byte": "4m", "between_bytes": "3m", "total": "8m"},
               "expect": ["engine_deaths == 0", "hangs == 0", "outages == 0", "failures == 0"]}  # fmt: skip
    (home / "healthy.yaml").write_text(json.dumps(profile))
    argv = [sys.executable, "-m", "loadchaos", "run", "healthy.yaml", "--no-live", "--exporter-port", "0", *options]
    env = {k: v for k, v in os.environ.items() if k != "CI"}
    with (home / "output").open("wb") as output:
        subprocess.run(argv, cwd=home, stdout=output, stderr=subprocess.STDOUT, timeout=1200, check=False, env=env)
    return next(home.glob("runs/*"))


def preemptions(url, folder):
    """Requests that the server preempted so far; "" where it does not tell."""
    with contextlib.suppress(OSError):
        page = urllib.request.urlopen(f"{url}/metrics", timeout=5).read().decode()  # noqa: S310
        found = [line for line in page.splitlines() if line.startswith("vllm:num_preemptions_total")]
        if found:
            return int(sum(float(line.rsplit(" ", 1)[1]) for line in found))
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("healthy"))
    parser.add_argument("--seconds", type=int, default=50)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
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
