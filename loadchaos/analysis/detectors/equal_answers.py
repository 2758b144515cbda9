"""Detect a server that gives different prompts the same answer (`EqualAnswers`), or one of them the answer of an earlier
prompt with its id (`RepeatedAnswers`), by the hashes of texts and vectors in the end rows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.analysis.failure import Failure
from loadchaos.analysis.wrong_answer import WrongAnswer, wrong_failure
from loadchaos.core.ledger.rows import BeginRow, EndRow

_WINDOW = 50
_FEWEST = 16
_SHARE = 0.9
"""A model that begins each answer with the same phrase seldom gives so many whole answers alike."""
_MOST_IDS = 20_000
"""Newest ids of answers that are remembered."""
_MANY_SHARE = 0.1
"""Up to this share of ids with several texts, an id names one answer. Simple servers have one id for all answers."""


@dataclass
class _Answer:
    """The newest answer to a prompt."""

    hash: str
    request: str
    at_ns: int
    reported: bool = False
    prompt: str = ""


class _ByBody(Detector):
    """Knows the hash of the body of each request in flight."""

    def __init__(self) -> None:
        super().__init__()
        self._prompts: dict[str, str] = {}  # by request

    def on_begin(self, row: BeginRow) -> None:
        if (body := row.get("hash")) is not None:
            self._prompts[str(row["id"])] = body


class EqualAnswers(_ByBody):
    """Folds begin and ok end rows by traffic. Requests with the same body count once."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: defaultdict[str, dict[str, _Answer]] = defaultdict(dict)  # by traffic and hash of the body
        self._texts: dict[str, str] = {}  # begin of an answer that came again, by its hash

    def on_end(self, row: EndRow) -> None:
        request = str(row.get("id"))
        prompt, content = self._prompts.pop(request, None), row.get("content") or {}
        if prompt is None or row.get("outcome") != "ok":
            return
        if "begin" in content:
            self._texts[content.get("hash", "")] = content["begin"]
        traffic = str(row.get("traffic", ""))
        newest = self._newest[traffic]
        newest.pop(prompt, None)
        # An answer without a hash is like no other.
        answer = newest[prompt] = _Answer(content.get("hash", request), request, int(row["at_ns"]))
        if len(newest) > _WINDOW:
            del newest[next(iter(newest))]
        equal = [one for one in newest.values() if one.hash == answer.hash]
        if len(newest) < _FEWEST or len(equal) < _SHARE * len(newest):
            return
        share = f"{len(equal)} of the last {len(newest)} prompts got the same answer"
        for one in equal:
            if not one.reported:
                one.reported = True
                wrong = WrongAnswer(
                    "answers_equal", one.request, one.at_ns, "equal answers", share, got=self._texts.get(answer.hash, ""),
                    traffic=traffic, facts={"share": share},
                )  # fmt: skip
                self._pending.append(wrong_failure(wrong))


class RepeatedAnswers(_ByBody):
    """Folds begin and ok end rows. Two answers to different prompts with one id and one text are a repeated answer. An id
    with two texts names no answer; where a server has more than a few such ids, none of its ids proves anything.
    """

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[str, _Answer] = {}  # by id of the answer
        self._of_many: set[str] = set()
        self._again: list[tuple[str, WrongAnswer]] = []  # with the id of the answer
        self._answers = 0

    def on_end(self, row: EndRow) -> None:
        request, content = str(row.get("id")), row.get("content") or {}
        prompt, name = self._prompts.pop(request, None), content.get("id", row.get("request_id"))
        if prompt is None or name is None or "hash" not in content or row.get("outcome") != "ok":
            return
        self._answers += 1
        answer = _Answer(content["hash"], request, int(row["at_ns"]), prompt=prompt)
        first = self._first.setdefault(name, answer)
        if len(self._first) > _MOST_IDS:
            del self._first[next(iter(self._first))]
        if first.hash != answer.hash or not name:
            self._of_many.add(name)
        elif first.prompt != prompt:
            wrong = WrongAnswer(
                "answer_repeated", request, answer.at_ns, "id and text", f"answer {name} of {first.request} came again",
                got=content.get("begin", ""), traffic=str(row.get("traffic", "")), facts={"first": first.request},
            )  # fmt: skip
            self._again.append((name, wrong))

    def poll(self, now_ns: int) -> list[Failure]:
        if len(self._first) >= _FEWEST:
            self._pending += self._repeated()
        return super().poll(now_ns)

    def finish(self) -> list[Finding]:
        if not self._names_one:
            name = min(self._of_many)
            many = f"{len(self._first):,} ids of {self._answers:,} answers"
            return [f"answers with different texts have the same id ({name!r}; {many})"]
        found = self._repeated() if len(self._first) > 1 else []
        return [replace(failure, in_log=len(found)) for failure in found[:1]]

    @property
    def _names_one(self) -> bool:
        """True where an id names one answer."""
        return len(self._of_many) <= _MANY_SHARE * len(self._first)

    def _repeated(self) -> list[Failure]:
        if not self._names_one:
            return []
        again, self._again = self._again, []
        return [wrong_failure(wrong) for name, wrong in again if name not in self._of_many]
