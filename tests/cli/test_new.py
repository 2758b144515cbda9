from pathlib import Path

import pytest

from loadchaos.load.registry import full_registry
from loadchaos.profile.profile import Profile, load
from loadchaos.profile.steps import steps
from tests.invoking import output_of


def new(path: Path, *words: str) -> Profile:
    output_of("new", path, *words)
    output_of("check", path)
    return load(path, full_registry())


def test_new_profile_of_options_has_comments_and_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "my load.yaml"
    profile = new(
        path, "--rate", "5", "--num-prompts", "40", "--random-input-len", "64", "--goodput", "ttft:2000", "tpot:50"
    )
    assert (profile.name, profile.slo and profile.slo.limits_s()) == ("my_load", {"ttft": 2.0, "tpot": 0.05})
    assert len(list(steps(profile, 0))) == 40
    assert "goodput >= 95%" in profile.expect
    assert profile.target.embedded is not None
    lines = path.read_text().splitlines()
    more = [line.removeprefix("# ") for line in lines[lines.index("# More that a profile can have:") + 1 :]]
    path.write_text("\n".join([*lines, *more]))
    assert load(path, full_registry()).attacks, "the examples in comments are valid, too"
    assert sum(line.lstrip().startswith("#") for line in lines) > 12
    assert all(len(line) <= 140 for line in lines if str(tmp_path) not in line)


@pytest.mark.parametrize("dataset", ["random", "random-mm", "prefix_repetition"])
def test_new_profile_of_each_data_set_is_valid(dataset: str, tmp_path: Path) -> None:
    profile = new(tmp_path / "x.yaml", "--concurrency", "4", "--duration", "5m", "--dataset-name", dataset)
    assert profile.load[0].slots == 4


def test_new_prints_with_a_dash_and_writes_nothing() -> None:
    assert "name: new" in output_of("new", "-", "--rate", "5", "--num-prompts", "40")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "what load? Give options such as --rate 5"),
        (["--rate", "5"], "how long?"),
        (["--rate", "inf", "--concurrency", "8", "--num-prompts", "60", "--duration", "2s"], "give one of them"),
        (["--concurrency", "8", "--num-prompts", "60", "--duration", "2s"], "give one of them"),
        (["--rate", "5", "--num-prompts", "5", "--expect", "latency < 5"], "expect.6: unknown figure 'latency'"),
    ],
)
def test_new_refuses_what_would_be_no_profile(words: list[str], text: str, tmp_path: Path) -> None:
    assert text in output_of("new", tmp_path / "x.yaml", *words, code=2)
    assert not (tmp_path / "x.yaml").exists()


def test_new_overwrites_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("mine")
    output_of("new", path, "--rate", "5", "--num-prompts", "5", code=2)
    assert path.read_text() == "mine"
