"""The shipped advisories: each file is right, and what it refers to exists."""

from pathlib import Path

import pytest

from loadchaos.analysis.advisories import advisory
from loadchaos.analysis.advisories.advisory import ENGINES, Advisory, all_shipped, engine, reproducer_of
from loadchaos.analysis.advisories.advisory_file import AdvisoryError, read, read_folder
from loadchaos.analysis.classify.signature_file import load
from loadchaos.core.version_ranges import order

FOLDER = Path(advisory.__file__).parent
REPROS = Path(__file__).parents[3] / "docs/repros"
FILES = sorted(file for name in ENGINES for file in (FOLDER / name).glob("*.toml"))
SHIPPED = [one for name in ENGINES for one in all_shipped(name)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_shipped_advisory_is_right(file: Path) -> None:
    assert read(file) == advisory.shipped(file.stem)
    assert file.parent.name == read(file).engine


def test_shipped_advisories_are_many_and_of_known_failures() -> None:
    assert len(SHIPPED) >= 120
    signatures = {s.id for s in load().all}
    assert [a.id for a in SHIPPED if a.failure and a.failure not in signatures] == []


def test_every_reproducer_has_an_advisory_that_says_who_proved_it() -> None:
    named = {proof.reproducer for a in SHIPPED for e in (*a.affected, *a.unaffected) if (proof := e.proved) is not None}
    assert {folder.name for folder in REPROS.iterdir()} == named - {""}


def test_reproducer_is_known_by_its_failure_and_names_it() -> None:
    found = {a.failure: reproducer_of(a.engine, a.failure) for a in SHIPPED if a.failure and a.reproducers}
    assert found["cpu_generator_offset"] == "vllm-0.32.0-seeded-split-prefill"
    assert [
        f for f, name in found.items() if name is None or f"`{f}`" not in (REPROS / name / "README.md").read_text()
    ] == []
    assert reproducer_of("vllm", "") is None and reproducer_of("ollama", "x") is None


def test_every_advisory_has_a_source() -> None:
    assert [a.id for a in SHIPPED if not a.issues and not a.proofs] == []


@pytest.mark.parametrize("one", SHIPPED, ids=lambda one: one.id)
def test_advisory_does_not_contradict_itself(one: Advisory) -> None:
    for version in engine(one.engine).releases:
        bad = Advisory(id=one.id, severity=one.severity, affected=one.affected).has(version)
        good = Advisory(id=one.id, severity=one.severity, unaffected=one.unaffected, fixed=one.fixed).has(version)
        assert not (bad and good is False), version


def test_releases_of_an_engine_are_versions_in_order() -> None:
    for name in ENGINES:
        found = [order(release) for release in engine(name).releases]
        assert None not in found
        assert len(found) == len(set(found))


GOOD = """\
id = "vllm-1"
title = "it dies"
severity = "engine_death"

[when]
enable_prefix_caching = true

[[affected]]
versions = ">=0.30.0"
reported = "a/b#1"

[[affected]]
versions = "==0.22.1"
proved = { build = "b", date = "2026-11-01", tries = "1 of 1" }

[[cures]]
flag = "--no-enable-prefix-caching"
by = "a/b#1"
"""


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("title", "titel", ":2: titel: unknown key; did you mean title?"),
        ('"engine_death"', '"death"', ":3: severity: one of security, engine_death, "),
        ('"engine_death"', "3", ":3: severity: one of security"),
        ('"it dies"', "3", ":2: title: string was expected (got 3)"),
        ('"it dies"', '""', ":2: title: a title, or a failure that has one, was expected"),
        ('"vllm-1"', '"vllm-2"', ":1: id: the name of the file, 'vllm-1', was expected (got 'vllm-2')"),
        ('severity = "engine_death"\n', "", ": severity: this key is missing"),
        (
            "enable_prefix_caching",
            "enable_prefix_cache",
            ":6: when.enable_prefix_cache: an option of vllm or",
        ),
        (
            "caching = true",
            'caching = ">= 2"',
            ":6: when.enable_prefix_caching: a comparison such as '>=2' was expected",
        ),
        ("caching = true", "caching = { a = 1 }", ":6: when.enable_prefix_caching: "),
        ('">=0.30.0"', '"all"', ":9: affected[0].versions: a range such as "),
        ('reported = "a/b#1"\n', "", ":8: affected[0]: one of `reported` (a link) and `proved` (a table) was expected"),
        ("2026-11-01", "1 November", ":14: affected[1].proved.date: a date such as 2026-11-22 was expected"),
        ("tries = ", "trys = ", ":14: affected[1].proved.trys: unknown key; did you mean tries?"),
        ('by = "a/b#1"\n', "", ":16: cures[0].by: this key is missing"),
        ("flag = ", 'text = "x"\nflag = ', ":16: cures[0]: one of `flag` and `text` was expected"),
        ('id = "vllm-1"', "id = vllm-1", ":1: Invalid value"),
    ],
)
def test_mistake_has_file_line_key_and_the_expected_value(tmp_path: Path, old: str, new: str, mistake: str) -> None:
    file = tmp_path / "vllm-1.toml"
    file.write_text(GOOD)
    assert read(file).id == "vllm-1"
    file.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(AdvisoryError) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}{mistake}")


def test_folder_without_files_and_an_unknown_engine_are_mistakes(tmp_path: Path) -> None:
    with pytest.raises(AdvisoryError, match=r"no \*.toml file is there"):
        read_folder(tmp_path)
    (tmp_path / "vlm-1.toml").write_text(GOOD.replace("vllm-1", "vlm-1"))
    with pytest.raises(AdvisoryError, match="an engine and a name was expected"):
        read_folder(tmp_path)


def test_one_id_in_two_files_is_a_mistake(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "vllm-1.toml").write_text(GOOD)
    with pytest.raises(AdvisoryError, match="vllm-1 is in two files"):
        read_folder(tmp_path)
