"""Failed starts of real servers: exit code 4, and one line with the cause and what to change."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from scripts.real.startup_failures import ROOT, Mistake, faults, mistakes, start, warm

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
VLLM, OLD_VLLM, LMDEPLOY = "vllm-0.32.0", "vllm-0.22.1", "lmdeploy-0.18.0"
FEW = ("model-path-wrong", "option-unknown", "tool-parser-unknown", "port-in-use")
Started = Callable[[str], Sequence[str]]


@pytest.fixture(scope="module")
def started() -> Iterator[Started]:
    kept: dict[str, Sequence[str]] = {}
    with contextlib.ExitStack() as open_:

        def words(server: str) -> Sequence[str]:
            if not (ROOT / server).is_dir():
                pytest.skip(f"{server} is not installed in {ROOT}: scripts/real/install.sh {server}")
            if server not in kept:
                open_.close()
                kept.clear()
                kept[server] = open_.enter_context(warm(server))
            return kept[server]

        yield words


def quick(server: str) -> list[Mistake]:
    return [m for m in mistakes(server) if m.quick]


CASES = [
    *((VLLM, m) for m in quick(VLLM)),
    *((OLD_VLLM, m) for m in quick(OLD_VLLM)),
    *((LMDEPLOY, m) for m in mistakes(LMDEPLOY) if m.name in FEW),
]


@pytest.mark.parametrize(("server", "mistake"), CASES, ids=[f"{server}-{m.name}" for server, m in CASES])
def test_failed_start_is_named_in_one_line(server: str, mistake: Mistake, started: Started, tmp_path: Path) -> None:
    result = start(server, mistake, tmp_path, limit_s=300, before=started(server))
    assert faults(result, mistake) == [], result.output


@pytest.mark.parametrize("server", [VLLM, LMDEPLOY])
def test_same_start_without_the_mistake_works(server: str, started: Started, tmp_path: Path) -> None:
    mistake = next(m for m in mistakes(server) if m.name == "model-path-wrong")
    result = start(server, mistake, tmp_path, right=True, limit_s=400, before=started(server))
    assert faults(result, mistake, right=True) == [], result.output
