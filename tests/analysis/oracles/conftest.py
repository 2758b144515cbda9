"""Hand-made `question` rows of one server, whose logprobs move a little."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from loadchaos.analysis.failure import Failure
from loadchaos.analysis.oracles import Oracle
from loadchaos.analysis.verdict.model import CheckResult
from tests.rows import S


class Questions:
    """Feeds questions to one oracle; `calibrated` asks the reference prompts first."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self._numbers = itertools.count(1)

    def ask(
        self, text: str, *, part: str, prompt: str = "p", gaps: float | list[float] | None = 4.0, **more: Any
    ) -> None:
        """Feed one answer whose tokens are its words."""
        n = next(self._numbers)
        words = text.split()
        row: dict[str, Any] = {
            "row": "question", "at_ns": n * S, "sent_ns": n * S - S // 2, "n": n, "group": 0, "part": part,
            "kind": "copy", "when": "load", "role": "", "model": "m", "prompt": prompt, "hash": prompt, "expected": "",
            "status": 200, "text": text, "error": "", "finish": "stop",
        }  # fmt: skip
        if gaps is not None:
            row |= {"tokens": words, "gaps": gaps if isinstance(gaps, list) else [gaps] * len(words)}
        self.oracle.fold({**row, **more})

    def calibrate(self, *, moved: float = 0.02, gaps: bool = True, text: str = "") -> None:
        """Three reference prompts, alone and busy, whose gaps move by `moved`."""
        text = text or " ".join(f"t{i}" for i in range(60))
        for prompt in ("r1", "r2", "r3"):
            for when, shift in (("idle", 0.0), ("idle", 0.0), ("busy", moved)):
                gap = 4.0 + shift if gaps else None
                self.ask(text, part="reference", prompt=prompt, when=when, gaps=gap)

    def found(self) -> list[Failure]:
        return self.oracle.poll(0)

    def check(self) -> CheckResult:
        (found,) = [f for f in self.oracle.finish() if isinstance(f, CheckResult)]
        return found


MakeQuestions = Callable[[type[Oracle]], Questions]


@pytest.fixture
def questions() -> MakeQuestions:
    def make(kind: type[Oracle]) -> Questions:
        return Questions(kind())

    return make
