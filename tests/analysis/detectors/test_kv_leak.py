"""A server that keeps what its clients have left is told so; one that forgot, or was not looked at, is not."""

from collections.abc import Mapping
from typing import Any

import pytest

from loadchaos.analysis.detectors.kv_leak import KvLeakDetector
from loadchaos.analysis.judge import Judge
from loadchaos.core.model import Facts, Terms

S = 1_000_000_000


def metrics(at_s: float, running: float = 0, kv: float = 0.0, waiting: float = 0) -> Mapping[str, Any]:
    values = {"requests_running": running, "requests_waiting": waiting, "kv_usage_ratio": kv}
    return {"row": "metrics", "at_ns": int(at_s * S), "replica": "server", "engine": "0", "values": values}


def run(what: str, at_s: float) -> Mapping[str, Any]:
    return {"row": "run", "at_ns": int(at_s * S), "what": what}


def request(outcome: str, at_s: float = 3) -> list[Mapping[str, Any]]:
    common = {"id": f"r{at_s}", "step": 1, "traffic": "t", "phase": 0, "at_ns": int(at_s * S), "due_ns": int(at_s * S)}
    return [{"row": "begin", **common}, {"row": "end", **common, "outcome": outcome, "expect": ["ok"]}]


def rows(
    *, outcome: str = "aborted", running: float = 0, kv: float = 0.01, at_s: float = 13
) -> list[Mapping[str, Any]]:
    before = [metrics(1, kv=0.01), run("load_begin", 2), *request(outcome), metrics(4, 3, 0.3), run("load_end", 10)]
    return [*before, metrics(at_s, running, kv)]


def folded(given: list[Mapping[str, Any]]) -> KvLeakDetector:
    idle = KvLeakDetector()
    for row in given:
        idle.feed(row)
    return idle


def test_a_server_at_rest_passes() -> None:
    idle = folded(rows())
    assert idle.leaks("vllm") == {}
    check = idle.check("vllm")
    assert check is not None
    assert (check.verdict, check.actual) == ("pass", "0 requests")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"running": 2}, ("lost_requests_held", "2 requests are still there")),
        ({"kv": 0.2}, ("kv_leak", "19.0% of the KV cache is held by no request")),
    ],
)
def test_what_is_kept_is_told(given: dict[str, Any], told: tuple[str, str]) -> None:
    idle = folded(rows(**given))
    assert idle.leaks("vllm") == {"server": told}
    check = idle.check("vllm")
    assert check is not None
    assert check.verdict == "fail"


def test_nothing_is_said_without_hang_ups_among_others_or_too_soon() -> None:
    assert folded(rows(outcome="ok", running=2)).check("vllm") is None
    others = {"row": "preflight", "at_ns": 0, "name": "others", "ok": False, "text": ""}
    assert folded([others, *rows(running=2)]).leaks("vllm") == {}
    assert folded(rows(running=2, at_s=11)).leaks("vllm") == {}
    assert folded(rows(running=2)).leaks("lmdeploy") == {}, "its gauges may be ten seconds old"
    assert folded(rows(running=2, at_s=22)).leaks("lmdeploy") != {}
    assert folded(rows(kv=0.5, at_s=22)).leaks("lmdeploy") == {}, "its gauge may count what a cache keeps"


def knowing(*known: Mapping[str, Any], kv: float, dialect: str) -> tuple[dict[str, tuple[str, str]], str]:
    """What leaks, and what the check says, of a server of 1,000 blocks that told this of itself before the load."""
    facts = {"row": "facts", "at_ns": 0, "facts": {"kv_blocks": 1000}}
    idle = folded([*known, facts, *rows(kv=kv, at_s=22)])
    check = idle.check(dialect)
    assert check is not None
    return idle.leaks(dialect), check.actual


def flags(text: str) -> Mapping[str, Any]:
    return {"row": "configuration", "at_ns": 0, "flags": text, "settings": {}, "system": {}}


@pytest.mark.parametrize(("blocks", "leaks"), [(0, False), (2, False), (3, True), (19, True)])
def test_a_few_blocks_are_a_leak_however_large_the_cache(blocks: int, leaks: bool) -> None:
    found, told = knowing(kv=0.01 + blocks / 1000, dialect="vllm")
    assert ("server" in found) == leaks
    if leaks:
        assert found["server"] == (
            "kv_leak",
            f"{blocks / 1000:.1%} of the KV cache ({blocks} blocks) is held by no request",
        )
    assert told == (f"server: {found['server'][1]}" if leaks else "0 requests")


UNCACHED = flags("PytorchEngineConfig(block_size=64, enable_prefix_caching=False, device_type='cuda')")
CACHED = flags("PytorchEngineConfig(block_size=64, enable_prefix_caching=True, device_type='cuda')")
COMMAND = ["lmdeploy", "serve", "api_server", "/models/m"]


def started(*command: str) -> Mapping[str, Any]:
    return {"row": "launch", "what": "start", "at_ns": 0, "replica": "server", "command": list(command)}


@pytest.mark.parametrize("known", [[UNCACHED], [started(*COMMAND)], [started("bash", "serve.sh"), UNCACHED]])
def test_the_kv_of_an_lmdeploy_without_a_prefix_cache_is_looked_at(known: list[Mapping[str, Any]]) -> None:
    assert knowing(*known, kv=0.01, dialect="lmdeploy") == ({}, "0 requests")
    found, _ = knowing(*known, kv=0.05, dialect="lmdeploy")
    assert found == {"server": ("kv_leak", "4.0% of the KV cache (40 blocks) is held by no request")}


@pytest.mark.parametrize(
    ("dialect", "known", "why"),
    [
        ("lmdeploy", [CACHED], "its prefix cache keeps blocks, and its gauge counts them"),
        ("lmdeploy", [started(*COMMAND, "--enable-prefix-caching")], "its prefix cache keeps blocks"),
        ("lmdeploy", [started("bash", "serve.sh")], "whether a prefix cache keeps blocks is not known"),
        ("sglang", [], "no gauge of it that goes back at rest"),
    ],
)
def test_kv_that_was_not_looked_at_is_said(dialect: str, known: list[Mapping[str, Any]], why: str) -> None:
    found, told = knowing(*known, kv=0.5, dialect=dialect)
    assert found == {}
    assert told.startswith(f"0 requests; KV use not looked at: {why}")


def test_rest_is_what_was_held_with_nothing_running_and_else_the_least_that_was_seen() -> None:
    after = [run("load_begin", 2), *request("aborted"), run("load_end", 10), metrics(13, kv=0.2)]
    asked = [metrics(0.6, running=1, kv=0.3), metrics(1, running=1, kv=0.4)]
    assert "server" in folded([metrics(0.5, kv=0.01), *asked, *after]).leaks("vllm")
    assert "server" in folded([*asked, metrics(1.5, kv=0.01), *after]).leaks("vllm")
    assert folded([*asked, *after]).leaks("vllm") == {}
    assert "server" in folded([metrics(0.5, running=1, kv=0.1), *asked, *after]).leaks("vllm")
    check = folded(after).check("vllm")
    assert check is not None
    assert check.actual == "0 requests; KV use not looked at: it was not read before the load"
    begun = folded([started("vllm", "serve", "m"), *after])
    assert "server" in begun.leaks("vllm"), "a server just begun holds nothing"


def test_a_server_that_could_not_be_looked_at_is_a_note() -> None:
    unknown = "whether the server came back to rest after clients hung up is not known: "
    blind = [r for r in rows() if r["row"] != "metrics"]
    assert folded(blind).notes() == [unknown + "no metrics"]
    assert folded(rows()[:-1]).notes() == [unknown + "nothing could be read after the load"]
    others = {"row": "preflight", "at_ns": 0, "name": "others", "ok": False, "text": ""}
    assert folded([others, *rows()]).notes() == [unknown + "others used the server"]
    assert folded(rows()).notes() == []
    died = {"row": "state", "at_ns": 9 * S, "replica": "server", "to": "dead"}
    assert folded([*rows()[:-2], died, rows()[-2]]).notes() == [], "a death is told already"
    assert folded([r for r in rows(outcome="ok") if r["row"] != "metrics"]).notes() == []
    judge = Judge(Terms("p"), Facts("http://x", "http://x", "openai"))
    for row in blind:
        judge.feed(row)
    assert judge.verdict()["notes"] == [unknown + "no metrics"]


def test_a_server_that_is_not_the_one_before_is_not_held_to_its_figures() -> None:
    given = rows(kv=0.2)
    died = {"row": "state", "at_ns": 5 * S, "replica": "server", "to": "restarting"}
    assert folded([*given[:4], died, *given[4:]]).leaks("vllm") == {}


def test_a_leak_is_a_failure_of_the_run() -> None:
    judge = Judge(Terms("p"), Facts("http://x", "http://x", "vllm"))
    for row in rows(running=2):
        judge.feed(row)
    verdict = judge.verdict()
    assert [f["id"] for f in verdict["failures"]] == ["lost_requests_held"]
    assert "2 requests are still there" in verdict["failures"][0]["title"]
    assert verdict["verdict"] == "fail"
    assert [f["id"] for f in judge.verdict()["failures"]] == ["lost_requests_held"], "and only once"


def test_requests_held_while_the_load_runs_and_after_it_are_one_failure() -> None:
    judge = Judge(Terms("p"), Facts("http://x", "http://x", "vllm"))
    nobody = {"row": "heartbeat", "file": "requests-0", "in_flight": 0}
    for row in rows()[:-1]:
        judge.feed(row)
    for second in range(11, 60):
        judge.feed({**nobody, "at_ns": second * S})
        judge.feed(metrics(second, running=2))
    failures = judge.verdict()["failures"]
    assert [(f["id"], f["count"]) for f in failures] == [("lost_requests_held", 1)]
