"""`loadchaos doctor --prove`: real servers that die, live, do not start, and a script that cannot decide."""

import json
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.prove.conftest import Bench
from tests.invoking import output_of
from tests.waiting import listens, until
from tests.warm_command import ForkedCommand, outside_ci

VERSION = ("--version", "vllm==0.32.0")


def own_rows(text: str) -> dict[str, dict[str, Any]]:
    data = json.loads(text[text.index("{\n") : text.rindex("}") + 1])
    return {row["release"]: row for row in data["rows"] if row["advisory"] == "vllm-own-death"}


@pytest.mark.parametrize(
    ("mode", "script", "code", "state", "why"),
    [
        ("dies", "", 1, "present", ""),
        ("lives", "", 0, "absent", ""),
        ("lives", "2", 3, "unknown", "the script could not decide: "),
        ("dies of another failure", "", 3, "unknown", "and the log has cuda_oom_runtime, not cpu_generator_offset"),
        ("does not start", "", 3, "unknown", "no weights"),
    ],
)
def test_reproducer_is_present_absent_or_unknown(
    bench: Bench, mode: str, script: str, code: int, state: str, why: str
) -> None:
    bench.script(script)
    words = bench.words(
        "--launch", bench.launch(mode), "--version", "vllm==0.32.0", "--times", "2", "--wait-ready", "20s"
    )
    row = own_rows(output_of(*words, "--json", code=code))["0.32.0"]
    assert (row["state"], row["predicted"], row["launch"]) == (state, "unsettled", 1)
    assert why in row["why"]
    count = {"present": (2, 2), "absent": (0, 2)}.get(state, (0, 0))
    assert (row["reproduced"], row["tries"]) == count
    assert not listens(bench.port)


def test_script_with_a_traceback_decides_nothing(bench: Bench) -> None:
    """Python ends with 1, as a script that saw the bug, and no log has this failure."""
    own = bench.home / "own" / "vllm-own-death.toml"
    own.write_text(own.read_text().replace('failure = "cpu_generator_offset"\n', ""))
    bench.script("no number")
    row = own_rows(output_of(*bench.words("--launch", bench.launch("lives"), *VERSION, "--json"), code=3))["0.32.0"]
    assert row["state"] == "unknown"
    assert row["why"].startswith("the script could not decide: ValueError: ")


def test_cell_that_stayed_unknown_keeps_its_reason_and_is_tried_again(bench: Bench) -> None:
    bench.script("2")
    words = bench.words("--launch", bench.launch("lives"), *VERSION, "--times", "1", "--json")
    before = own_rows(output_of(*words, code=3))["0.32.0"]
    assert before["why"].startswith("the script could not decide")
    assert own_rows(output_of(*words, "--resume", "--dry-run"))["0.32.0"] == before
    bench.script("")
    assert own_rows(output_of(*words, "--resume"))["0.32.0"]["state"] == "absent"


def test_state_of_a_continued_proof_follows_from_its_counts(bench: Bench) -> None:
    words = bench.words("--launch", bench.launch("lives"), *VERSION, "--times", "1", "--json")
    output_of(*words, code=0)
    [file] = bench.home.glob("runs/*/doctor.json")
    file.write_text(file.read_text().replace('"tries":', '"state": "gone", "tries":'))
    assert own_rows(output_of(*words, "--resume"))["0.32.0"]["state"] == "absent"
    words[words.index("--times") + 1] = "2"
    assert own_rows(output_of(*words, "--resume", "--dry-run"))["0.32.0"]["state"] == "unknown"


def test_page_has_count_share_interval_and_what_doctor_said(bench: Bench) -> None:
    text = output_of(*bench.words("--launch", bench.launch("dies"), *VERSION, "--times", "1"), code=1)
    assert "present  own-death: 1 of 1 (p = 1.00, 95 % CI 0.21 to 1.00); doctor: unsettled" in text
    text = output_of(*bench.words("--launch", bench.launch("lives"), *VERSION, "--times", "1"))
    assert "absent   own-death: 0 of 1 (p < 0.95 at 95 %); doctor: unsettled" in text


def test_flag_that_is_missing_is_named_and_no_server_is_started(bench: Bench) -> None:
    words = bench.words("--launch", bench.launch("dies", "--max-num-seqs 64"), *VERSION)
    text = output_of(*words, code=3)
    line = "own-death: the launch command lacks --max-num-seqs <=8 (64 (the command))"
    assert line in " ".join(text.split())
    assert list(bench.home.glob("runs/*/servers")) == []


def test_fact_that_is_not_known_is_asked_for(bench: Bench) -> None:
    own = bench.home / "own" / "vllm-own-death.toml"
    own.write_text(own.read_text().replace('hardware = "cpu"', "multimodal = true"))
    text = output_of(*bench.words("--launch", bench.launch(), *VERSION, "--dry-run"))
    assert "lacks multimodal (not known: give --fact multimodal=VALUE)" in " ".join(text.split())


def test_reproducer_has_the_first_command_that_meets_it(bench: Bench) -> None:
    launches = ("--launch", bench.launch("lives", "--max-num-seqs 64"), "--launch", bench.launch("dies"))
    row = own_rows(output_of(*bench.words(*launches, *VERSION, "--times", "1"), "--json", code=1))["0.32.0"]
    assert (row["state"], row["launch"]) == ("present", 2)


def test_script_that_is_nowhere_is_told(bench: Bench) -> None:
    shutil.rmtree(bench.home / "own" / "own-death")
    text = output_of(*bench.words("--launch", bench.launch(), *VERSION), code=2)
    assert "vllm-own-death: its reproducer own-death/repro.py is not in" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("http://127.0.0.1:1", "--prove", "--launch", "vllm serve M"), "leave out the URL"),
        (("--prove",), "--prove needs a server of its own: --launch"),
        (("--launch", "vllm serve M"), "--launch needs --prove"),
        (("--releases", "1..2"), "--releases needs --prove"),
        (("--version", "vllm==0.32.0", "--dry-run"), "--dry-run needs --prove"),
        (("--prove", "--launch", "vllm serve M", "--releases", "1..2"), "--releases and --install belong together"),
        (("--prove", "--launch", "x", *VERSION, "--releases", "1..2", "--install", "y"), "leave one of them out"),
        (("--prove", "--launch", "vllm serve M", *VERSION, "--launch", "sglang serve M"), "the server is sglang"),
        (("--prove", "--launch", "vllm serve M --host 10.0.0.7", *VERSION), "is not on this machine"),
        (("--prove", "--launch", "no-such-program/vllm serve M"), "give --version ENGINE==VERSION"),
        (("--prove", "--launch", "vllm serve M", *VERSION, "--resume", "--out", "/none"), "start one without --resume"),
    ],
)  # fmt: skip
def test_mistake_is_told(words: tuple[str, ...], message: str) -> None:
    assert message in output_of("doctor", *words, code=2)


def test_releases_are_installed_measured_continued_and_scored(bench: Bench) -> None:
    """1.0 lives, 2.0 dies, 3.0 cannot be installed; the second call only adds what is missing."""
    program = shlex.quote(str(bench.program))
    install = f"test {{version}} != 3.0 && cp {program} {{venv}}/bin/vllm"
    launch = f"{{venv}}/bin/vllm serve M --port {bench.port} --max-num-seqs 8"
    words = bench.words(
        "--install", install, "--launch", launch, "--package", "fake", "--venvs", str(bench.home / "venvs"), "--times", "2",
        "--json",
    )  # fmt: skip
    page = output_of(*[word for word in words if word != "--json"], "--releases", "1.0,2.0", "--dry-run")
    assert "precision unknown (0 of 0): present, of those predicted to apply; " in " ".join(page.split())
    planned = own_rows(output_of(*words, "--releases", "1.0,2.0", "--dry-run", "--resume"))
    assert {r: (row["predicted"], row["state"]) for r, row in planned.items()} == {
        "1.0": ("unsettled", "not run"),
        "2.0": ("applies", "not run"),
    }
    own = bench.home / "own" / "vllm-own-death.toml"
    own.write_text(own.read_text().replace("==2.0", "==1.0"))  # later knowledge does not change a prediction
    text = output_of(*words, "--releases", "1.0,2.0,3.0", "--resume", code=1)
    rows = own_rows(text)
    assert {r: (row["predicted"], row["state"], row["tries"]) for r, row in rows.items()} == {
        "1.0": ("unsettled", "absent", 2),
        "2.0": ("applies", "present", 1),
        "3.0": ("unsettled", "unknown", 0),
    }
    assert {r: row["proved"] for r, row in rows.items()} == {"1.0": False, "2.0": True, "3.0": False}
    assert rows["3.0"]["why"].startswith("it cannot be installed: ")
    assert json.loads(text[text.index("{\n") : text.rindex("}") + 1])["score"] == {
        "right": 0, "applies": 0, "present": 0, "seen": 1, "left_open": 0,
    }  # fmt: skip
    again = output_of(*words, "--releases", "1.0,2.0", "--resume", code=1)
    assert own_rows(again)["2.0"] == rows["2.0"]
    assert "2.0 own-death: reproduced" not in again


def test_interrupted_proof_leaves_no_server_and_is_continued(bench: Bench) -> None:
    bench.script("asleep")
    words = bench.words("--launch", bench.launch("dies"), *VERSION, "--times", "1")
    outputs = [bench.home / name for name in ("stdout", "stderr")]
    for output in outputs:
        output.touch()
    command = ForkedCommand(*words, cwd=bench.home, env=outside_ci(), output=(str(outputs[0]), str(outputs[1])))
    until(lambda: listens(bench.port) and list(bench.home.glob("runs/*/servers/*/*/01/server.log")) != [])
    command.send_signal(signal.SIGINT)
    assert command.wait(60) == 130
    assert "not run  own-death: not reached; doctor: unsettled" in outputs[0].read_text()
    assert "interrupted; continue with: loadchaos " in outputs[1].read_text()
    assert not listens(bench.port)
    bench.script("")
    assert own_rows(output_of(*words, "--resume", "--json", code=1))["0.32.0"]["state"] == "present"
    assert len(list(Path(bench.home / "runs").iterdir())) == 1
