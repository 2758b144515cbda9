#!/usr/bin/env python
"""Search real vLLM servers on the CPU for corruption that is known from the field, without injected faults.

    .venv/bin/python scripts/real/known_corruption.py [--version 0.32.0] [--only TEXT] [--out DIR] [--seconds 30] [--core N]

Each server runs a hybrid model (linear and full attention) with what the reports name: prefix caching, MTP, n-gram drafts,
chunked prefill. The profile `corruption` asks its questions beside a short load. Then prompts of 2 to 24 tokens are asked
one at a time: a prompt of K+1 tokens is taken for a decode by some versions. Their answers are compared with those of the
first server, which has no drafts. The model is made by make_random_models.py.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

PROJECT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(PROJECT))

from tests.real import servers
from tests.real.conftest import running

CHUNKS = ("--max-num-batched-tokens", "512", "--limit-mm-per-prompt", '{"image":0,"video":0}')
MTP = '{"method":"mtp","num_speculative_tokens":2}'
NGRAM = '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4,"prompt_lookup_min":1}'
CASES = {
    "prefix caching": ("--enable-prefix-caching",),
    "MTP, chunked prefill": ("--no-enable-prefix-caching", "--speculative-config", MTP),
    "n-gram": ("--no-enable-prefix-caching", "--speculative-config", NGRAM),
    "MTP, prefix caching": ("--enable-prefix-caching", "--speculative-config", MTP),
}
# A prompt of one token kills vLLM 0.32.0 here ("causal_conv1d_fwd_cpu: expect x to be transposed"), so they begin with two.
LENGTHS, FIRST_TOKEN, TIMES, GAP = range(2, 25), 300, 2, 0.5


def start(version, flags, core):
    """Command of a server with the hybrid model, on one core where others run beside it."""
    common = ("--load-format", "auto", "--generation-config", "vllm", *CHUNKS)
    env = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": core} if core else {}
    return servers.vllm(version, *common, *flags, env=env, model="tiny-qwen3_5-random", length=4096)


def ask(url, prompt):
    """Tokens of a greedy answer, each with its gap to the next likely one."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 16, "temperature": 0, "logprobs": 2,
            "return_tokens_as_token_ids": True}  # fmt: skip
    found = (
        httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status().json()["choices"][0]["logprobs"]
    )
    gaps = [max(top.values()) - min(top.values()) for top in found["top_logprobs"]]
    return list(zip(found["tokens"], gaps, strict=True))


def differs(one, other):
    """Gap at the first token that differs; None: equal."""
    return next((max(a[1], b[1]) for a, b in zip(one, other, strict=False) if a[0] != b[0]), None)


def ladder(url):
    """Answers to prompts of each length."""
    prompts = [[(FIRST_TOKEN + 37 * n * (i + 1)) % 1800 + 100 for i in range(n)] for n in LENGTHS for _ in range(TIMES)]
    return [(len(p), ask(url, p)) for p in prompts]


def corruption(server, out, seconds):
    """Run the profile; returns its failures and the checks of its questions."""
    load = [{"users": 6, "for": f"{seconds}s"}]
    argv = [sys.executable, "-m", "loadchaos", "run", "corruption", "--target", server.url, "--no-live",
            "--exporter-port", "0", "--out", str(out), "--set", f"load={json.dumps(load)}"]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=PROJECT)
    verdicts = sorted(out.glob("*/verdict.json"), key=lambda path: path.stat().st_mtime)
    if not verdicts:
        return {"no run": done.stderr[-300:]}, []
    verdict = json.loads(verdicts[-1].read_text())
    shown = ("questions", "identical_requests", "cold_and_warm", "alone_vs_load", "streamed_and_whole")
    checks = [f"{c['name']}: {c['actual']}" for c in verdict["checks"] if c["name"] in shown]
    failures = {f["id"]: f["count"] for f in verdict["failures"]}
    return failures, [*checks, f"outcomes: {verdict['outcomes']}"]


def deaths(log):
    """Last lines of the server's log that name an exception."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [line[-200:] for line in lines if re.search(r"\w(Error|Exception)\b", line)][-3:]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="0.32.0")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path(tempfile.mkdtemp(prefix="known-corruption-")))
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--core", default="", help="the only core that the server may use")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    reference = args.out / f"ladder-{args.version}.json"
    for name, flags in CASES.items():
        if args.only not in name:
            continue
        print(f"== vLLM {args.version}, {name}", flush=True)
        log = args.out / f"{name.replace(', ', '-').replace(' ', '-')}.log"
        try:
            with running(start(args.version, flags, args.core), log) as server:
                found = ladder(server.url)
                if not reference.exists():
                    reference.write_text(json.dumps(found))
                before = json.loads(reference.read_text())
                gaps = [(n, differs(a, b)) for (n, a), (_, b) in zip(before, found, strict=True)]
                wrong = sorted({n for n, gap in gaps if gap is not None and gap > GAP})
                near = sum(gap is not None and gap <= GAP for _, gap in gaps)
                print(f"   lengths with another answer: {wrong or 'none'}; {near} near ties of {len(gaps)}", flush=True)
                failures, checks = corruption(server, args.out / "runs", args.seconds)
                print(f"   failures: {failures or 'none'}", *checks, sep="\n   ", flush=True)
        except (AssertionError, OSError, httpx.HTTPError) as error:
            print(f"   ended: {str(error)[-300:]}", *deaths(log), sep="\n   ", flush=True)


if __name__ == "__main__":
    main()
