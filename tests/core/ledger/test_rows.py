"""Row types: complete, equal to docs/ledger.md and to rows of a real run."""

import json
from pathlib import Path
from typing import assert_type

import pytest

from docs import ledger_page
from loadchaos.core.ledger import rows
from loadchaos.core.ledger.row_check import fits_completely
from loadchaos.load.worker.clock_sync import TIMES
from tests.core.ledger.row_check import problems
from tests.warm_command import run_command

ROOT = Path(__file__).parents[3]
PROFILE = {
    "name": "rows",
    "about": "writes most kinds of row in a few seconds",
    "target": {"embedded": {"dialect": "vllm", "era": "0.18"}},
    "traffic": [
        {"name": "text", "payload": {"text": {"tokens": "16..32"}}, "output": {"max": 8}},
        {
            "name": "long",
            "payload": {"text": {"tokens": 16}},
            "output": {"exact": 64},
            "behaviour": {"abort": {"at_token": 4}},
        },
    ],
    "load": [{"rate": "20/s", "law": "constant", "for": "3s", "max_in_flight": 1}],
    "attacks": [{"admin": "reset_prefix_cache", "every": "1s"}, {"process": "sigstop", "every": "2s", "for": "200ms"}],
    "watch": {"canary": {"every": "1s"}},
    "limits": {"first_byte": "10s", "between_bytes": "5s", "total": "20s"},
}
EXPECTED = {
    "header", "begin", "end", "missed", "heartbeat", "phase", "load", "run", "probe", "state", "attack", "facts",
    "configuration", "launch", "process", "preflight", "locust", "canary", "metrics", "page", "lines", "exporter",
}  # fmt: skip


def test_ledger_page_is_docs_ledger_md() -> None:
    assert (ROOT / "docs" / "ledger.md").read_text() == ledger_page.page(), "docs/ledger.md is stale: make docs"


@pytest.mark.parametrize("kind", rows.KINDS.values(), ids=list(rows.KINDS))
def test_row_type_explains_every_field_and_names_its_writer(kind: type) -> None:
    assert all(one.meaning for one in rows.fields_of(kind))
    units = {
        "_ns": ("ns", "ns, moment", "ns since 1970"),
        "_s": ("s",),
        "_bytes": ("bytes",),
        "_us": ("µs before at_ns",),
    }
    for one in rows.fields_of(kind):
        for end, allowed in units.items():
            assert not one.name.endswith(end) or one.unit in allowed, one
    words = (kind.__doc__ or "").replace(",", " ").split()
    modules = [word.rstrip(".") for word in words if word.rstrip(".").endswith(".py")]
    assert modules, "no writer is named"
    assert all((ROOT / "loadchaos" / name).is_file() for name in modules if "/" in name), modules


def test_row_types_are_in_the_table_of_files() -> None:
    listed = {kind for file in rows.FILES for kind in file.rows}
    assert set(rows.KINDS.values()) - listed == {rows.HeaderRow, rows.LogRow}


def test_row_tag_narrows_the_union() -> None:
    def outcome(row: rows.AnyRow) -> str:
        if row["row"] == "end":
            assert_type(row, rows.EndRow)
            return row["outcome"]
        return ""

    assert outcome(rows.as_typed({"row": "end", "outcome": "ok"})) == "ok"


def test_clock_translates_every_moment_of_worker_rows_and_no_length_of_time() -> None:
    tokens = {"first_token_ns", "first_answer_ns", "last_token_ns"}
    assert {"at_ns", "due_ns", "sent_ns", "first_byte_ns", "last_byte_ns", *tokens} == TIMES


def test_row_check_finds_undeclared_missing_and_wrong_fields() -> None:
    good = {"row": "gate", "at_ns": 1, "open": True, "why": ""}
    assert problems(good) == []
    assert problems({**good, "more": 1}) == ["gate.more: not declared"]
    assert problems({"row": "gate", "at_ns": 1, "open": True}) == ["gate.why: missing"]
    assert "gate.open" in problems({**good, "open": 1})[0]
    assert problems({"row": "nonsense"})


def test_run_writes_only_declared_fields_of_declared_types(tmp_path: Path) -> None:
    profile = tmp_path / "rows.yaml"
    profile.write_text(json.dumps(PROFILE))
    done = run_command("run", str(profile), "--embedded", "--no-live", cwd=tmp_path)
    assert (tmp_path / "runs").is_dir(), done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    written = set()
    for path in [*folder.glob("*.jsonl"), *folder.glob("watch/logs/*.jsonl")]:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            assert problems(row) == [], f"{path.name}: {line}"
            assert fits_completely(row), f"{path.name}: {line}"
            written.add(row["row"])
    assert written >= EXPECTED
