"""What goes wrong without a word: a queue that stands, answers and prompts cut short, requests the server never lets go.

Folds rows; each question is a pure function over what was folded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.request_stats import S
from loadchaos.core.model import Row, Severity

_STALL_S = 30.0
_LOST_S = 15.0
_FRESH_S = 3.0
_FEWEST = 3
_MOST_PROMPTS = 2_000
_SLACK_TOKENS, _SLACK = 16, 0.05  # chat templates and guesses of lengths may be off by so much
_PROGRESS = ("iterations_total", "generation_tokens_total", "prompt_tokens_total")


def prompts_cut(prompts: Sequence[tuple[int, int]]) -> int | None:
    """The length (tokens) that longer prompts are cut to; `prompts` are (planned, counted by the server) of good answers.

    At least three longer ones were counted at one same length, none longer was counted whole, and shorter ones are right.
    """
    cut = Counter(counted for planned, counted in prompts if planned - counted > max(_SLACK_TOKENS, _SLACK * planned))
    if not cut:
        return None
    length, times = cut.most_common(1)[0]
    whole = [planned for planned, counted in prompts if abs(planned - counted) <= max(_SLACK_TOKENS, _SLACK * planned)]
    shorter = [planned for planned in whole if planned <= length]
    longer = [planned for planned in whole if planned > length + max(_SLACK_TOKENS, _SLACK * length)]
    return length if times >= _FEWEST and len(shorter) >= _FEWEST and not longer and times == cut.total() else None


def answers_cut(answers: Sequence[tuple[int, int, int]], room: int | None) -> tuple[int, int] | None:
    """(how many, tokens of the first) of answers that ended by `length` before their max_tokens and before the context.

    `answers` are (prompt tokens, completion tokens, max_tokens) of answers with finish_reason length; `room` is the
    context's length in tokens, None where it is not known: then nothing can be said.
    """
    if room is None:
        return None
    cut = [done for prompt, done, most in answers if done < most - 1 and prompt + done < room - _SLACK_TOKENS]
    return (len(cut), cut[0]) if len(cut) >= _FEWEST else None


@dataclass
class _Gauges:
    """One engine: since when its queue stands, and since when it runs something though nobody of ours is out."""

    values: Mapping[str, float]
    waiting_ns: int | None = None
    held_ns: int | None = None


class SilentFaultDetector:
    """Folds begin, end, heartbeat, metrics and state rows; `found` says what was wrong, each id once an engine."""

    def __init__(self) -> None:
        self.room: int | None = None  # the context's length, once it is known
        self._asked: dict[str, int] = {}
        self._prompts: list[tuple[int, int]] = []
        self._answers: list[tuple[int, int, int]] = []
        self._flying: dict[str, int] = {}
        self._gauges: dict[tuple[str, str], _Gauges] = {}
        self._paused_ns = 0
        self._pending: list[Failure] = []
        self._told: set[tuple[str, str]] = set()

    def feed(self, row: Row) -> None:
        """Fold one row; other kinds change nothing."""
        handler = getattr(self, f"_on_{row.get('row')}", None)
        if handler is not None:
            handler(row)

    def _on_begin(self, row: Row) -> None:
        if row.get("max_tokens"):
            self._asked[str(row.get("id"))] = int(row["max_tokens"])

    def _on_end(self, row: Row) -> None:
        most = self._asked.pop(str(row.get("id")), None)
        counted, done = row.get("prompt_tokens"), row.get("completion_tokens")
        if row.get("outcome") != "ok" or counted is None:
            return
        if row.get("planned_tokens") and not row.get("images") and len(self._prompts) < _MOST_PROMPTS:
            self._prompts.append((int(row["planned_tokens"]), int(counted)))
        if most and done is not None and row.get("finish_reason") == "length" and done < most - 1:
            self._answers.append((int(counted), int(done), most))
            del self._answers[:-_MOST_PROMPTS]

    def _on_heartbeat(self, row: Row) -> None:
        self._flying[str(row.get("file"))] = int(row.get("in_flight") or 0)
        if any(self._flying.values()):
            for gauges in self._gauges.values():
                gauges.held_ns = None

    def _on_attack(self, row: Row) -> None:
        if {"paused", "asleep", "alive_but_hung"} & set(row.get("effects") or ()):
            self._paused_ns = row["at_ns"]
            for gauges in self._gauges.values():
                gauges.waiting_ns = None

    def _on_state(self, row: Row) -> None:
        if row.get("to") not in ("healthy", "degraded"):
            self._gauges.clear()

    def _on_metrics(self, row: Row) -> None:
        at_ns, values = int(row["at_ns"]), row.get("values") or {}
        key = (str(row.get("replica")), str(row.get("engine")))
        old = self._gauges.get(key)
        gauges = self._gauges[key] = _Gauges(values, *((old.waiting_ns, old.held_ns) if old else (None, None)))
        moved = old is not None and any(values.get(n) != old.values.get(n) for n in _PROGRESS)
        running, waiting = values.get("requests_running"), values.get("requests_waiting")
        stands = bool(waiting) and running == 0 and not moved
        gauges.waiting_ns = (gauges.waiting_ns or at_ns) if stands else None
        nobody = bool(self._flying) and not any(self._flying.values())
        held = bool(running) and nobody and not moved
        gauges.held_ns = (gauges.held_ns or at_ns) if held else None
        self._judge_gauges(key, gauges, at_ns)

    def _judge_gauges(self, key: tuple[str, str], gauges: _Gauges, at_ns: int) -> None:
        where = f"{key[0]} engine {key[1]}"
        if gauges.waiting_ns is not None and (at_ns - gauges.waiting_ns) / S >= _STALL_S:
            n, kv = gauges.values["requests_waiting"], gauges.values.get("kv_usage_ratio")
            used = f", {kv:.0%} of the KV cache in use" if kv is not None else ""
            title = f"{n:g} requests wait, none runs, and nothing has moved for {_STALL_S:.0f} s{used}"
            remedy = (
                "a request that can never get its KV blocks blocks the queue: lower --max-model-len, or more KV cache"
            )
            name = "kv_capacity_deadlock" if kv is not None and kv < 0.95 else "preempt_thrash_deadlock"
            self._pending.append(_seen(name, "hang", title, remedy, gauges.waiting_ns, where))
        if gauges.held_ns is not None and (at_ns - gauges.held_ns) / S >= _LOST_S:
            n = gauges.values["requests_running"]
            title = f"The server says that it runs {n:g} requests for {_LOST_S:.0f} s after the last client has left"
            remedy = "requests whose client left are not let go: they hold KV cache and a place in the batch"
            self._pending.append(_seen("lost_requests_held", "degraded", title, remedy, gauges.held_ns, where))

    def found(self, now_ns: int) -> list[Failure]:
        """What went wrong without a word, as of now."""
        pending, self._pending = self._pending, []
        if (length := prompts_cut(self._prompts)) is not None:
            title = f"Prompts of more than {length} tokens are cut to {length} without a word"
            remedy = "the model has not seen what was asked: look for a truncation setting of the server or gateway"
            pending.append(_seen("silent_truncation", "request", title, remedy, now_ns, "prompts"))
        if (cut := answers_cut(self._answers, self.room)) is not None:
            title = f"{cut[0]} answers ended by length before their max_tokens and before the context's end"
            title += f" (the first after {cut[1]} tokens)"
            remedy = "look for a cap of the server or gateway on output tokens"
            pending.append(_seen("silent_truncation", "request", title, remedy, now_ns, "answers"))
        fresh = [s for s in pending if (s.id, str(s.process)) not in self._told]
        self._told.update((s.id, str(s.process)) for s in fresh)
        return list({(s.id, s.process): s for s in fresh}.values())


def _seen(name: str, severity: Severity, title: str, remedy: str, at_ns: int, where: str) -> Failure:
    return Failure(name, severity, title, evidence("figures", title), at_ns, process=where, remedy=remedy)
