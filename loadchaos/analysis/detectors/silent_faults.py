"""Detect stuck queues, truncated text, and requests never released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadchaos.analysis.detectors.base import Detector, from_figures
from loadchaos.analysis.failure import Failure
from loadchaos.analysis.state.signals import PROGRESS
from loadchaos.core.ledger.rows import AttackRow, BeginRow, EndRow, HeartbeatRow, MetricsRow, StateRow
from loadchaos.core.model import Facts
from loadchaos.core.units import NS_PER_S, counted

_QUEUE_STUCK_S = 30.0
_LOST_S = 15.0
_FEWEST = 3
_MOST_PROMPTS = 2_000
_SLACK_TOKENS, _SLACK = 16, 0.05  # chat templates and guesses of lengths may be off by so much
RELEASE = "Requests whose client disconnected are not released: they hold KV cache and a place in the batch."


def prompt_truncation(prompts: Sequence[tuple[int, int]]) -> int | None:
    """The length (tokens) that prompts are truncated to, None without. `prompts` are (planned, counted by the server)
    of good answers. At least three longer ones were counted at one same length, none longer was counted whole, and
    shorter ones are right.
    """
    cut = Counter(counted for planned, counted in prompts if planned - counted > max(_SLACK_TOKENS, _SLACK * planned))
    if not cut:
        return None
    length, times = cut.most_common(1)[0]
    whole = [planned for planned, counted in prompts if abs(planned - counted) <= max(_SLACK_TOKENS, _SLACK * planned)]
    shorter = [planned for planned in whole if planned <= length]
    longer = [planned for planned in whole if planned > length + max(_SLACK_TOKENS, _SLACK * length)]
    return length if times >= _FEWEST and len(shorter) >= _FEWEST and not longer and times == cut.total() else None


def truncated_answers(answers: Sequence[tuple[int, int, int]], context: int | None) -> tuple[int, int] | None:
    """(count, first length) of answers that were truncated. They ended by `length` before max_tokens and before the
    context limit. `answers` are (prompt tokens, completion tokens, max_tokens) of answers with finish_reason length;
    `context` is the context length in tokens, None where it is not known: then nothing is reported.
    """
    if context is None:
        return None
    cut = [done for prompt, done, most in answers if done < most - 1 and prompt + done < context - _SLACK_TOKENS]
    return (len(cut), cut[0]) if len(cut) >= _FEWEST else None


@dataclass
class _Gauges:
    """One engine: start of a stuck queue, and of work without clients."""

    values: Mapping[str, float]
    stuck_ns: int | None = None
    held_ns: int | None = None


class SilentFaultDetector(Detector):
    """Folds begin, end, heartbeat, metrics, facts and state rows. Reports each fault once per engine."""

    slow = True

    def __init__(self) -> None:
        super().__init__()
        self._max_tokens: dict[str, int] = {}
        self._prompts: list[tuple[int, int]] = []
        self._answers: list[tuple[int, int, int]] = []
        self._in_flight: dict[str, int] = {}
        self._gauges: dict[tuple[str, str], _Gauges] = {}

    def on_begin(self, row: BeginRow) -> None:
        if most := row.get("max_tokens"):
            self._max_tokens[str(row.get("id"))] = int(most)

    def on_end(self, row: EndRow) -> None:
        most = self._max_tokens.pop(str(row.get("id")), None)
        counted, done = row.get("prompt_tokens"), row.get("completion_tokens")
        if row.get("outcome") != "ok" or counted is None:
            return
        planned = row.get("planned_tokens")
        if planned and not row.get("images") and len(self._prompts) < _MOST_PROMPTS:
            self._prompts.append((int(planned), int(counted)))
        if most and done is not None and row.get("finish_reason") == "length" and done < most - 1:
            self._answers.append((int(counted), int(done), most))
            del self._answers[:-_MOST_PROMPTS]

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        self._in_flight[str(row.get("file"))] = int(row.get("in_flight") or 0)
        if any(self._in_flight.values()):
            for gauges in self._gauges.values():
                gauges.held_ns = None

    def on_attack(self, row: AttackRow) -> None:
        if {"paused", "asleep", "alive_but_hung"} & set(row.get("effects") or ()):
            for gauges in self._gauges.values():
                gauges.stuck_ns = None

    def on_state(self, row: StateRow) -> None:
        if row.get("to") not in ("healthy", "degraded"):
            self._gauges.clear()

    def on_metrics(self, row: MetricsRow) -> None:
        at_ns, values = int(row["at_ns"]), row.get("values") or {}
        key = (str(row.get("replica")), str(row.get("engine")))
        old = self._gauges.get(key)
        gauges = self._gauges[key] = _Gauges(values, *((old.stuck_ns, old.held_ns) if old else (None, None)))
        progress = old is not None and any(values.get(n) != old.values.get(n) for n in PROGRESS)
        running, waiting = values.get("requests_running"), values.get("requests_waiting")
        stuck = bool(waiting) and running == 0 and not progress
        gauges.stuck_ns = (gauges.stuck_ns or at_ns) if stuck else None
        none_in_flight = bool(self._in_flight) and not any(self._in_flight.values())
        held = bool(running) and none_in_flight and not progress
        gauges.held_ns = (gauges.held_ns or at_ns) if held else None
        self._judge_gauges(key, gauges, at_ns)

    def _judge_gauges(self, key: tuple[str, str], gauges: _Gauges, at_ns: int) -> None:
        where = f"{key[0]} engine {key[1]}"
        if gauges.stuck_ns is not None and (at_ns - gauges.stuck_ns) / NS_PER_S >= _QUEUE_STUCK_S:
            n, kv = gauges.values["requests_waiting"], gauges.values.get("kv_usage_ratio")
            used = f" ({kv:.0%} of the KV cache in use)" if kv is not None else ""
            title = f"{counted(n, 'request')} waiting, 0 running, no progress for {_QUEUE_STUCK_S:.0f} s{used}"
            remedy = (
                "A request that can never get its KV blocks blocks the queue: lower --max-model-len, or add KV cache."
            )
            name = "kv_capacity_deadlock" if kv is not None and kv < 0.95 else "preempt_thrash_deadlock"
            self.report_once(from_figures(name, "hang", title, remedy, gauges.stuck_ns, where))
        if gauges.held_ns is not None and (at_ns - gauges.held_ns) / NS_PER_S >= _LOST_S:
            n = gauges.values["requests_running"]
            title = f"{counted(n, 'request')} still running {_LOST_S:.0f} s after the last client disconnected"
            self.report_once(from_figures("lost_requests_held", "degraded", title, RELEASE, gauges.held_ns, where))

    def poll(self, now_ns: int) -> list[Failure]:
        if (length := prompt_truncation(self._prompts)) is not None:
            title = f"Prompts longer than {length} tokens are truncated to {length} without an error"
            remedy = "The model never saw the rest of the prompt: check the truncation settings of server and gateway."
            self.report_once(from_figures("silent_truncation", "request", title, remedy, now_ns, "prompts"))
        if (cut := truncated_answers(self._answers, _context(self._facts))) is not None:
            title = f"{cut[0]} answers ended with finish_reason length before max_tokens and before the context limit"
            title += f" (the first after {cut[1]} tokens)"
            remedy = "Check the output token limits of server and gateway."
            self.report_once(from_figures("silent_truncation", "request", title, remedy, now_ns, "answers"))
        return super().poll(now_ns)


def _context(facts: Facts | None) -> int | None:
    if facts is None or facts.max_model_len is None:
        return None
    limits = (facts.max_model_len, facts.capacity_tokens, facts.input_limit)
    return min(n for n in limits if n is not None)
