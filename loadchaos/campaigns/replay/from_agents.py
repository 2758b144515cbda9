"""Make a trace of agents, whose requests start each other: WEKA's traces of coding agents, and AIPerf's `dag_jsonl`.

WEKA (kv-cache-tester): an object for each session with `requests`. A request has its time `t` and `api_time` in seconds,
`in` and `out` in tokens, and `hash_ids`; `type: subagent` holds the requests of another agent, whose times may count from
its start. A request waits for those that had ended when it was sent, and as long after them as then.

`dag_jsonl`: a conversation a line, with `turns` of whole `messages`. A turn begins others when it has ended: `forks` go on
with what was said so far, `spawns` begin anew, and the turn `join_at` waits for these. An `orchestrator` sends nothing
itself and begins `spawns` in `rounds`. Answers in later turns are made up, where AIPerf sends the server's own.

Read from the code of AIPerf 0.13.0 (dataset/loader/weka_trace_models.py, dag_jsonl_models.py) and GuideLLM 0.8.1
(data/deserializers/trace_weka.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from loadchaos.campaigns.replay.made_texts import made_text
from loadchaos.campaigns.replay.row_values import number_of, whole_of
from loadchaos.core.body_hash import store_body
from loadchaos.core.model import DEFAULT_OUTPUT_TOKENS
from loadchaos.profile.request_trace import BODIES, VERSION, Cause, RequestTrace, TraceHeader, TraceSend
from loadchaos.profile.trace_formats.base import DAG_KEYS, WEKA_KEYS

Row = Mapping[str, object]

_MS = 0.001
_EACH_TRACE = 1 << 40  # ids of blocks count for one WEKA trace alone
_USAGE = {"stream_options": {"include_usage": True}}
_WHOLE_REQUESTS = "message_array_with_responses"
"""`context_mode` of a conversation whose turns are whole requests."""


def are_agents(rows: Sequence[tuple[str, object]]) -> bool:
    return bool(rows) and all(isinstance(row, dict) and (_is_weka(row) or _is_dag(row)) for _, row in rows)


def _is_weka(row: Row) -> bool:
    return row.keys() >= WEKA_KEYS


def _is_dag(row: Row) -> bool:
    return row.keys() >= DAG_KEYS or (row.get("orchestrator") is True and "session_id" in row)


def trace_of_agents(rows: Sequence[tuple[str, object]], source: Path, scratch: Path, most_idle: int) -> RequestTrace:
    """Make the trace; `most_idle` sessions go on side by side. Raises ValueError with file, line and key."""
    made = _Sends(scratch)
    given = {where: row for where, row in rows if isinstance(row, dict)}
    dag = _Dag(made, {str(row["session_id"]): (where, row) for where, row in given.items() if _is_dag(row)})
    ends: list[list[str]] = []
    for number, (where, row) in enumerate(given.items()):
        if _is_dag(row) and row["session_id"] in dag.children:
            continue
        begin = [Cause(request=end) for end in ends[len(ends) - most_idle]] if len(ends) >= most_idle else []
        if _is_dag(row):
            last = dag.conversation(str(row["session_id"]), begin, [], ())
        else:
            last = _Weka(made, where, whole_of(where, row, "block_size"), number * _EACH_TRACE).agent(row, begin)
        ends.append(last)
    for name in sorted(dag.children - dag.made):
        dag.conversation(name, [], [], ())  # only itself begins it: an error
    header = TraceHeader(event="trace", version=VERSION, source=str(source))
    return RequestTrace(header, tuple(made.sends), folder=scratch)


@dataclass
class _Sends:
    scratch: Path
    sends: list[TraceSend] = field(default_factory=list)

    def add(self, body: Mapping[str, object], after: Iterable[Cause]) -> str:
        limit = body.get("max_tokens")
        send = TraceSend(
            id=f"r{len(self.sends)}",
            after=tuple(after),
            body=store_body(self.scratch / BODIES, orjson.dumps(body)),
            stream=bool(body.get("stream")),
            max_tokens=limit if isinstance(limit, int) else None,
        )
        self.sends.append(send)
        return send.id


@dataclass
class _Sent:
    id: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class _Weka:
    made: _Sends
    where: str
    block_tokens: int
    first_block: int

    def agent(self, row: Row, begin: Sequence[Cause]) -> list[str]:
        """Add the requests of a session. Returns those that nothing waits for."""
        return [sent.id for sent in self._requests(row, list(begin), 0.0, 0.0)]

    def _requests(self, row: Row, begin: list[Cause], begin_s: float, offset_s: float) -> list[_Sent]:
        """Add the requests of one agent, which was started at `begin_s`. Returns the last ones."""
        open_: list[_Sent] = []
        for entry in sorted(self._entries(row), key=lambda entry: self._seconds(entry, "t")):
            at_s = self._seconds(entry, "t") + offset_s
            ended = [sent for sent in open_ if sent.end_s <= at_s]
            if ended:
                after = [Cause(request=sent.id, delay_s=round(at_s - sent.end_s, 6)) for sent in ended]
            elif open_:
                after = [Cause(request=open_[0].id, event="begin", delay_s=round(at_s - open_[0].begin_s, 6))]
            else:
                wait_s = max(0.0, at_s - begin_s)
                after = [cause.model_copy(update={"delay_s": round(cause.delay_s + wait_s, 6)}) for cause in begin]
            if entry.get("type") == "subagent":
                inner = [self._seconds(request, "t") for request in self._entries(entry)]
                relative = bool(inner) and min(inner) + offset_s < at_s
                last = self._requests(entry, after, at_s, at_s if relative else offset_s)
                if entry.get("status") != "async_launched":  # the agent did not wait for it
                    open_ += last
                continue
            open_ = [sent for sent in open_ if sent not in ended]
            open_.append(_Sent(self.made.add(self._body(entry), after), at_s, at_s + self._seconds(entry, "api_time")))
        return open_

    def _entries(self, row: Row) -> list[Row]:
        found = row.get("requests")
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise ValueError(f"{self.where}: requests: a list of objects was expected")
        return found

    def _seconds(self, entry: Row, name: str) -> float:
        return number_of(self.where, entry, name, "seconds") or 0.0

    def _body(self, entry: Row) -> dict[str, object]:
        tokens, output = whole_of(self.where, entry, "in"), max(1, whole_of(self.where, entry, "out", least=0))
        ids = entry.get("hash_ids") or []
        if not isinstance(ids, list) or not all(type(block) is int for block in ids):
            raise ValueError(f"{self.where}: hash_ids: a list of whole numbers was expected")
        blocks = [self.first_block + block for block in ids]
        text = made_text(tokens, blocks, len(self.made.sends), self.block_tokens)
        stream = entry.get("type") == "s"
        return {
            "model": "", "messages": [{"role": "user", "content": text}], "max_tokens": output, "min_tokens": output,
            "ignore_eos": True, "stream": stream, **(_USAGE if stream else {}),
        }  # fmt: skip


class _Dag:
    def __init__(self, made: _Sends, rows: Mapping[str, tuple[str, Row]]) -> None:
        self._sends, self._rows = made, rows
        self.made: set[str] = set()
        self.children = {child for where, row in rows.values() for child in _children_of(where, row)}
        """Conversations that another one begins."""

    def conversation(
        self, name: str, begin: Sequence[Cause], history: Sequence[object], within: tuple[str, ...]
    ) -> list[str]:
        """Add a conversation and those that it begins. Returns its last requests."""
        if name not in self._rows:
            raise ValueError(f"{self._rows[within[-1]][0]}: {name}: no conversation has this session_id")
        if name in within:
            raise ValueError(f"{self._rows[name][0]}: {name} begins itself, by {' and '.join(within)}")
        self.made.add(name)
        where, row = self._rows[name]
        within = (*within, name)
        if row.get("orchestrator"):
            return self._rounds(where, row, begin, within)
        for child in _names(where, row, "pre_session_spawns"):
            self.conversation(child, begin, [], within)
        said, after, last = list(history), list(begin), [cause.request for cause in begin]
        joins: dict[int, list[str]] = {}
        for number, turn in enumerate(_objects(where, row, "turns")):
            wait_s = (number_of(where, turn, "delay", "milliseconds") or 0.0) * _MS
            after = [*after, *(Cause(request=end) for end in joins.pop(number, ()))]
            after = [cause.model_copy(update={"delay_s": cause.delay_s + wait_s}) for cause in after]
            messages = [
                *(said if row.get("context_mode") != _WHOLE_REQUESTS else ()),
                *_objects(where, turn, "messages"),
            ]
            body = self._body(where, turn, messages)
            sent = self._sends.add(body, after)
            answer = made_text(int(str(body["max_tokens"])), (), -2 - len(self._sends.sends))
            said = [*messages, {"role": "assistant", "content": answer}]
            last, after = [sent], [Cause(request=sent)]
            for children, join_at in _spawns(where, turn, number):
                ends = [end for child in children for end in self.conversation(child, after, [], within)]
                joins.setdefault(join_at, []).extend(ends)
            goes_on = True
            for child, background in _forks(where, turn):
                self.conversation(child, after, said, within)
                goes_on &= background
            if not goes_on:
                break
        return [*last, *(end for ends in joins.values() for end in ends)]

    def _rounds(self, where: str, row: Row, begin: Sequence[Cause], within: tuple[str, ...]) -> list[str]:
        after, last = list(begin), [cause.request for cause in begin]
        for number, (children, wait_ms) in enumerate(_rounds(where, row)):
            last = [end for child in children for end in self.conversation(child, after, [], within)]
            if not last:
                raise ValueError(f"{where}: rounds[{number}]: a round with spawns was expected")
            after = [Cause(request=end, delay_s=wait_ms * _MS) for end in last]
        return last

    def _body(self, where: str, turn: Row, messages: Sequence[object]) -> dict[str, object]:
        extra, tools = turn.get("extra") or {}, {"tools": turn["tools"]} if turn.get("tools") else {}
        if not isinstance(extra, Mapping):
            raise ValueError(f"{where}: extra: an object was expected")
        limit = whole_of(where, turn, "max_tokens") if turn.get("max_tokens") is not None else DEFAULT_OUTPUT_TOKENS
        model = str(turn.get("model") or "")
        return {"model": model, "messages": messages, **tools, "max_tokens": limit, "stream": True, **_USAGE, **extra}


def _spawns(where: str, turn: Row, number: int) -> Iterator[tuple[list[str], int]]:
    """Yield the conversations that a turn begins, and the turn that waits for them."""
    for entry in _list(where, turn, "spawns"):
        if isinstance(entry, Mapping):
            at = entry.get("join_at")
            yield _names(where, entry, "children"), number + 1 if at is None else whole_of(where, entry, "join_at")
        else:
            yield [str(entry)], number + 1


def _forks(where: str, turn: Row) -> Iterator[tuple[str, bool]]:
    for entry in _list(where, turn, "forks"):
        yield (
            (str(entry.get("child")), bool(entry.get("background")))
            if isinstance(entry, Mapping)
            else (str(entry), False)
        )


def _rounds(where: str, row: Row) -> Iterator[tuple[list[str], float]]:
    """Yield the conversations of each round, and the time after it. A drawn time is its median."""
    wait_ms = number_of(where, row, "think_time_ms", "milliseconds") or 0.0
    rounds = row.get("rounds")
    if isinstance(rounds, list):
        for entry in _objects(where, row, "rounds"):
            own_ms = number_of(where, entry, "think_time_ms", "milliseconds")
            yield _names(where, entry, "spawns"), wait_ms if own_ms is None else own_ms
        return
    for _ in range(1 if rounds is None else whole_of(where, row, "rounds")):
        yield _names(where, row, "spawns"), wait_ms


def _children_of(where: str, row: Row) -> Iterator[str]:
    yield from _names(where, row, "pre_session_spawns")
    if row.get("orchestrator"):
        yield from (child for children, _ in _rounds(where, row) for child in children)
    for number, turn in enumerate(_objects(where, row, "turns")):
        yield from (child for children, _ in _spawns(where, turn, number) for child in children)
        yield from (child for child, _ in _forks(where, turn))


def _list(where: str, row: Row, name: str) -> list[object]:
    found = row.get(name) or []
    if not isinstance(found, list):
        raise ValueError(f"{where}: {name}: a list was expected (got {found!r:.40})")
    return found


def _objects(where: str, row: Row, name: str) -> list[Row]:
    found = _list(where, row, name)
    if not all(isinstance(entry, Mapping) for entry in found):
        raise ValueError(f"{where}: {name}: a list of objects was expected")
    return [entry for entry in found if isinstance(entry, Mapping)]


def _names(where: str, row: Row, name: str) -> list[str]:
    found = _list(where, row, name)
    if not all(isinstance(entry, str) for entry in found):
        raise ValueError(f"{where}: {name}: a list of session ids was expected")
    return [str(entry) for entry in found]
