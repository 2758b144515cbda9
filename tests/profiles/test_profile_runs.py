"""Shipped profiles: with the planted bug, without it, without proof.

These are real runs of `loadchaos run` against the embedded server, shortened by --set; each takes seconds.
"""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from loadchaos.campaigns.replay import bodies
from loadchaos.campaigns.replay.from_run import trace_of_run
from loadchaos.core.ledger.folder import RunFolder
from tests.schemas import validate
from tests.warm_command import run_command

ROOT = Path(__file__).parent.parent.parent
FAST = "target.embedded.flags.speed=6"


def run(folder: Path, name: str, *overrides: str) -> tuple[int, dict[str, Any], str]:
    sets = [arg for o in overrides for arg in ("--set", o)]
    argv = ["run", str(ROOT / "profiles" / f"{name}.yaml"), "--embedded", "--no-live", "--exporter-port", "0", *sets]
    done = run_command(*argv, cwd=folder, NO_COLOR="1")
    assert "Traceback" not in done.stderr, done.stderr
    (path,) = folder.glob("runs/*/verdict.json")
    verdict = json.loads(path.read_text())
    validate(verdict)
    assert verdict["exit_code"] == done.returncode
    assert verdict["target"]["kind"] == "embedded"
    assert "mbedded server" in done.stdout
    return done.returncode, verdict, done.stdout


PLANTED = [
    ("mtp_mm", "encoder_cache_miss", "engine_death"),
    ("mm_chunked_prefill", "mm_placeholder_mismatch", "engine_death"),
    ("lmdeploy_kv_capacity", "lmdeploy_input_length_error", "request"),
    ("pp_memory_pressure", "cuda_illegal_memory_access", "engine_death"),
    ("near_max_len", "index_oob_indexkernel", "engine_death"),
    ("mm_cache", "mm_cache_desync_request", "request"),
]


@pytest.fixture(scope="module")
def planted_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Path, tuple[int, dict[str, Any], str]]]:
    """Runs a profile with its planted bug once, for all tests: (folder, run)."""

    @cache
    def planted(name: str) -> tuple[Path, tuple[int, dict[str, Any], str]]:
        folder = tmp_path_factory.mktemp(name)
        return folder, run(folder, name, *FASTER.get(name, []))

    return planted


FASTER = {
    "lmdeploy_kv_capacity": [FAST],
    "mm_cache": [FAST, "load.1.requests=1"],
    "near_max_len": ["target.embedded.flags.speed=20"],
}


def test_demo_prints_time_in_flight_lost_and_upstream_issue(planted_run: Callable[[str], Any]) -> None:
    _, (_, verdict, text) = planted_run("mtp_mm")
    (failure,) = verdict["failures"]
    assert any("38551" in str(known) for known in failure["known"])
    assert failure["in_flight_at_death"] >= 10
    assert failure["lost_requests"] >= failure["in_flight_at_death"]
    for expected in ("in flight", "lost", "vllm/issues/38551", "what to do", "incident", "report.html"):
        assert expected in text


@pytest.mark.parametrize(
    ("name", "failure_id", "severity"),
    [pytest.param(*row, marks=() if row[0] in ("mtp_mm", "near_max_len") else pytest.mark.slow) for row in PLANTED],
)
def test_profile_finds_its_planted_bug(
    name: str, failure_id: str, severity: str, planted_run: Callable[[str], Any]
) -> None:
    folder, (code, verdict, text) = planted_run(name)
    assert (code, verdict["verdict"]) == (1, "fail")
    # A question before the load may meet the bug, too; that is told apart.
    (failure,) = [f for f in verdict["failures"] if not f.get("before_load")]
    assert {f["id"] for f in verdict["failures"]} == {failure_id}
    assert (failure["id"], failure["severity"], failure["attribution"]) == (failure_id, severity, "server")
    assert failure["evidence"]["source"] == "server.log"
    log = next((folder / "runs").glob("*/server.log")).read_text().splitlines()
    assert failure["evidence"]["text"].split(" [")[0][:40] in log[failure["evidence"]["line"] - 1]
    incident = next((folder / "runs").glob(f"*/incidents/{failure['incident'].removeprefix('incidents/')}/incident.md"))
    first_words = re.split(r"[;_*`]", failure["remedy"])[0]  # the page escapes what Markdown would interpret
    assert first_words[:40] in incident.read_text()
    assert failure_id in text.splitlines()[0]


SHORT: dict[str, list[str]] = {
    "mtp_mm": [FAST, "load.1.rounds=1", "exposure.at_least=60"],
    "mm_chunked_prefill": [FAST, "load.0.repeat=1"],
    "lmdeploy_kv_capacity": [FAST, "load.1.requests=60"],
    "pp_memory_pressure": ["load.0.repeat=1", "exposure.at_least=100"],
    "near_max_len": ["target.embedded.flags.speed=20", "load.1.requests=75"],
    "mm_cache": [FAST, "load.0.requests=20", "load.1.requests=60", "exposure.at_least=50"],
}


@pytest.mark.parametrize(
    "name", [pytest.param(row[0], marks=() if row[0] == "near_max_len" else pytest.mark.slow) for row in PLANTED]
)
def test_profile_without_the_bug_passes_with_its_statistical_strength(name: str, tmp_path: Path) -> None:
    code, verdict, text = run(tmp_path, name, "target.embedded.defects=[]", *SHORT[name])
    assert (code, verdict["verdict"], verdict["failures"]) == (0, "pass", []), text
    assert "Crash rate < " in verdict["worth"]
    assert verdict["worth"] in " ".join(text.split())


@pytest.mark.parametrize(
    "defect",
    ["encoder_pop_before_draft", "encoder_free_on_speculated", "encoder_free_on_scheduled"],
)
@pytest.mark.slow
def test_encoder_cache_bugs_need_no_attack(defect: str, tmp_path: Path) -> None:
    code, verdict, _ = run(tmp_path, "mtp_mm", f"target.embedded.defects=[{defect}]", "attacks=[]", "requires=[]")
    assert code == 1
    assert [f["id"] for f in verdict["failures"]] == ["encoder_cache_miss"]


@pytest.mark.slow
def test_image_at_the_end_of_a_step_kills_within_the_first_phase_of_mtp_mm(tmp_path: Path) -> None:
    code, verdict, _ = run(tmp_path, "mtp_mm", "target.embedded.defects=[encoder_skipped_at_step_end]")
    assert code == 1
    assert [f["id"] for f in verdict["failures"] if not f.get("before_load")] == ["encoder_cache_miss"]
    assert sum(verdict["outcomes"].values()) <= 20, "one prompt for each number of tokens before the image"


TEXT_ONLY = "traffic=[{name: text, payload: {text: {tokens: 32..64}}, output: {max: 16}}]"
PROVED_NOTHING = [
    "target.embedded.flags.num_speculative_tokens=0",
    "target.embedded.defects=[]",
    "attacks=[]",
    TEXT_ONLY,
    FAST,
    "load=[{users: 80, requests: 200}]",
]


@pytest.mark.slow
def test_verdict_is_unknown_for_a_run_that_proved_nothing(tmp_path: Path) -> None:
    """No drafts, no images, no attack through the development endpoints, too little exposure: each has its check."""
    code, verdict, text = run(tmp_path, "mtp_mm", *PROVED_NOTHING)
    assert (code, verdict["verdict"]) == (3, "unknown"), text
    unknown = {c["name"]: c["actual"] for c in verdict["checks"] if c["verdict"] == "unknown"}
    unknown.pop("alone_vs_load", None)  # on a busy machine so short a load ends before its first question
    assert set(unknown) == {
        "preflight requires",
        "requires images",
        "requires speculative_decoding",
        "requires development_endpoints",
        "exposure",
    }
    assert "0 requests with images answered" in unknown["requires images"]
    assert "no drafts" in unknown["requires speculative_decoding"]
    assert "no attack through them succeeded" in unknown["requires development_endpoints"]


def test_smoke_passes_on_a_healthy_server(tmp_path: Path) -> None:
    code, verdict, _ = run(tmp_path, "smoke", "load.0.for=2s", "load.1.for=4s")
    assert (code, verdict["verdict"]) == (0, "pass")


def test_agentic_passes_and_its_bodies_are_built_again_from_the_ledger(tmp_path: Path) -> None:
    code, verdict, text = run(tmp_path, "agentic", "load.0.requests=8", "target.embedded.flags.speed=20")
    assert (code, verdict["verdict"]) == (0, "pass"), text
    sessions = verdict["sessions"]
    assert (sessions["sessions"], sessions["finished"], sessions["turns_lost"]) == (8, 8, 0)
    assert sessions["turns"] == sessions["planned_turns"] > 16
    assert sessions["tool_calls"] > 0
    assert "8 sessions: 8 finished; " in " ".join(text.split())
    (folder,) = tmp_path.glob("runs/*")
    trace = bodies.stored(trace_of_run(RunFolder(folder)), tmp_path / "trace")
    assert len(trace.sends) == sessions["requests"] == sum(verdict["outcomes"].values())
    later = [json.loads(trace.body_file(s).read_bytes()) for s in trace.sends if s.after and s.body]
    assert any(m["role"] == "tool" for body in later for m in body["messages"])


HOSTILE = ("load.0.requests=66", "load.1.requests=8", FAST)


def test_hostile_profile_reports_two_failures(tmp_path: Path) -> None:
    code, verdict, _ = run(tmp_path, "hostile", *HOSTILE)
    assert code == 1
    assert {f["id"] for f in verdict["failures"]} == {"image_pixel_limit", "data_url_not_base64"}
    assert verdict["outcomes"]["rejected"] > 10


@pytest.mark.slow  # as long as the one above, and the same but for the verdict
def test_hostile_profile_passes_with_both_failures_accepted(tmp_path: Path) -> None:
    known = [{"id": i, "because": "known", "until": "2100-01-01"} for i in ("image_pixel_limit", "data_url_not_base64")]
    code, verdict, _ = run(tmp_path, "hostile", f"accept={json.dumps(known)}", *HOSTILE)
    assert (code, verdict["verdict"]) == (0, "pass")
