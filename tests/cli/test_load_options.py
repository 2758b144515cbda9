import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from loadchaos.cli.main import main
from loadchaos.core.model import DEFAULT_EXPECT

SHORT = ["--rate", "5", "--num-prompts", "20"]
AUDIO = ["--rate", "5", "--num-prompts", "5", "--endpoint", "transcriptions"]


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["run", *words])
    return done.exit_code, done.output


def printed(*words: str) -> Any:
    code, output = run(*words, "--print-profile")
    assert code == 0, output
    return YAML(typ="safe").load(output)


def test_run_options_make_a_profile_that_runs_again(tmp_path: Path) -> None:
    words = [*SHORT, "--random-input-len", "64", "--goodput", "ttft:2000", "tpot:50", "--temperature", "0.5"]
    code, output = run(*words, "--print-profile")
    assert code == 0, output
    path = tmp_path / "made.yaml"
    path.write_text(output)
    again = printed(str(path))
    assert again == YAML(typ="safe").load(output)
    assert again["slo"] == {"ttft": "2s", "tpot": "50ms"}
    assert again["traffic"][0]["payload"]["sampling"] == {"temperature": 0.5}


def test_goodput_words_end_at_the_next_option_or_profile() -> None:
    found = printed("--goodput", "ttft:1000", "e2el:5s", "smoke")
    assert (found["name"], found["slo"]) == ("smoke", {"ttft": "1s", "e2e": "5s"})


def test_run_options_take_set_too() -> None:
    assert printed(*SHORT, "--set", "load.0.law=constant")["load"][0]["law"] == "constant"


def test_expect_adds_to_the_expectations_of_a_profile_and_to_the_default_ones() -> None:
    for load in (["smoke"], SHORT):
        before = printed(*load).get("expect", DEFAULT_EXPECT)
        assert printed(*load, "--expect", "ttft_p99 <= 2s", "--expect", before[0])["expect"] == [
            *before,
            "ttft_p99 <= 2s",
        ]
        code, output = run(*load, "--expect", "ttftp99 <= 2s")
        assert (code, "--expect 'ttftp99 <= 2s': unknown figure" in output) == (2, True)


def test_backend_and_path_name_the_endpoint() -> None:
    for words in (["--backend", "openai"], ["--endpoint", "/v1/completions"], ["--endpoint", "completions"]):
        assert printed(*SHORT, *words)["traffic"][0]["endpoint"] == "completions"
    assert "output" not in printed(*SHORT, "--endpoint", "embeddings")["traffic"][0]


def test_endpoint_that_takes_no_text_gets_its_payload() -> None:
    for words in (["--endpoint", "transcriptions"], ["--backend", "openai-audio"]):
        (traffic,) = printed("--rate", "5", "--num-prompts", "5", *words)["traffic"]
        assert (traffic["endpoint"], traffic["payload"], traffic["output"]) == (
            "transcriptions",
            {"audio": {}},
            {"max": 128},
        )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["smoke", "--rate", "5"], "smoke has its own: change it with --set load.0.rate=5/s"),
        (["smoke", "--dataset-name", "random"], "--dataset-name describes a load without a profile"),
        ([*SHORT, "--extra-body", "[1]"], "--extra-body [1]: a JSON object"),
        ([*SHORT, "--extra-body", '{"top_k": 3}'], "top_k is set by sampling"),
        (SHORT, "no server: give --target URL"),
        ([], "a profile is missing"),
        (["--rate", "x", "--num-prompts", "5"], "--rate x: requests per second such as 20, 600/m or inf"),
        (["--rate", "0", "--num-prompts", "5"], "--rate 0"),
        ([*SHORT, "--dataset-name", "hf"], "nothing is downloaded"),
        (
            [*SHORT, "--dataset-name", "custom", "--dataset-path", __file__, "--backend", "openai"],
            "are sent as the file has them, messages to chat and prompts to completions; leave it out",
        ),
        ([*SHORT, "--goodput", "ttft:5", "ttft:7"], "--goodput ttft: given twice"),
        (
            [*SHORT, "--rate", "5", "--request-rate=6"],
            "--request-rate 6: the option is --rate, too, which was given as 5",
        ),
        (
            [*SHORT, "--target", "http://a:1", "--base-url", "http://b:1"],
            "two servers: --target http://a:1 and --target http://b:1; give one",
        ),
        ([*SHORT, "--backend", "openai", "--endpoint", "chat"], "--backend openai sends to completions"),
        ([*SHORT, "--backend", "tgi"], "--backend tgi: openai-chat"),
        ([*SHORT, "--endpoint", "completions", "--dataset-name", "random-mm"], "cannot carry images"),
        (
            [*AUDIO, "--random-input-len", "9"],
            "--random-input-len has no effect: the endpoint transcriptions takes audio",
        ),
        ([*AUDIO, "--ignore-eos"], "--ignore-eos has no effect: the endpoint transcriptions cannot force a length"),
        (["--num-prompts", "5", "--ramp-up-strategy", "exponential"], "--ramp-up-strategy exponential: linear was"),
        (["--num-prompts", "5", "--ramp-up-strategy", "linear"], "needs both --ramp-up-start-rps and"),
        (["--rps", "5"], "No such option '--rps'. Did you mean '--rate'?"),
        (["--requests", "5"], "Did you mean '--num-prompts'?"),
    ],
    ids=lambda o: o if isinstance(o, str) else "",
)
def test_run_options_that_contradict_are_refused_before_anything_is_sent(words: list[str], text: str) -> None:
    code, output = run(*words)
    assert code == 2, output
    assert text in output


@pytest.mark.parametrize(
    ("words", "duration_s"),
    [
        (["--rate", "inf", "--concurrency", "8", "--num-prompts", "60"], 2.0),
        (["--concurrency", "8", "--num-prompts", "60"], 2.0),
        (["--concurrency", "8"], None),
        (["--rate", "5", "--concurrency", "8", "--num-prompts", "60"], None),
    ],
)
def test_duration_that_the_phase_does_not_have_is_that_of_the_run(
    words: list[str], duration_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def keep(_loaded: Any, _profile: Any, options: Any, _resumed: Any) -> int:
        given.append(options["duration"])
        return 0

    monkeypatch.setattr(sys.modules["loadchaos.cli.run"], "_run", keep)
    assert run("--embedded", *words, "--duration", "2s")[0] == 0
    assert given == [duration_s]


def test_dry_run_tells_the_server_and_the_end_that_the_options_give() -> None:
    code, output = run("smoke", "--target", "127.0.0.1:8000/v1", "-t", "10s", "--dry-run")
    assert code == 0, output
    assert "Server\n  http://127.0.0.1:8000\n  if it dies" in output
    assert "the load ends after 10 s" in output
    assert "embedded" not in run("smoke", "--target", "127.0.0.1:8000", "--dry-run")[1]
    assert "the load ends after" not in run("smoke", "--dry-run")[1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--target", "htp://foo"], "--target 'htp://foo' is no URL"),
        (["-t", "0"], "--duration: more than 0 was expected"),
    ],
)
def test_dry_run_refuses_options_that_a_run_refuses(words: list[str], text: str) -> None:
    code, output = run("smoke", *words, "--dry-run")
    assert (code, text in output) == (2, True), output
