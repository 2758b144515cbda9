"""Make the ledgers of tests/golden/ledgers again: `python -m tests.golden.make_ledgers [TEXT]`.

TEXT selects by name. Each ledger is a real run of seconds, so a second one has other times and counts: make one again
only to cover more, then run `make golden UPDATE=1` and review. This script cannot make these again: `real-*` (runs of
real servers, packed with `--pack FOLDER...`) and `older-0.1` (loadchaos 0.1 wrote it).
"""

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from loadchaos.run.ports import free_port
from tests.embedded_server import EmbeddedServer
from tests.golden.archive import HOME, ROOT, leaks, names, pack
from tests.run.conftest import FOR_LONG, SLOW_ANSWERS, SMALL, Run
from tests.run.foreign_server import PAGES, ForeignServer, serving
from tests.run.raw_server import Answer, RawServer, answer
from tests.run.test_launch_only import NO_MEMORY
from tests.warm_command import outside_ci

Parts = dict[str, Any]
Act = Callable[[Run], None]

FAST = "target.embedded.flags.speed=6"
CLEAN = "target.embedded.defects=[]"
PROFILES: dict[str, Sequence[str]] = {
    "abort_storm": ["load=[{users: 4, for: 1s}, {burst: 50, repeat: 2, every: 6s}, {users: 4, requests: 8}]",
                    "exposure.at_least=30"],
    "agentic": ["load.0.requests=8", "target.embedded.flags.speed=20"],
    "corruption": ["load=[{users: 4, for: 2s}, {users: 24, for: 6s}]"],
    "engine_pause": ["load=[{users: 12, for: 12s}, {users: 4, requests: 8}]", "exposure.at_least=2",
                     ("attacks=[{admin: pause, every: 4s, for: 1s, params: {mode: keep}, during: 1s..8s},"
                     " {admin: sleep, at: 9s, for: 1s, params: {level: 1, mode: keep}}]"), "limits.first_byte=8s"],
    "hostile": ["load.0.requests=30", "load.1.requests=12", FAST],
    "http_abuse": ["load.0.for=8s", "load.0.users=16", "load.1.requests=10", "exposure.at_least=10",
                   "limits.first_byte=8s"],
    "kv_pressure": [FAST, "load=[{users: 4, for: 1s}, {users: 24, for: 8s}, {users: 2, requests: 4}]", "limits.total=12s",
                    "exposure.at_least=20", "limits.first_byte=8s"],
    "lmdeploy_kv_capacity": [FAST, "load.0.requests=20", "load.1.requests=50"],
    "long_context": ["target.embedded.flags.speed=60", "load.0.requests=8", "load.1.requests=12",
                     "exposure.at_least=4"],
    "lora_thrash": [FAST, "load=[{users: 4, for: 1s}, {users: 8, for: 5s}]"],
    "mm_cache": [FAST, "load.0.requests=20", "load.1.requests=60", "exposure.at_least=50"],
    "mm_chunked_prefill": [FAST, "load.0.repeat=1", "load.1.requests=60", "exposure.at_least=40"],
    "mtp_mm": [FAST, "load.1.rounds=1", "load.1.requests=80", "exposure.at_least=40"],
    "near_max_len": ["target.embedded.flags.speed=20", "load.0.requests=30", "load.1.requests=40",
                     "exposure.at_least=40"],
    "poison_pill": [FAST, "requires=[]", "load.0.requests=12", "load.1.requests=30"],
    "pp_memory_pressure": ["load.0.repeat=1", "exposure.at_least=100"],
    "prefix_cache": [FAST, "load=[{users: 1, requests: 10}, {users: 12, requests: 70}]", "exposure.at_least=50"],
    "smoke": ["load.0.for=2s", "load.1.for=6s"],
    "soak_nightly": [FAST, ("load=[{users: 2, for: 2s}, {repeat: 2, phases: [{rate: 3/s, law: poisson, for: 4s,"
                     " max_in_flight: 64}, {burst: 2, repeat: 2, every: 1s}]}]")],
    "spec_text": [FAST, "load=[{users: 2, for: 1s}, {users: 8, for: 5s}]"],
    "tool_marks": ["load.0.requests=30", "exposure.at_least=5", FAST],
}  # fmt: skip
WITHOUT_DEFECT = {"agentic", "hostile", "smoke", "soak_nightly"}
TEXT = {"text": {"tokens": "40..90"}}
V32: Parts = {"embedded": {"dialect": "vllm", "era": "0.32"}}


def profile(name: str, *more: str) -> Callable[[Path], None]:
    sets = [arg for o in (*PROFILES[name], *more) for arg in ("--set", o)]
    return lambda home: finished(home, str(ROOT / "profiles" / f"{name}.yaml"), "--embedded", *sets)


def small(*args: str, act: Act | None = None, env: Parts | None = None, **parts: Any) -> Callable[[Path], None]:
    """A run of the profile of tests/run with some parts changed; `act` disturbs it."""
    return lambda home: finished(home, "small.yaml", *args, act=act, env=env, **parts)


def finished(home: Path, *args: str, act: Act | None = None, env: Parts | None = None, **parts: Any) -> None:
    run = started(home, *args, env=env, **parts)
    try:
        if act is not None:
            act(run)
        run.process.wait(120)
    finally:
        if run.process.poll() is None:
            run.process.kill()
        run.process.wait()


def started(home: Path, *args: str, env: Parts | None = None, **parts: Any) -> Run:
    (home / "small.yaml").write_text(json.dumps({**SMALL, **parts}))
    argv = [sys.executable, "-m", "loadchaos", "run", *args, "--exporter-port", "0", "--no-live"]
    with (home / "stdout").open("ab") as out, (home / "stderr").open("ab") as err:
        process = subprocess.Popen(argv, cwd=home, env={**environment(), **(env or {})}, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=err, start_new_session=True)  # fmt: skip
    return Run(home, process)


def environment() -> dict[str, str]:
    return outside_ci() | {"NO_COLOR": "1", "TZ": "UTC"}


def made(*args: str) -> Callable[[Path], None]:
    """A run without a profile, against an embedded server of its own."""

    def make(home: Path) -> None:
        with sim(home) as url:
            finished(home, "--target", url, *args)

    return make


@contextlib.contextmanager
def sim(home: Path, *flags: str) -> Iterator[str]:
    """An embedded server that the run does not own."""
    number = free_port()
    with EmbeddedServer("--port", str(number), *flags, log=home / f"sim-{number}.log") as server:
        yield server.url


# -- disturbances --------------------------------------------------------------------------------------------------


def sends(number: int, to: str | None = None, answered: int = 15, times: int = 1) -> Act:
    """Send a signal to the run, or one of its processes, under load."""

    def act(run: Run) -> None:
        run.loaded(answered)
        for _ in range(times):
            run.signal(number, to)
            time.sleep(0.3)

    return act


def kills_engine(run: Run) -> None:
    run.loaded(15)
    for child in psutil.Process(run.pids["server"]).children():
        child.kill()


def kills_run(run: Run) -> None:
    sends(signal.SIGKILL)(run)
    run.process.wait()
    with contextlib.suppress(AssertionError):
        run.all_gone(15)


def interrupts_at(**like: Any) -> Act:
    def act(run: Run) -> None:
        run.wait_for(**like)
        run.signal(signal.SIGINT)

    return act


def stops_server(run: Run) -> None:
    run.loaded(15)
    server = psutil.Process(run.pids["server"])
    stopped = [server, *server.children(recursive=True)]
    for process in stopped:
        process.suspend()
    time.sleep(7)
    for process in stopped:
        process.resume()


# -- servers -------------------------------------------------------------------------------------------------------


def raw(reply: Answer, **parts: Any) -> Callable[[Path], None]:
    def make(home: Path) -> None:
        server = RawServer(reply)
        try:
            finished(home, "small.yaml", "--target", server.url, **parts)
        finally:
            server.close()

    return make


def foreign(server: ForeignServer, **parts: Any) -> Callable[[Path], None]:
    def make(home: Path) -> None:
        with serving(server):
            finished(home, "small.yaml", "--target", server.url, **parts)

    return make


def refusing(status: int, every: int) -> Answer:
    error = {"error": {"message": "Too many requests" if status == 429 else "overloaded, try again", "type": "busy"}}
    return lambda n, body: (status, [error]) if n > 8 and n % every == 0 else (200, answer(8))


def wrong_length(n: int, body: Parts) -> tuple[int, list[Parts]]:
    return 200, answer(136)


def launching(command: Sequence[str], number: int, **more: Any) -> Parts:
    return {"launch": {"command": list(command), "url": f"http://127.0.0.1:{number}", "ready_within": "30s"}, **more}


def launched(*flags: str, on_death: Any = "wait", act: Act | None = None, **parts: Any) -> Callable[[Path], None]:
    def make(home: Path) -> None:
        number = free_port()
        command = [sys.executable, "-m", "loadchaos.simulator.server", "--port", str(number), *flags]
        finished(home, "small.yaml", act=act, target=launching(command, number, on_death=on_death), **parts)

    return make


def never_starts(code: str) -> Callable[[Path], None]:
    command = [sys.executable, "-u", "-c", code]
    return lambda home: finished(home, "small.yaml", target=launching(command, free_port()) | {"on_death": "stop"})


def never_healthy(home: Path) -> None:
    finished(home, "small.yaml", "--target", f"http://127.0.0.1:{free_port()}", "--wait-ready", "4s")


def interrupted_before_load(home: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    finished(home, "small.yaml", "--target", url, "--wait-ready", "5m", act=interrupts_at(row="run", what="begin"))


def replicas(home: Path) -> None:
    with sim(home, "--defect", "near_max_oob", "--flag", "max_model_len=2048") as a, sim(home) as b:
        target = {
            "replicas": [{"name": "a", "url": a, "log": str(next(home.glob("sim-*.log")))}, {"name": "b", "url": b}]
        }
        finished(home, "small.yaml", "--target", a, target=target)


def resumed(home: Path) -> None:
    """Keeps the second run: the rest of the first."""
    load = [{"rate": "10/s", "law": "poisson", "for": "8s", "max_in_flight": 32}]
    finished(home, "small.yaml", "--seed", "7", act=kills_run, load=load)
    (first,) = home.glob("runs/*")
    finished(home, "--resume", str(first.relative_to(home)))
    shutil.rmtree(first)


def capacity(home: Path) -> None:
    search = {"name": "small", "traffic": SMALL["traffic"], "load": [{"rate": "4/s", "law": "poisson", "for": "5s"}],
              "slo": {"ttft": "2s"}}  # fmt: skip
    (home / "search.yaml").write_text(json.dumps(search))
    with sim(home, "--flag", "max_num_seqs=2", "--flag", "num_speculative_tokens=0") as url:
        argv = ["capacity", "search.yaml", "--goal", "90%", "--tolerance", "30%", "--budget", "90s", "--seed", "1"]
        subprocess.run([sys.executable, "-m", "loadchaos", *argv, "--target", url], cwd=home, env=environment(),
                       capture_output=True, timeout=200, check=False)  # fmt: skip


TRACE = "".join(
    json.dumps({"timestamp": 250 * n, "input_length": 40 + n, "output_length": 4 + n % 5, "hash_ids": [n // 4]}) + "\n"
    for n in range(24)
)


def trace_file(home: Path) -> None:
    (home / "trace.jsonl").write_text(TRACE)
    with sim(home) as url:
        finished(
            home,
            "--target",
            url,
            "--dataset-name",
            "timed_trace",
            "--dataset-path",
            "trace.jsonl",
            "--timed-trace-sec-multiplier",
            "0.001",
        )


# -- rewritten ledgers ---------------------------------------------------------------------------------------------


def rewritten(maker: Callable[[Path], None], change: Callable[[Path], None]) -> Callable[[Path], None]:
    def make(home: Path) -> None:
        maker(home)
        (folder,) = home.glob("runs/*")
        change(folder)

    return make


def tear_last_line(folder: Path) -> None:
    for name in ("requests-0.jsonl", "events.jsonl"):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: data.rstrip(b"\n").rfind(b"\n") + 40])


def spoil_rows(folder: Path) -> None:
    for name in ("requests-0.jsonl", "events.jsonl"):
        lines = (folder / name).read_bytes().split(b"\n")
        lines[9] = b"not json at all"
        lines[19] = b'{"row":"no_such_kind","at_ns":1}'
        lines[24] = b"\xff\xfe" + lines[24]
        (folder / name).write_bytes(b"\n".join(lines))


def spoil_time(folder: Path) -> None:
    """A time that is no number: the judge refuses the row."""
    file = folder / "requests-0.jsonl"
    lines = file.read_bytes().split(b"\n")
    lines[14] = lines[14].replace(b'"at_ns":', b'"at_ns":"x","was":')
    file.write_bytes(b"\n".join(lines))


def as_of_0_1(folder: Path) -> None:
    """Begin rows with `crc` (loadchaos 0.1) and without what later versions added; gaps of the log without `loss`."""
    dropped = {"begin": {"fitted", "image_names", "videos", "audios", "adapter", "endpoint", "seed"},
               "end": {"endpoint", "length_mismatch", "finish", "spans"}, "header": {"file"}, "gap": {"loss"},
               "launch": {"name"}}  # fmt: skip
    for path in sorted(folder.glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        for row in rows:
            for key in dropped.get(row.get("row"), ()):
                row.pop(key, None)
            if row.get("row") == "begin" and "hash" in row:
                row |= {"crc": row["len"] * 2654435761 % 2**32}
        path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


def older(home: Path) -> None:
    with tarfile.open(ROOT / "tests/campaigns/replay/samples/run-0.1.tar.gz") as archive:
        archive.extractall(home / "runs", filter="data")


# -- the table -----------------------------------------------------------------------------------------------------

OUT_OF_BOUNDS: Parts = {"embedded": {"dialect": "vllm", "era": "0.18", "defects": ["near_max_oob"],
                              "flags": {"max_model_len": 2048, "num_speculative_tokens": 0}}}  # fmt: skip
KILLER = [
    {"name": "text", "weight": 30, "payload": {"text": {"tokens": "16..32"}}, "output": {"max": 8}},
    {"name": "killer", "weight": 1, "payload": {"text": {"tokens": "1500..1600"}}, "output": {"max": 8}},
]
LEAVING = {"name": "leaving", "payload": {"text": {"tokens": "64..256"}}, "output": {"max": 64},
           "behaviour": {"abort": {"share": "100%", "at_token": "1..5"}}}  # fmt: skip
LONG: Parts = {"load": FOR_LONG, "traffic": SLOW_ANSWERS}
CHAT = {"turns": 3, "tokens": "200..400", "parallel": 6}
ACCEPTED = [{"id": i, "because": "known", "until": "2100-01-01"} for i in ("image_pixel_limit", "data_url_not_base64")]


def endpoint(name: str, payload: Parts, **more: Any) -> Callable[[Path], None]:
    traffic = [{"name": name, "endpoint": name, "payload": payload, **more}]
    return small(traffic=traffic, target=V32, load=[{"users": 4, "requests": 40}])


TABLE: dict[str, Callable[[Path], None]] = {
    **{f"profile-{p}-bug": profile(p) for p in PROFILES if p not in WITHOUT_DEFECT},
    **{f"profile-{p}": profile(p, CLEAN) for p in PROFILES},
    "profile-mtp_mm-bug": lambda home: finished(home, str(ROOT / "profiles/mtp_mm.yaml"), "--embedded"),  # dies early
    "small": small(),
    "small-seed-2": small("--seed", "2"),
    "small-slow": small(target={"embedded": {"dialect": "vllm", "era": "0.18", "flags": {"speed": 0.5}}}),
    "small-seed-3": small("--seed", "3"),
    "killed-load": small(act=sends(signal.SIGKILL, "locust"), **LONG),
    "killed-tool": small(act=kills_run, **LONG),
    "killed-server": small(act=sends(signal.SIGKILL, "server"), **LONG | {"target": {**V32, "on_death": "stop"}}),
    "killed-engine": small(act=kills_engine, **LONG | {"target": {**V32, "on_death": "stop"}}),
    "interrupted-before-load": interrupted_before_load,
    "interrupted-server-start": small(act=interrupts_at(row="launch", what="start")),
    "interrupted-load": small(act=sends(signal.SIGINT), **LONG),
    "interrupted-twice": small(act=sends(signal.SIGINT, times=2), **LONG),
    "terminated-load": small(act=sends(signal.SIGTERM), **LONG),
    "torn-last-line": rewritten(small(act=kills_run, **LONG), tear_last_line),
    "bad-rows": rewritten(small(), spoil_rows),
    "bad-time": rewritten(small(), spoil_time),
    "processes-2": small("--processes", "2"),
    "processes-2-one-killed": small("--processes", "2", act=sends(signal.SIGKILL, "locust"), load=FOR_LONG),
    "parquet-parts": small(env={"LOADCHAOS_HOUR_S": "3"}, load=[{"rate": "10/s", "for": "12s", "max_in_flight": 32}]),
    "replicas": replicas,
    "resumed": resumed,
    "hang": small(act=stops_server, limits={"first_byte": "3s", "between_bytes": "3s", "total": "8s"},
                  load=[{"rate": "10/s", "for": "14s", "max_in_flight": 32}]),
    "launched": launched(),
    "launched-restarts": launched("--defect", "near_max_oob", "--flag", "max_model_len=2048", "--flag",
                                  "num_speculative_tokens=0", on_death={"restart": {"at_most": 3}}, traffic=KILLER,
                                  load=[{"rate": "10/s", "for": "14s", "max_in_flight": 32}]),
    "restart-after-deaths": small(target={**OUT_OF_BOUNDS, "on_death": "restart"}, traffic=KILLER,
                                  load=[{"rate": "10/s", "for": "14s", "max_in_flight": 32}],
                                  expect=["recovers_within <= 60s", "engine_deaths == 0"]),
    "dies-of-first-request": small(target={"embedded": {**OUT_OF_BOUNDS["embedded"],
                                   "flags": {"max_model_len": 900, "num_speculative_tokens": 0}}}),
    "never-starts-no-memory": never_starts(f"import time; print({NO_MEMORY!r}); time.sleep(0.5); raise SystemExit(1)"),
    "never-starts-silent": never_starts("raise SystemExit(3)"),
    "never-healthy": never_healthy,
    "sessions-planned": small(traffic=[{"name": "chat", "payload": {"conversation": CHAT}, "output": {"max": 16}}],
                              load=[{"users": 6, "requests": 40}]),
    "endpoint-chat": endpoint("chat", TEXT, output={"exact": 8}),
    "endpoint-completions": endpoint("completions", TEXT, output={"exact": 8}),
    "endpoint-responses": endpoint("responses", TEXT, output={"exact": 8}),
    "endpoint-messages": endpoint("messages", TEXT, output={"max": 8}),
    "endpoint-embeddings": endpoint("embeddings", {**TEXT, "batch": {"count": "1..4"}}),
    "endpoint-rerank": endpoint("rerank", {**TEXT, "batch": {"count": "1..4"}}),
    "endpoint-score": endpoint("score", {**TEXT, "batch": {"count": "1..4"}}),
    "endpoint-transcriptions": endpoint("transcriptions", {"audio": {"seconds": 1}}, output={"max": 8}),
    "goodput-warm-up": made("--rate", "20", "--num-prompts", "80", "--num-warmups", "8", "--random-input-len", "50",
                            "--random-output-len", "6", "--goodput", "ttft:150", "tpot:50"),
    "slo-missed": small(slo={"ttft": "5ms", "itl_p99": "2ms"}, expect=["goodput >= 99%"]),
    "trace-file": trace_file,
    "phases": small(load=[{"users": 2, "for": "2s"}, {"rate": "8/s", "law": "gamma", "for": "3s", "max_in_flight": 16},
                          {"burst": 12, "repeat": 2, "every": "2s"}, {"users": 3, "requests": 12, "rounds": 2}]),
    "lmdeploy": small(target={"embedded": {"dialect": "lmdeploy", "era": "0.10"}}),
    "lmdeploy-killed-engine": small(act=kills_engine, target={"embedded": {"dialect": "lmdeploy", "era": "0.10"}}, **LONG),
    "answers-429": raw(refusing(429, 3)),
    "answers-503": raw(refusing(503, 2)),
    "abort-when": raw(refusing(503, 1), load=FOR_LONG, abort_when="error_rate > 50% for 3s"),
    "wrong-length": raw(wrong_length, target={"dialect": "openai"},
                        traffic=[{**SMALL["traffic"][0], "output": {"exact": 32}}]),
    "foreign-traceback": foreign(ForeignServer(pages=dict(PAGES), fails_on="the")),
    "foreign-no-images": foreign(ForeignServer(pages=dict(PAGES), images="fails"),
                                 traffic=[{"name": "img", "payload": {"images": {"count": 1, "size": "64x64"}, **TEXT},
                                           "output": {"max": 4}}]),
    "unknown": lambda home: finished(home, str(ROOT / "profiles/mtp_mm.yaml"), "--embedded", *[
        arg for o in ("target.embedded.flags.num_speculative_tokens=0", CLEAN, "attacks=[]", FAST,
                      "traffic=[{name: text, payload: {text: {tokens: 32..64}}, output: {max: 16}}]",
                      "load=[{users: 20, requests: 60}]") for arg in ("--set", o)]),
    "expectations-missed": small(expect=["ttft_p50 <= 1ms", "ok_share >= 99%", "engine_deaths == 0", "hangs == 0"]),
    "accepted-failures": lambda home: finished(home, str(ROOT / "profiles/hostile.yaml"), "--embedded", *[
        arg for o in (f"accept={json.dumps(ACCEPTED)}", "load.0.requests=66", "load.1.requests=8", FAST)
        for arg in ("--set", o)]),
    "overload": small(target={"embedded": {"dialect": "vllm", "era": "0.18", "flags": {
                          "num_gpu_blocks": 200, "num_speculative_tokens": 0, "enable_prefix_caching": False}}},
                      traffic=[{"name": "text", "payload": {"text": {"tokens": "2500"}}, "output": {"exact": 60}}],
                      load=[{"burst": 30}], limits={"first_byte": "5s", "between_bytes": "5s", "total": "60s"}),
    "kv-leak": small(target={"embedded": {"dialect": "vllm", "era": "0.18", "defects": ["kv_leak_on_abort"]}},
                     traffic=[LEAVING, {**SMALL["traffic"][0], "name": "staying"}], load=[{"users": 4, "requests": 40}]),
    "attack-kills-engine": small(attacks=[{"process": "sigkill", "role": "engine_core", "at": "2s"}], target=V32,
                                 load=[{"rate": "10/s", "for": "8s", "max_in_flight": 32}]),
    "attack-stops-engine": small(attacks=[{"process": "sigstop", "role": "engine_core", "at": "2s", "for": "3s"}],
                                 load=[{"rate": "10/s", "for": "8s", "max_in_flight": 32}]),
    "attack-network": small(attacks=[{"network": "latency", "at": "1s", "for": "2s", "params": {"latency": 200}}],
                            load=[{"rate": "10/s", "for": "6s", "max_in_flight": 32}]),
    "capacity": capacity,
    "older-rows": rewritten(profile("near_max_len"), as_of_0_1),
    "older-rows-killed": rewritten(small(act=kills_run, **LONG), as_of_0_1),
    "older-0.1": older,
}  # fmt: skip


def make(name: str) -> str:
    """Make and pack one ledger; of a capacity search also its first steps."""
    home = HOME / name
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    try:
        TABLE[name](home)
        (folder,) = [p for p in home.glob("runs/*") if p.is_dir()]
        steps = sorted(path.parent for path in folder.glob("steps/**/events.jsonl"))[:3]
        paths = [pack(folder, name), *(pack(step, f"{name}-step-{n}") for n, step in enumerate(steps, 1))]
        return f"{name}: {', '.join(f'{path.stat().st_size:,} bytes' for path in paths)}"
    except Exception as e:
        return f"{name}: NOT MADE: {type(e).__name__}: {e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", default="", help="make the ledgers with this text in the name")
    parser.add_argument("--missing", action="store_true", help="make only those that are not there")
    parser.add_argument("--pack", nargs="+", type=Path, metavar="FOLDER", help="pack finished run folders as real-NAME")
    options = parser.parse_args()
    if options.pack:
        for folder in options.pack:
            print(pack(folder, f"real-{folder.name}"))
    else:
        there = set(names()) if options.missing else set()
        with ThreadPoolExecutor(3) as pool:
            wanted = [name for name in TABLE if options.text in name and name not in there]
            for line in pool.map(make, wanted):
                print(line, flush=True)
    print("\n".join(found := leaks()) or "no ledger names this machine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
