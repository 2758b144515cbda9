"""Any value in a profile or a run folder gives one line or a verdict: no bug of ours, and no better verdict."""

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
from tests.report.made_up_run import write_run

ODD: list[Any] = [
    None, True, -1, 0.5, 1e308, float("inf"),
    10**19, -(10**40), "", "x" * 3000, "\0", "\u202e", "8..4", "1e9s", "1000000000/s", [],
    [[1]], [None], {}, {"a": {"b": [1]}}, ["x", "y", "z"], [[0, 1], [2, 3]],
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
    parent[last] = copy.deepcopy(rng.choice(ODD))
    return value


def ends_in_order(*words: object) -> int:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code != INTERNAL_ERROR, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_profile_with_any_value_is_checked_and_explained(seed: int, tmp_path: Path) -> None:
    rng, yaml, file = random.Random(seed), YAML(typ="safe"), tmp_path / "x.yaml"
    shipped = [yaml.load(resources.profile(name).read_text()) for name in resources.profiles()]
    for _ in range(100):
        with file.open("w") as out:
            yaml.dump(spoil(copy.deepcopy(rng.choice(shipped)), rng), out)
        ends_in_order("check", file)
        ends_in_order("explain", file)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_run_folder_with_any_value_gets_no_better_verdict(seed: int, tmp_path: Path) -> None:
    rng, folder = random.Random(seed), write_run(tmp_path / "run", seconds=4, death_s=3)
    files = [folder.events, folder.metrics, folder.server_index, *folder.request_files()]
    kept = {file: file.read_bytes() for file in files}
    for _ in range(40):
        file = rng.choice(files)
        lines = kept[file].splitlines()
        n = rng.randrange(len(lines))
        lines[n] = json.dumps(spoil(json.loads(lines[n]), rng)).encode()
        file.write_bytes(b"\n".join(lines) + b"\n")
        assert ends_in_order("judge", folder.path) in (1, 3)
        ends_in_order(rng.choice(["report", "replay"]), folder.path)
        file.write_bytes(kept[file])
