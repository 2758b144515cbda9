import json
import re
import tomllib
from pathlib import Path

import pytest

from docs import advisories, compatibility, doctor, tables
from loadchaos.chaos.toxics import TOXICS
from loadchaos.core.attack_names import ATTACK_KINDS

PAGES = sorted(page for page in tables.FOLDER.rglob("*.md") if "<!-- table:" in page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_of_a_page_are_current(page: Path) -> None:
    text = page.read_text()
    assert tables.current(text) == text, "run: make docs"


def test_tables_stand_in_one_page_each() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert sorted(re.findall(r"<!-- table: ([a-z ]+) -->", text)) == sorted(tables.TABLES)


def test_tables_of_attacks_have_every_kind_and_fault() -> None:
    page = (tables.FOLDER / "attacks.md").read_text()
    assert [name for name in (*ATTACK_KINDS, *TOXICS) if f"\n| `{name}` | " not in page] == []


def test_table_of_another_state_of_the_code_is_replaced() -> None:
    text = "before\n<!-- table: attack kinds -->\n| old |\n<!-- end -->\nafter\n"
    new = tables.current(text)
    assert "| old |" not in new
    assert new.startswith("before\n") and new.endswith("<!-- end -->\nafter\n")


def test_page_of_predictions_is_that_of_the_measurements() -> None:
    page = doctor.page()
    assert (doctor.FOLDER / "doctor.md").read_text() == page, "run: make docs"
    assert "| all | " in page


def test_compatibility_page_is_that_of_the_measurements() -> None:
    results = json.loads((tables.FOLDER / "compatibility.json").read_text())
    assert (tables.FOLDER / "compatibility.md").read_text() == compatibility.page(results), "run: make docs"
    assert all(f"\n## {result['title']}\n" in compatibility.page(results) for result in results.values())


def test_advisories_page_is_that_of_the_files() -> None:
    assert advisories.FILE.read_text() == advisories.page(), "run: make docs"


def test_each_dependency_has_a_line_with_what_it_is_for() -> None:
    project = tomllib.loads((tables.FOLDER.parent / "pyproject.toml").read_text())["project"]
    needed = [re.split("[<>=]", line)[0] for line in project["dependencies"]]
    page = (tables.FOLDER.parent / "CONTRIBUTING.md").read_text()
    table = page.partition("\n## Dependencies\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| ([a-z0-9.-]+) \| [0-9.]+ \| .", table, re.MULTILINE)) == sorted(needed)
