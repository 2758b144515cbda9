"""Data flows one way: the design's table of which room may import which; a wrong arrow fails with file and line."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "loadchaos"
LEAVES = {"model", "nouns", "errors", "units", "stats", "redact", "shipped", "draws", "trust", "brief", "progress"}
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(LEAVES, LEAVES),
    "compact": set(),
    "ledger": {"compact"},
    "plan": set(),
    "wire": set(),
    "dialects": set(),
    "judge": set(),
    "sim": set(),
    "signatures": set(),
    "images": set(),
    "payloads": {"dialects", "images"},
    "behaviours": {"wire"},
    "attacks": {"wire", "dialects"},
    "watch": {"compact", "wire", "dialects"},
    "launch": {"wire", "dialects", "gpus"},
    "gpus": set(),
    "keeper": {"ledger", "wire", "dialects"},  # it writes server.log, which belongs to the run folder
    "tokenizer": set(),
    "asker": {"tokenizer"},
    "counters": {"asker", "tokenizer"},
    "measure": {"asker", "counters", "tokenizer"},
    "media": {"asker", "counters", "measure"},
    "calibrate": {"asker", "measure", "media", "dialects"},
    "configuration": {"asker"},
    "counting": {"asker", "counters", "tokenizer"},
    "resume": {"ledger", "plan"},
    "options": {"asker", "attacks", "patient", "plan", "resume", "tokenizer", "watch"},
    "checkpoint": {"ledger"},
    "room": {"compact", "plan"},
    "gate": {"attacks", "patient", "plan", "record"},
    "voice": set(),
    "launch_alone": {"asker", "calibrate", "launch", "ledger", "preflight"},
    "fit": {"asker", "dialects", "payloads", "plan", "wire"},
    "prepare": {
        "attacks", "calibrate", "configuration", "dialects", "needs", "options", "patient", "plan", "preflight", "record",
        "room",
    },
    "needs": {"asker", "calibrate", "counting", "fit", "lengths", "plan", "preflight", "tokenizer"},
    "preflight": {"asker", "dialects"},
    "lengths": {"asker", "dialects"},
    "probe": {"calibrate", "configuration", "dialects", "lengths", "payloads", "plan"},
    "record": {"ledger"},
    "children": {"ledger"},
    "session": {"children", "ledger"},
    "commands": {"attacks", "ledger", "patient", "record"},
    "demo": set(),
    "shelves": {"plan", "payloads", "behaviours", "dialects", "sim"},
    "bodies": {"ledger", "plan", "payloads", "shelves"},  # like `users`, it makes requests of a plan
    "logfiles": set(),
    "error_answers": {"dialects", "judge", "wire"},
    "patient": {"asker", "attacks", "dialects", "judge", "launch", "plan", "record", "sim", "watch"},
    "users": {"compact", "ledger", "plan", "payloads", "behaviours", "room", "shelves", "wire", "dialects"},
    "locustfile": {"webui", "users", "ledger", "plan", "payloads", "behaviours", "wire", "dialects"},
    "learn": {"attacks", "calibrate", "needs", "plan", "shelves", "tokenizer"},
    "webui": {"ledger", "webguard"},
    "webguard": set(),
    "tell": {"ledger"},
    "follow": {"ledger", "judge", "tell"},
    "haste": set(),
    "idle": set(),
    "assembly": {"options"},
    "troubles": set(),
    "conclude": {"ledger", "judge", "tell"},
    "run": {
        "assembly", "attacks", "bodies", "checkpoint", "children", "commands", "conclude", "gate", "haste", "idle", "ledger",
        "options", "patient", "plan", "prepare", "record", "room", "session", "troubles", "voice",
    },
    "cockpit": {"options", "plan", "run", "session"},
    "soak": {"ledger", "plan", "tell"},
}  # fmt: skip
# Lazily: see test_help_imports_nothing_heavy.
EVERYTHING = {
    "cli",
    "cli_common",
    "cli_images",
    "cli_launch",
    "cli_logs",
    "cli_profiles",
    "cli_resume",
    "cli_runs",
    "cli_sim",
    "cli_soak",
    "cli_stack",
    "cli_worker",
    "__main__",
}
ONLY_THESE_IMPORT_LOCUST = {"users", "locustfile"}


def room_of(path: Path) -> str:
    """`loadchaos/judge/states.py` -> `judge`; `loadchaos/run.py` -> `run`."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> list[tuple[int, str]]:
    """Every absolute module a file imports, anywhere in it, with the line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_what_the_table_allows(path: Path) -> None:
    room = room_of(path)
    if room in EVERYTHING:
        return
    assert room in MAY_IMPORT, f"{path}: the table has no room {room!r}: add it to the design first"
    allowed = MAY_IMPORT[room] | LEAVES | {room}
    for line, module in imports(path):
        if module.startswith("loadchaos."):
            target = module.split(".")[1]
            if target == "__version__":
                continue
            assert target in allowed, f"{path}:{line}: {room} may not import {target}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_users_and_locustfile_import_locust_or_gevent(path: Path) -> None:
    for line, module in imports(path):
        if module.split(".")[0] in {"locust", "gevent"}:
            assert room_of(path) in ONLY_THESE_IMPORT_LOCUST, f"{path}:{line}: imports {module}"


def test_a_wrong_arrow_would_be_seen(tmp_path: Path) -> None:
    wrong = tmp_path / "x.py"
    wrong.write_text("def f():\n    from loadchaos.judge import verdict\n")
    assert imports(wrong) == [(2, "loadchaos.judge.verdict")]
    assert "judge" not in MAY_IMPORT["watch"] | LEAVES
