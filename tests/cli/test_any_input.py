"""Any value in a profile or a run folder, and any log, gives one line or a verdict: no bug of ours, no better verdict."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from loadchaos.cli.main import main
from loadchaos.core import resources
from loadchaos.core.exit_codes import INTERNAL_ERROR
from tests.crash_logs import CRASHES, log_text
from tests.fuzz import EACH, SEEDS, spoiled
from tests.report.made_up_run import write_run

ODD: list[Any] = [
    None, True, -1, 0.5, 1e308, float("inf"),
    10**19, -(10**40), "", "x" * 3000, "\0", "\u202e", "8..4", "1e9s", "1000000000/s", [],
    [[1]], [None], {}, {"a": {"b": [1]}}, ["x", "y", "z"], [[0, 1], [2, 3]],
]  # fmt: skip


ODD_KEYS = ["", "x", "-1", "0.5", "999999999", "\u00b2", "id", "at_ns"]
LOG_WORDS = [
    b"\n", b"\r\n", b"\r", b"\t", b"\0", b"\x1b[31m", b"\xff\xfe", b"\xe2\x80\xa8", b"{", b'{"log":"', b"[", b"\x1f\x8b\x08",
    b"Traceback (most recent call last):\n", b'  File "x.py", line 1, in f\n', b"(EngineCore_0 pid=1) ", b"| ",
    b"INFO 11-20 15:53:40 [x.py:1] ", b"2026-11-20T15:53:40Z stdout F ", b"2026-11-20T15:53:40Z stdout P ", b"prompt: '",
    b'"GET /health HTTP/1.1" 200 OK\n', b"RuntimeError: \n", b"99999999999999999999", b"time,message\n", b"1.2.3",
    b"inf", b"CUDA error: ", b"\xc2\xb2", b"1e999", b"BZh9", b"x" * 70_000, b"9" * 70_000, b" " * 70_000, b"/" * 70_000,
    b"a-" * 40_000,
]  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*at, key)
        yield from places(part, (*at, key))


def spoil(value: Any, rng: random.Random) -> Any:
    *way, last = rng.choice(list(places(value)))
    parent = value
    for key in way:
        parent = parent[key]
    if isinstance(parent, dict) and rng.random() < 0.2:
        parent[rng.choice(ODD_KEYS)] = parent.pop(last)
    else:
        parent[last] = copy.deepcopy(rng.choice(ODD))
    return value


def ends_in_order(*words: object) -> int:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code != INTERNAL_ERROR, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_profile_with_any_value_is_checked_and_explained(seed: int, tmp_path: Path) -> None:
    rng, yaml, file = random.Random(seed), YAML(typ="safe"), tmp_path / "x.yaml"
    shipped = [yaml.load(resources.profile(name).read_text()) for name in resources.profiles()]
    for _ in range(EACH):
        with file.open("w") as out:
            yaml.dump(spoil(copy.deepcopy(rng.choice(shipped)), rng), out)
        ends_in_order("check", file)
        ends_in_order("explain", file)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_run_folder_with_any_value_gets_no_better_verdict(seed: int, tmp_path: Path) -> None:
    rng, folder = random.Random(seed), write_run(tmp_path / "run", seconds=4, death_s=3)
    files = [folder.events, folder.metrics, folder.server_index, *folder.request_files()]
    kept = {file: file.read_bytes() for file in [*files, folder.server_log]}
    for n in range(EACH):
        file = rng.choice(files) if n % 8 else folder.server_log
        if file == folder.server_log:
            file.write_bytes(spoiled(kept[file], LOG_WORDS, rng))
        else:
            lines = kept[file].splitlines()
            at = rng.randrange(len(lines))
            lines[at] = json.dumps(spoil(json.loads(lines[at]), rng)).encode()
            file.write_bytes(b"\n".join(lines) + b"\n")
        assert ends_in_order("judge", folder.path) in (1, 3)
        ends_in_order(rng.choice(["report", "replay"]), folder.path)
        file.write_bytes(kept[file])


@pytest.mark.parametrize("seed", SEEDS)
def test_any_log_is_classified(seed: int, tmp_path: Path) -> None:
    rng, file, logs = random.Random(seed), tmp_path / "x.log", sorted(CRASHES.rglob("*.log"))
    for _ in range(EACH):
        file.write_bytes(spoiled(log_text(rng.choice(logs)).encode(), LOG_WORDS, rng))
        assert ends_in_order("classify", file) in (0, 1, 2)
