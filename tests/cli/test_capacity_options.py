import json
from pathlib import Path

import pytest

from tests.warm_command import run_command

PROFILE = """\
name: small
traffic:
  - {name: text, payload: {text: {tokens: 16..32}}, output: {max: 4}}
load:
  - {rate: 2/s, for: 5s}
"""
URL = ("--target", "http://127.0.0.1:9")
SLO = ("--slo", "ttft=2s")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "http://me:hunter2@127.0.0.1:9", *SLO), "--target contains a user or password"),
        (("--target", "ftp://127.0.0.1", *SLO), "is no URL: give one such as"),
        ((*URL, "--slo", "tttf=2s"), "--slo tttf: one of ttft, tpot, e2e, "),
        (URL, "no limits are known: give --slo"),
        (SLO, "a capacity search needs a server: give --target URL, or --launch COMMAND"),
        ((*SLO, "--launch", "'vllm serve"), "is a quote not closed?"),
        ((*SLO, "--launch", "vllm serve m --port 99999"), "the port in the command must be a number from 1 to 65535"),
        ((*URL, *SLO, "--goal", "120%"), "--goal: a share lies between 0% and 100%"),
        ((*URL, *SLO, "--goal", "100%"), "no number of requests proves 100 %"),
        ((*URL, *SLO, "--goal", "0%"), "--goal 0%: a share from 50% to 99.99% was expected"),
        ((*URL, *SLO, "--tolerance", "90%"), "--tolerance 90%: a share from 0.5% to 50% was expected"),
        ((*URL, *SLO, "--by", "concurrency", "--start", "1.5"), "whole users were expected"),
        ((*URL, *SLO, "--start", "9", "--max", "5"), "--start 9: a load up to --max 5 was expected"),
        ((*URL, *SLO, "--budget", "20s"), "--budget: at least 35 s was expected, as no step is shorter"),
        ((*URL, *SLO, "--at-least", "9", "--max", "9"), "--max 9: at least 10 was expected with --at-least 9"),
        ((*URL, *SLO, "--set", "load.0.law=ramp", "--set", "load.0.to=9/s"), "load.0: the law ramp changes the rate"),
        ((*URL, "--slo", "tpot=9ms", "--set", "traffic.0.stream=false"), "its answers are not streamed, so tpot"),
        ((*URL, *SLO, "--set", "traffic.0.expect=[rejected]"), "so they have no goodput"),
    ],
)
def test_capacity_refuses_a_mistake(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    (tmp_path / "small.yaml").write_text(PROFILE)
    done = run_command("capacity", "small.yaml", *options, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("pp_memory_pressure", "load.0: bursts have no constant load; a capacity search needs a phase with users or"),
        ("engine_pause", "attacks: the profile attacks the server (pause), and a capacity search does not; leave"),
        ("mtp_mm", "search sends that of one phase: --phase 0 sends step_ends; --phase 1 sends images, text, long"),
    ],
)
def test_capacity_refuses_a_shipped_profile_that_does_not_fit(tmp_path: Path, profile: str, message: str) -> None:
    done = run_command("capacity", profile, *URL, *SLO, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


TWO_PHASES = """\
name: two
traffic:
  - {name: text, payload: {text: {tokens: 16..32}}, output: {max: 4}}
  - {name: edge, payload: {text: {tokens: 16..32}}, output: {max: 4}, expect: [rejected]}
  - {name: unused, weight: 0, payload: {text: {tokens: 16..32}}, output: {max: 4}}
load:
  - {users: 1, requests: 4, traffic: [edge]}
  - {rate: 7/s, law: gamma, burstiness: 2, for: 5s, traffic: [text, unused]}
  - {burst: 4}
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--phase 0 sends edge; --phase 1 sends text"),
        (("--phase", "0"), "traffic.1 (edge): its requests need not succeed, so they have no goodput"),
        (("--phase", "2"), "load.2: bursts have no constant load"),
        (("--phase", "3"), "--phase 3: a number from 0 to 2 was expected"),
    ],
)
def test_capacity_refuses_a_phase(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    (tmp_path / "two.yaml").write_text(TWO_PHASES)
    done = run_command("capacity", "two.yaml", *URL, *SLO, *options, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not (tmp_path / "runs").exists()


def test_capacity_records_the_phase_whose_traffic_it_sends(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(TWO_PHASES)
    assert run_command("capacity", "two.yaml", *URL, *SLO, "--phase", "1", cwd=tmp_path).returncode == 4
    (file,) = tmp_path.glob("runs/*/capacity.json")
    found = json.loads(file.read_text())
    assert found["phase"] == {"number": 1, "of": 3, "traffic": ["text"]}
    assert found["wanted"]["phase"] == 1


def test_capacity_refuses_answers_without_tokens(tmp_path: Path) -> None:
    text = PROFILE.replace("output: {max: 4}", "endpoint: embeddings")
    (tmp_path / "small.yaml").write_text(text)
    done = run_command("capacity", "small.yaml", *URL, *SLO, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "its answers have no tokens, so ttft cannot be measured; use --slo e2e=" in done.stderr


def test_capacity_needs_a_profile_or_a_search_to_continue(tmp_path: Path) -> None:
    assert "a profile is missing" in run_command("capacity", *URL, cwd=tmp_path).stderr
    (tmp_path / "old").mkdir()
    assert "capacity.json cannot be read" in run_command("capacity", "--resume", "old", cwd=tmp_path).stderr
    (tmp_path / "old" / "capacity.json").write_text(json.dumps({"schema": 99}))
    assert "schema 1 was expected" in run_command("capacity", "--resume", "old", cwd=tmp_path).stderr
    (tmp_path / "old" / "capacity.json").write_text(json.dumps({"schema": 1, "ended": True}))
    assert (
        "--resume old: capacity.json has no target" in run_command("capacity", "--resume", "old", cwd=tmp_path).stderr
    )
    whole = dict.fromkeys(
        ("target", "server", "started", "seconds", "by", "goal", "slo_s", "answer", "steps", "failures")
    )
    (tmp_path / "old" / "capacity.json").write_text(json.dumps({"schema": 1, "ended": True, **whole}))
    assert "this search has ended" in run_command("capacity", "--resume", "old", cwd=tmp_path).stderr
    again = run_command("capacity", "--resume", "old", "--slo", "ttft=9s", cwd=tmp_path)
    assert "--resume continues a search with its own options: leave out --slo" in again.stderr


def test_capacity_does_not_record_a_secret_and_asks_for_it_again(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(PROFILE)
    secret, other = (f"http://127.0.0.1:{port}/sk-hunter2secret0123456789" for port in (9, 8))
    admin = ("--admin-url", "http://127.0.0.1:9/?api_key=sk-hunter2secret")
    extra = (*admin, "--out", "out", "--header", "X-Team=env:HOME")
    run_command("capacity", "small.yaml", "--target", secret, *extra, *SLO, cwd=tmp_path)
    (file,) = (tmp_path / "out").glob("*/capacity.json")
    assert "hunter2secret" not in file.read_text()
    wanted = json.loads(file.read_text())["wanted"]
    assert (wanted["target"], wanted["headers"]) == ("http://127.0.0.1:9/[redacted]", ["X-Team=env:HOME"])
    again = ("capacity", "--resume", str(file.parent), "--budget", "10m")
    assert "--target had a secret, which is not recorded; give it again" in run_command(*again, cwd=tmp_path).stderr
    assert "leave out --target" in run_command(*again, "--target", other, cwd=tmp_path).stderr
    both = run_command(*again, "--target", secret, *admin, cwd=tmp_path)
    assert "leave out" not in both.stderr, "the options given again are those of the search"
    assert "127.0.0.1:9/[redacted] was not healthy" in " ".join(both.stdout.split())
