import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.suite.selection import Selected, SuiteChoice, select
from loadchaos.campaigns.suite.session import SuiteRecord
from loadchaos.cli.profiles import profile_of
from loadchaos.core import exit_codes
from loadchaos.core.errors import OptionError
from loadchaos.core.model import Facts
from loadchaos.core.typed_json import from_json
from loadchaos.report.html import suite_page
from loadchaos.report.suite_result import ProfileRow, SuiteResult
from loadchaos.report.terminal import suite as suite_text
from loadchaos.run.probe import ProfileFit, profile_fit
from loadchaos.simulator.options import SimulatorSpec
from tests.embedded_server import EmbeddedServer
from tests.invoking import output_of

REMOTE = "http://192.0.2.1:8000"
FACTS = Facts(REMOTE, REMOTE, "vllm", "tiny", "0.32.0")
PROFILES = {name: profile_of(name, ()) for name in ("hostile", "prefix_cache", "smoke", "soak_nightly")}


def chosen(choice: SuiteChoice, **lacks: list[str]) -> dict[str, Selected]:
    fits = [ProfileFit(name, "", lacks.get(name, [])) for name in PROFILES]
    return {s.profile.name: s for s in select(PROFILES, fits, choice, REMOTE)}


def test_suite_runs_smoke_first_and_harmful_profiles_last() -> None:
    names = list(chosen(SuiteChoice()))
    assert (names[0], names[-1]) == ("smoke", "hostile")


def test_suite_leaves_out_what_is_not_authorised_not_fitting_or_scheduled() -> None:
    found = chosen(SuiteChoice(), prefix_cache=["prefix caching: start the server with --enable-prefix-caching"])
    assert {name: bool(s.reasons) for name, s in found.items()} == {
        "smoke": False, "prefix_cache": True, "hostile": True, "soak_nightly": True,
    }  # fmt: skip
    assert "--authorize 192.0.2.1:8000" in found["hostile"].reasons[0]
    assert "--enable-prefix-caching" in found["prefix_cache"].reasons[0]


def test_suite_attacks_only_the_authorised_address_or_its_own_server() -> None:
    assert chosen(SuiteChoice(authorized=("192.0.2.1:8001",)))["hostile"].reasons
    assert not chosen(SuiteChoice(authorized=("192.0.2.1:8000",)))["hostile"].reasons
    assert not chosen(SuiteChoice(authorized=None))["hostile"].reasons


@pytest.mark.parametrize(("capacity", "fits"), [(3200, True), (1_000_000, False), (None, True)])
def test_probe_fits_kv_pressure_to_servers_whose_kv_cache_it_can_fill(capacity: int | None, fits: bool) -> None:
    fit = profile_fit(profile_of("kv_pressure", ()), replace(FACTS, capacity_tokens=capacity), {})
    assert (not fit.lacks) == fits
    assert fits or "--num-gpu-blocks-override" in fit.lacks[0]


@pytest.mark.parametrize(("replicas", "fits"), [(0, False), (1, False), (2, True)])
def test_probe_fits_poison_pill_to_named_replicas(replicas: int, fits: bool) -> None:
    named = json.dumps([{"name": f"r{n}", "url": f"http://127.0.0.1:{8000 + n}"} for n in range(replicas)])
    fit = profile_fit(profile_of("poison_pill", [f"target.replicas={named}"]), replace(FACTS, max_model_len=4096), {})
    assert (not fit.lacks) == fits


def test_probe_fits_engine_pause_to_servers_with_sleep_mode() -> None:
    engine_pause = profile_of("engine_pause", ())
    assert not profile_fit(engine_pause, FACTS, {"sleep_mode": (True, "/server_info")}).lacks
    assert "--enable-sleep-mode" in profile_fit(engine_pause, FACTS, {"sleep_mode": (False, "/server_info")}).lacks[0]


@pytest.mark.parametrize(
    ("version", "lacks"),
    [("0.9 to 0.15", []), ("0.9.2", ["attack sleep: needs version 0.10.0 or later; this server is 0.9.2"])],
)
def test_probe_takes_a_range_of_versions_for_no_old_version(version: str, lacks: list[str]) -> None:
    sleeps = profile_of("smoke", ["attacks=[{admin: sleep, at: 1s}]"])
    assert profile_fit(sleeps, replace(FACTS, dialect="lmdeploy", version=version), {}).lacks == lacks


def test_suite_tells_a_mistake_in_set_as_it_was_typed() -> None:
    printed = output_of("suite", "http://127.0.0.1:9", "--set", "smoke:trafic.0=3", code=2)
    assert "--set smoke:trafic.0=3: trafic: unknown key; did you mean traffic?" in printed


def test_probe_says_what_can_harm_a_remote_server_and_how_to_allow_it() -> None:
    [note] = profile_fit(PROFILES["hostile"], FACTS, {}).notes
    assert note == (
        "can harm the server: the payload hostile_images of traffic hostile; can_kill: true of the profile "
        "(needs --authorize 192.0.2.1:8000)"
    )


def test_suite_takes_only_and_skip() -> None:
    assert set(chosen(SuiteChoice(only=["smoke", "hostile"], skip=["hostile"]))) == {"smoke"}
    with pytest.raises(OptionError, match="no profile 'smok'"):
        chosen(SuiteChoice(only=["smok"]))


@pytest.mark.parametrize(
    ("codes", "code"),
    [([], 3), ([0, 0], 0), ([0, 3], 3), ([3, 4, 0], 4), ([4, 2], 2), ([70, 4], 70), ([0, 1, 70], 1), ([1, 130], 130),
     ([143, 1], 143)],
)  # fmt: skip
def test_suite_exit_code_is_the_worst(codes: list[int], code: int) -> None:
    assert exit_codes.worst(codes) == code


def finished(name: str, seconds: float, code: int, **more: Any) -> ProfileRow:
    data = {"name": name, "about": f"about {name}", "state": "finished", "seconds": seconds, "exit_code": code, **more}
    return from_json(ProfileRow, {**data, "verdict": exit_codes.verdict_of(code), "run": "r-1", "requests": 7})


def recorded(folder: Path) -> SuiteRecord:
    record = SuiteRecord(Campaign(folder, lambda _: None), REMOTE, FACTS)
    for name, reasons in (("good", []), ("bad", []), ("open", []), ("foreign", ["images: the model takes none"])):
        record.plan(name, f"about {name}", reasons)
    record.begin("good")
    record.end(finished("good", 3.0, 0, worth="Crash rate < 1 %"))
    failure = {"id": "kv_leak", "title": "The <KV> cache leaks", "severity": "degraded", "count": 2, "remedy": "do"}
    record.end(finished("bad", 4.0, 1, failures=[failure]))
    record.begin("open")
    return record


def test_suite_files_hold_what_is_finished_while_a_run_goes_on(tmp_path: Path) -> None:
    recorded(tmp_path / "s")
    suite = json.loads((tmp_path / "s/suite.json").read_text())
    assert [row["state"] for row in suite["profiles"]] == ["finished", "finished", "running", "left out"]
    assert (suite["exit_code"], suite["ended"]) == (None, None)
    page = (tmp_path / "s/suite.html").read_text()
    assert "of 2 profiles 1 failed, 1 passed; 1 not finished; 1 left out" in page
    assert "The &lt;KV&gt; cache leaks" in page
    assert page.index(">bad<") < page.index(">good<"), "failures come first"


def test_resumed_suite_keeps_what_had_finished_and_refuses_another_server(tmp_path: Path) -> None:
    record = recorded(tmp_path)
    record.end(finished("open", 1.0, 130))
    before = from_json(SuiteResult, json.loads((tmp_path / "suite.json").read_text()))
    again, other = (SuiteRecord(Campaign(tmp_path, lambda _: None), url, FACTS) for url in (REMOTE, "http://other"))
    for name in ("good", "bad", "open", "new"):
        again.plan(name, f"about {name}", [])
    again.restore(before)
    assert [again.is_finished(name) for name in ("good", "bad", "open", "new")] == [True, True, False, False]
    assert again.result(ended=False).started == before.started
    with pytest.raises(OptionError, match="--resume: the suite was of"):
        other.restore(before)


def test_suite_text_has_verdicts_reasons_and_files(tmp_path: Path) -> None:
    record = recorded(tmp_path / "s")
    record.end(finished("open", 1.0, 3, unknown=["requires preemption: preemptions_total did not grow"]))
    text = suite_text.render(record.result(ended=True), tmp_path / "s", width=200)
    assert text.startswith("FAIL  suite  of 3 profiles 1 failed, 1 proved nothing, 1 passed; 1 left out (exit code 1)")
    for expected in ("kv_leak: The <KV> cache leaks", "preemptions_total did not grow", "images: the model takes none"):
        assert expected in text
    assert suite_page.render(record.result(ended=True)).count("FAIL") >= 1


def test_text_and_page_of_an_interrupted_suite_say_so(tmp_path: Path) -> None:
    record = recorded(tmp_path)
    record.end(finished("open", 1.0, 130))
    suite = record.result(ended=True)
    text, page = suite_text.render(suite, tmp_path, width=200), suite_page.render(suite)
    headline = "of 3 profiles 1 failed, 1 passed; interrupted in open; 1 left out"
    assert text.startswith(f"INTERRUPTED  suite  {headline} (exit code 130)")
    assert "  interrupted open " in text
    assert f'<span class="badge unknown">INTERRUPTED</span> {headline}' in page
    assert '<td class="l nb unknown strong">interrupted</td>' in page
    only = replace(suite, profiles=tuple(row for row in suite.profiles if row.name == "open"))
    assert suite_page.headline(only) == "of 1 profile none ended; interrupted in open"


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    flags: dict[str, object] = {"num_speculative_tokens": 0, "num_gpu_blocks": 1500}
    with EmbeddedServer.of(SimulatorSpec("vllm", "0.32", ("shared_block_freed",), flags)) as running:
        yield running


def suite_command(server: EmbeddedServer, *args: str) -> list[str]:
    short = ["smoke:load.0.for=1s", "smoke:load.1.for=6s"]
    sets = [part for text in short for part in ("--set", text)]
    return [
        sys.executable,
        "-m",
        "loadchaos",
        "suite",
        server.url,
        "--only",
        "smoke",
        "--only",
        "prefix_cache",
        *sets,
        *args,
    ]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_suite_finds_a_planted_bug_after_a_pass(server: EmbeddedServer, tmp_path: Path) -> None:
    done = subprocess.run(suite_command(server), cwd=tmp_path, capture_output=True, text=True, timeout=380)
    assert done.returncode == 1, done.stderr
    (folder,) = (tmp_path / "runs").glob("suite-*")
    suite = json.loads((folder / "suite.json").read_text())
    assert [(row["name"], row["verdict"]) for row in suite["profiles"]] == [("smoke", "pass"), ("prefix_cache", "fail")]
    assert suite["verdict"] == "fail"
    events = [(folder / row["run"] / "events.jsonl").read_text() for row in suite["profiles"]]
    assert ['"seed":0,' in events[0], '"seed":1,' in events[1]] == [True, True], "new prompts in each run"
    for row in suite["profiles"]:
        assert f'href="{row["run"]}/report.html"' in (folder / "suite.html").read_text()
        assert (folder / row["run"] / "report.html").is_file()
    assert "FAIL  suite  of 2 profiles 1 failed, 1 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_suite_keeps_what_was_finished_when_it_is_ended(
    number: signal.Signals, server: EmbeddedServer, tmp_path: Path
) -> None:
    argv = suite_command(server, "--set", "prefix_cache:load.0.requests=5000")
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        begin_s = time.monotonic()
        while not (found := list((tmp_path / "runs").glob("suite-*/prefix_cache-*/requests-*.jsonl"))):
            assert time.monotonic() - begin_s < 300
            time.sleep(0.2)
        time.sleep(2.0)
        os.kill(running.pid, number)
        code = running.wait(120)
    suite = json.loads((found[0].parent.parent / "suite.json").read_text())
    states = [(row["name"], row["state"], row.get("verdict")) for row in suite["profiles"]]
    assert states[0] == ("smoke", "finished", "pass")
    if number == signal.SIGINT:
        assert (code, suite["exit_code"]) == (130, 130)
        assert states[1][:2] == ("prefix_cache", "finished")
    else:
        assert (suite["exit_code"], states[1]) == (None, ("prefix_cache", "running", None))
