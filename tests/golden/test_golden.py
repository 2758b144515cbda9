import copy
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.golden.__main__ import main
from tests.golden.archive import ROOT, leaks, names, neutral
from tests.golden.compare import EXPECTED, compared, differences, settle
from tests.golden.outputs import GROUPS

BROAD = (
    "killed-tool", "profile-mtp_mm-bug", "profile-agentic", "goodput-warm-up", "bad-rows", "older-0.1", "capacity",
    "compare-slower",
)  # fmt: skip


@pytest.fixture(scope="module")
def differences_of() -> Iterator[Callable[[str], list[str]]]:
    """Compares a ledger in a process of its own, whose folder and environment may change."""
    with ProcessPoolExecutor(1, get_context("spawn"), settle) as pool:
        yield lambda name: pool.submit(compared, name).result()[2]


@pytest.mark.parametrize("name", BROAD)
def test_outputs_of_ledger_are_as_expected(name: str, differences_of: Callable[[str], list[str]]) -> None:
    assert differences_of(name) == []


def test_a_changed_figure_is_reported_with_its_place() -> None:
    expected = json.loads((EXPECTED / "killed-tool.json").read_text())
    actual = copy.deepcopy(expected)
    actual["verdict"]["outcomes"]["ok"] += 1
    del actual["junit"][-1]
    (first, second) = differences(expected, actual)
    assert first.startswith("junit: expected [")
    ok = expected["verdict"]["outcomes"]["ok"]
    assert second == f"verdict.outcomes.ok: expected {ok}, actual {ok + 1}"
    assert list(differences(expected, expected)) == []
    assert list(differences({"a": 1}, {"a": 1.0})) == ["a: expected 1, actual 1.0"]
    assert list(differences({"a": 1}, {})) == ["a: expected 1, actual (absent)"]


def test_command_fails_for_one_changed_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads((EXPECTED / "small-seed-2.json").read_text())
    found["verdict"]["outcomes"]["ok"] += 1
    (tmp_path / "small-seed-2.json").write_text(json.dumps(found))
    assert main(["--only", "small-seed-2", "--expected", str(tmp_path), "--processes", "1"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["small-seed-2: verdict.outcomes.ok: expected 21, actual 20", "1 of 1 differ"]


def test_every_ledger_has_an_expected_file_and_names_no_machine() -> None:
    assert {path.stem for path in EXPECTED.glob("*.json")} == {*names(), *GROUPS}
    assert leaks() == []
    assert max(path.stat().st_size for path in EXPECTED.iterdir()) < 140_000


def test_path_of_the_checkout_is_a_name_of_this_machine_and_its_parent_folder_is_none() -> None:
    made = neutral(f"{ROOT}/tests {ROOT.parent}/other {ROOT}-2/tests".encode()).decode()
    assert made.startswith("/srv/")
    assert "/other" in made
    assert made.endswith(f"/{ROOT.name}-2/tests")
