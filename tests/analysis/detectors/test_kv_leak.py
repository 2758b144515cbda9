from collections.abc import Mapping
from typing import Any

import pytest

from loadchaos.analysis.detectors.kv_leak import KvLeakDetector
from loadchaos.analysis.failure import Failure
from loadchaos.analysis.judge import Judge
from loadchaos.core.model import Terms
from tests.rows import S, checks, folded, judged, metrics_row


def metrics(at_s: float, running: float = 0, kv: float = 0.0, waiting: float = 0) -> Mapping[str, Any]:
    values = {"requests_running": running, "requests_waiting": waiting, "kv_usage_ratio": kv}
    return metrics_row(at_s, values)


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


def facts_row(dialect: str, **more: Any) -> Mapping[str, Any]:
    facts = {"base_url": "http://x", "admin_url": "http://x", "dialect": dialect, **more}
    return {"row": "facts", "at_ns": 0, "facts": facts}


def detector(given: list[Mapping[str, Any]], dialect: str = "vllm", **facts: Any) -> KvLeakDetector:
    return folded(KvLeakDetector(), [facts_row(dialect, **facts), *given])


def notes(fed: KvLeakDetector) -> list[str]:
    return [found for found in fed.finish() if isinstance(found, str)]


def test_kv_leak_check_passes_for_an_idle_server() -> None:
    fed = detector(rows())
    assert fed.leaks() == {}
    (found,) = checks(fed)
    assert (found.verdict, found.actual) == ("pass", "0 requests")


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({"running": 2}, ("lost_requests_held", "2 requests still in the server")),
        ({"kv": 0.2}, ("kv_leak", "19.0% of the KV cache held by no request")),
    ],
)
def test_kv_leak_reports_held_requests_and_blocks(given: dict[str, Any], held: tuple[str, str]) -> None:
    fed = detector(rows(**given))
    assert fed.leaks() == {"server": held}
    assert [found.id for found in fed.finish() if isinstance(found, Failure)] == [held[0]]
    (found,) = checks(fed)
    assert found.verdict == "fail"


@pytest.mark.parametrize("idle_s", [9, 13, 14.5])
def test_kv_leak_leaves_out_readings_beside_our_questions(idle_s: float) -> None:
    asked = {"row": "question", "at_ns": 16 * S, "sent_ns": int(14.8 * S), "when": "after"}
    fed = detector([*rows(at_s=idle_s), metrics(15, 1, 0.02), asked, metrics(16.5, 1, 0.02)])
    assert fed.leaks() == {}


def test_kv_leak_before_our_questions_is_a_leak() -> None:
    asked = {"row": "question", "at_ns": 16 * S, "sent_ns": int(14.8 * S), "when": "after"}
    fed = detector([*rows(running=2), metrics(15, 3, 0.02), asked])
    assert fed.leaks() == {"server": ("lost_requests_held", "2 requests still in the server")}


def test_kv_leak_is_not_judged_without_aborts_or_too_soon() -> None:
    assert checks(detector(rows(outcome="ok", running=2))) == []
    others = {"row": "preflight", "at_ns": 0, "name": "others", "ok": False, "text": ""}
    assert detector([others, *rows(running=2)]).leaks() == {}
    assert detector(rows(running=2, at_s=11)).leaks() == {}
    assert detector(rows(running=2), "lmdeploy").leaks() == {}, "its gauges may be ten seconds old"
    assert detector(rows(running=2, at_s=22), "lmdeploy").leaks() != {}
    assert detector(rows(kv=0.5, at_s=22), "lmdeploy").leaks() == {}, "its gauge may count what a cache keeps"


def knowing(*known: Mapping[str, Any], kv: float, dialect: str) -> tuple[dict[str, tuple[str, str]], str]:
    """Leaks and check text of a server with 1,000 KV blocks."""
    fed = detector([*known, *rows(kv=kv, at_s=22)], dialect, kv_blocks=1000)
    (found,) = checks(fed)
    return fed.leaks(), found.actual


def flags(text: str) -> Mapping[str, Any]:
    return {"row": "configuration", "at_ns": 0, "flags": text, "settings": {}, "system": {}}


@pytest.mark.parametrize(("blocks", "leaks"), [(0, False), (2, False), (3, True), (19, True)])
def test_kv_leak_of_a_few_blocks_is_found_in_any_cache(blocks: int, leaks: bool) -> None:
    found, actual = knowing(kv=0.01 + blocks / 1000, dialect="vllm")
    assert ("server" in found) == leaks
    if leaks:
        assert found["server"] == (
            "kv_leak",
            f"{blocks / 1000:.1%} of the KV cache ({blocks} blocks) held by no request",
        )
    assert actual == (f"server: {found['server'][1]}" if leaks else "0 requests")


UNCACHED = flags("PytorchEngineConfig(block_size=64, enable_prefix_caching=False, device_type='cuda')")
CACHED = flags("PytorchEngineConfig(block_size=64, enable_prefix_caching=True, device_type='cuda')")
COMMAND = ["lmdeploy", "serve", "api_server", "/models/m"]


def started(*command: str) -> Mapping[str, Any]:
    return {"row": "launch", "what": "start", "at_ns": 0, "replica": "server", "command": list(command)}


@pytest.mark.parametrize("known", [[UNCACHED], [started(*COMMAND)], [started("bash", "serve.sh"), UNCACHED]])
def test_kv_leak_is_judged_for_an_lmdeploy_without_prefix_cache(known: list[Mapping[str, Any]]) -> None:
    assert knowing(*known, kv=0.01, dialect="lmdeploy") == ({}, "0 requests")
    found, _ = knowing(*known, kv=0.05, dialect="lmdeploy")
    assert found == {"server": ("kv_leak", "4.0% of the KV cache (40 blocks) held by no request")}


@pytest.mark.parametrize(
    ("dialect", "known", "why"),
    [
        ("lmdeploy", [CACHED], "a prefix cache keeps blocks, and the gauge counts them"),
        ("lmdeploy", [started(*COMMAND, "--enable-prefix-caching")], "a prefix cache keeps blocks"),
        ("lmdeploy", [started("bash", "serve.sh")], "a prefix cache may keep blocks"),
        ("sglang", [], "no gauge that drops when the server is idle"),
    ],
)
def test_kv_leak_check_says_why_kv_use_was_not_checked(dialect: str, known: list[Mapping[str, Any]], why: str) -> None:
    found, actual = knowing(*known, kv=0.5, dialect=dialect)
    assert found == {}
    assert actual.startswith(f"0 requests; KV use not checked: {why}")


def test_kv_leak_reference_is_the_idle_use_else_the_least() -> None:
    after = [run("load_begin", 2), *request("aborted"), run("load_end", 10), metrics(13, kv=0.2)]
    asked = [metrics(0.6, running=1, kv=0.3), metrics(1, running=1, kv=0.4)]
    assert "server" in detector([metrics(0.5, kv=0.01), *asked, *after]).leaks()
    assert "server" in detector([*asked, metrics(1.5, kv=0.01), *after]).leaks()
    assert detector([*asked, *after]).leaks() == {}
    assert "server" in detector([metrics(0.5, running=1, kv=0.1), *asked, *after]).leaks()
    (found,) = checks(detector(after))
    assert found.actual == "0 requests; KV use not checked: not read before the load"
    launched = detector([started("vllm", "serve", "m"), *after])
    assert "server" in launched.leaks(), "a server just launched holds nothing"


def test_kv_leak_note_for_a_server_without_metrics() -> None:
    unknown = "unknown whether the server released everything after clients disconnected: "
    blind = [r for r in rows() if r["row"] != "metrics"]
    assert notes(detector(blind)) == [unknown + "no metrics"]
    assert notes(detector(rows()[:-1])) == [unknown + "no metrics were read after the load"]
    others = {"row": "preflight", "at_ns": 0, "name": "others", "ok": False, "text": ""}
    assert notes(detector([others, *rows()])) == [unknown + "other clients used the server"]
    assert notes(detector(rows())) == []
    died = {"row": "state", "at_ns": 9 * S, "replica": "server", "to": "dead"}
    assert notes(detector([*rows()[:-2], died, rows()[-2]])) == [], "a death is told already"
    assert notes(detector([r for r in rows(outcome="ok") if r["row"] != "metrics"])) == []
    assert judged(Terms("p"), [facts_row("openai"), *blind])["notes"] == [unknown + "no metrics"]


def test_kv_leak_reference_is_dropped_after_a_restart() -> None:
    given = rows(kv=0.2)
    died = {"row": "state", "at_ns": 5 * S, "replica": "server", "to": "restarting"}
    assert detector([*given[:4], died, *given[4:]]).leaks() == {}


def test_kv_leak_is_a_failure_of_the_run() -> None:
    judge = folded(Judge(Terms("p")), [facts_row("vllm"), *rows(running=2)])
    verdict = judge.verdict().to_json()
    assert [f["id"] for f in verdict["failures"]] == ["lost_requests_held"]
    assert "2 requests still in the server after clients disconnected" in verdict["failures"][0]["title"]
    assert verdict["verdict"] == "fail"
    assert [f["id"] for f in judge.verdict().to_json()["failures"]] == ["lost_requests_held"], "and only once"


def test_kv_leak_during_and_after_the_load_is_one_failure() -> None:
    judge = Judge(Terms("p"))
    idle = {"row": "heartbeat", "file": "requests-0", "in_flight": 0}
    for row in [facts_row("vllm"), *rows()[:-1]]:
        judge.fold(row)
    for second in range(11, 60):
        judge.fold({**idle, "at_ns": second * S})
        judge.fold(metrics(second, running=2))
    failures = judge.verdict().to_json()["failures"]
    assert [(f["id"], f["count"]) for f in failures] == [("lost_requests_held", 1)]


@pytest.mark.parametrize(("counted_s", "leaks"), [(2, False), (40, True)])
def test_kv_leak_is_not_read_from_a_page_that_stands_still(counted_s: float, leaks: bool) -> None:
    def page(at_s: float) -> Mapping[str, Any]:
        values = {"requests_running": 3, "generation_tokens_total": 7 if at_s < counted_s else 9}
        return metrics_row(at_s, values)

    load = [*request("aborted"), page(4), *request("ok", 40), page(41), run("load_end", 42), page(70)]
    fed = detector([page(1), run("load_begin", 2), *load])
    assert bool(fed.leaks()) is leaks
    assert [found.verdict for found in checks(fed)] == (["fail"] if leaks else [])
    assert ("the metrics did not change while requests were answered" in " ".join(notes(fed))) is not leaks
