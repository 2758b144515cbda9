"""Every shipped profile finds its planted bug by name, passes without it, and is unknown where nothing was proved.

These are real runs of `loadchaos run` against the embedded server, shortened by --set; each takes seconds.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).parent.parent.parent
SCHEMA = json.loads((ROOT / "schemas" / "verdict.json").read_text())
FAST = "target.embedded.flags.speed=6"


def run(folder: Path, name: str, *overrides: str) -> tuple[int, dict[str, Any], str]:
    """(exit code, verdict, what was printed) of one run of a shipped profile."""
    sets = [arg for o in overrides for arg in ("--set", o)]
    done = subprocess.run(
        [sys.executable, "-m", "loadchaos", "run", str(ROOT / "profiles" / f"{name}.yaml"), "--embedded", "--no-live",
         "--exporter-port", "0", *sets],
        cwd=folder, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    (path,) = folder.glob("runs/*/verdict.json")
    verdict = json.loads(path.read_text())
    jsonschema.validate(verdict, SCHEMA)
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
]


FASTER = {"lmdeploy_kv_capacity": [FAST], "near_max_len": ["target.embedded.flags.speed=20"]}


@pytest.mark.parametrize(("name", "failure_id", "severity"), PLANTED)
def test_it_finds_its_planted_bug(name: str, failure_id: str, severity: str, tmp_path: Path) -> None:
    code, verdict, text = run(tmp_path, name, *FASTER.get(name, []))
    assert (code, verdict["verdict"]) == (1, "fail")
    (failure,) = verdict["failures"]
    assert (failure["id"], failure["severity"], failure["attribution"]) == (failure_id, severity, "server")
    assert failure["evidence"]["source"] == "server.log"
    log = next((tmp_path / "runs").glob("*/server.log")).read_text().splitlines()
    assert failure["evidence"]["text"].split(" [")[0][:40] in log[failure["evidence"]["line"] - 1]
    incident = next((tmp_path / "runs").glob(f"*/incidents/001-{failure_id}/incident.md"))
    first_words = re.split(r"[;_*`]", failure["remedy"])[0]  # the page escapes what Markdown would eat
    assert first_words[:40] in incident.read_text()
    assert failure_id in text.splitlines()[0]


def test_the_demo_says_when_what_was_in_flight_how_many_were_lost_and_the_upstream_issue(tmp_path: Path) -> None:
    _, verdict, text = run(tmp_path, "mtp_mm")
    (failure,) = verdict["failures"]
    assert any("38551" in str(known) for known in failure["known"])
    assert failure["in_flight_at_death"] >= 10
    assert failure["lost_requests"] >= failure["in_flight_at_death"]
    for words in ("in flight", "lost", "vllm/issues/38551", "what to do", "incident", "report.html"):
        assert words in text


SHORT: dict[str, list[str]] = {
    "mtp_mm": [FAST, "load.0.rounds=1", "exposure.at_least=60"],
    "mm_chunked_prefill": [FAST, "load.0.repeat=1"],
    "lmdeploy_kv_capacity": [FAST],
    "pp_memory_pressure": ["load.0.repeat=1", "exposure.at_least=100"],
    "near_max_len": ["target.embedded.flags.speed=20"],
}


@pytest.mark.parametrize("name", [row[0] for row in PLANTED])
def test_without_the_bug_it_passes_and_says_what_that_is_worth(name: str, tmp_path: Path) -> None:
    code, verdict, text = run(tmp_path, name, "target.embedded.defects=[]", *SHORT[name])
    assert (code, verdict["verdict"], verdict["failures"]) == (0, "pass", []), text
    assert "Crash rate < " in verdict["worth"]
    assert verdict["worth"] in " ".join(text.split())


@pytest.mark.parametrize(
    "defect", ["encoder_pop_before_draft", "encoder_free_on_speculated", "encoder_free_on_scheduled"]
)
def test_the_encoder_cache_bugs_need_no_attack(defect: str, tmp_path: Path) -> None:
    code, verdict, _ = run(tmp_path, "mtp_mm", f"target.embedded.defects=[{defect}]", "attacks=[]", "requires=[]")
    assert code == 1
    assert [f["id"] for f in verdict["failures"]] == ["encoder_cache_miss"]


TEXT_ONLY = "traffic=[{name: text, payload: {text: {tokens: 32..64}}, output: {max: 16}}]"
ABSENT = [
    ("no drafts", "mtp_mm", ["target.embedded.flags.num_speculative_tokens=0", *SHORT["mtp_mm"]]),
    ("no images", "mtp_mm", [TEXT_ONLY, *SHORT["mtp_mm"]]),
    ("no attack through the development endpoints", "mtp_mm",
     ["attacks=[]", "target.embedded.defects=[]", *SHORT["mtp_mm"]]),
    ("too little exposure", "mtp_mm", [FAST, "load.0.rounds=1", "target.embedded.defects=[]"]),
]  # fmt: skip


@pytest.mark.parametrize(("what", "name", "overrides"), ABSENT, ids=[row[0] for row in ABSENT])
def test_a_run_that_proved_nothing_is_unknown(what: str, name: str, overrides: list[str], tmp_path: Path) -> None:
    code, verdict, text = run(tmp_path, name, *overrides)
    assert (code, verdict["verdict"]) == (3, "unknown"), text
    assert [c for c in verdict["checks"] if c["verdict"] == "unknown"]


def test_smoke_passes_on_a_healthy_server(tmp_path: Path) -> None:
    code, verdict, _ = run(tmp_path, "smoke", "load.0.for=2s", "load.1.for=4s")
    assert (code, verdict["verdict"]) == (0, "pass")


def test_the_planted_bugs_are_those_the_profiles_name() -> None:
    """A defect renamed in the server would silently turn every pass above into nothing."""
    listed = subprocess.run(
        [sys.executable, "-m", "loadchaos", "profiles"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert {row[0] for row in PLANTED} | {"smoke"} <= {line.split()[0] for line in listed.splitlines()}


HOSTILE = ("load.0.requests=66", "load.1.requests=8", FAST)


def test_hostile_images_are_two_counts_by_name(tmp_path: Path) -> None:
    code, verdict, _ = run(tmp_path, "hostile", *HOSTILE)
    assert code == 1
    assert {f["id"] for f in verdict["failures"]} == {"image_pixel_limit", "data_url_not_base64"}
    assert verdict["outcomes"]["rejected"] > 10


@pytest.mark.slow  # as long as the one above, and the same but for the verdict
def test_hostile_images_pass_where_both_are_accepted_by_name(tmp_path: Path) -> None:
    known = [{"id": i, "because": "known", "until": "2100-01-01"} for i in ("image_pixel_limit", "data_url_not_base64")]
    code, verdict, _ = run(tmp_path, "hostile", f"accept={json.dumps(known)}", *HOSTILE)
    assert (code, verdict["verdict"]) == (0, "pass")
