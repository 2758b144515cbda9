"""Ask the misbehaving server in every way, for docs/conformance.md.

python -m tests.load.wire.conformance > docs/conformance.md
"""

import re
from dataclasses import replace
from typing import Any, cast

from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.outcome_rules import OutcomeRules
from loadchaos.load.behaviours import Behaviour
from loadchaos.load.endpoints import ENDPOINTS
from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules
from loadchaos.load.wire.contract import AnswerContract, SchemaRule
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.request import WireTimeouts
from loadchaos.load.wire.sockets import Origin, Slot
from tests.load.wire.endpoint_shapes import OUTCOMES_OF_BEHAVIOURS, SHAPES
from tests.load.wire.misbehaving import OF_BOTH, OF_STREAMS, OF_WHOLE_ANSWERS, Misbehaving
from tests.load.wire.requests import wire_request
from tests.load.wire.sweeper import swept
from tests.waiting import until

VALIDATION = (re.compile(r"maximum context length"), re.compile(r"must be at least"))
SHED = (re.compile(r"engine is currently busy"),)
DEAD = (re.compile(r"EngineCore encountered an issue"),)


SERVER = OutcomeRules(validation=VALIDATION, shed=SHED, engine_dead=DEAD)


def rules(server: OutcomeRules = SERVER, **changes: Any) -> AnswerRules:
    return AnswerRules(server, **changes)


class Seen(EndRow):
    """The end row of a request, with the text of its answer."""

    text: str


def ask(
    url: str,
    *,
    stream: bool = True,
    judged_by: AnswerRules | None = None,
    limits: WireTimeouts | None = None,
    slot: Slot | None = None,
    keep: bool = False,
    reader: type[AnswerReader] = AnswerReader,
) -> Seen:
    slot = slot or Slot(Origin(url))
    judged_by = judged_by or rules()
    what = wire_request(slot.target, stream=stream, rules=judged_by, limits=limits, reader=reader)
    try:
        with swept(Exchange(what, slot, Progress())) as call:
            row = Behaviour().act(call)
            return cast("Seen", {**row, "text": "" if call.answer is None else call.answer.text})
    finally:
        if not keep:
            slot.close()


TABLE: list[tuple[str, list[bool], str]] = [
    *((mode, [True], outcome) for mode, (outcome, _) in OF_STREAMS.items()),
    ("closed_while_idle", [True], "ok"),
    *((mode, [False], outcome) for mode, (outcome, _) in OF_WHOLE_ANSWERS.items()),
    ("whole_closed_while_idle", [False], "ok"),
    *((mode, [True, False], outcome) for mode, (outcome, _) in OF_BOTH.items()),
]
"""Each mode of the server, whether it is asked for a stream, a whole answer or both, and the outcome."""

_A_NUMBER = SchemaRule({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
CONTRACTS = {
    "schema_": AnswerContract(_A_NUMBER),
    "tools_auto_": AnswerContract(tools={"look_up": _A_NUMBER}),
    "tools_none_": AnswerContract(may_call=False),
    "tools_": AnswerContract(tools={"look_up": _A_NUMBER}, must_call=True),
}
"""Contracts of the modes whose names hold these words."""
SHORT = WireTimeouts(first_byte_ns=300_000_000, between_bytes_ns=200_000_000)
_NOTED = ("other_model", "no_text", "thin_text", "extra_chunks", "usage_missing")
"""Details of an ok answer that the analysis judges over all answers (docs/outcomes.md)."""
KEPT_ALIVE = {"closed_while_idle", "whole_closed_while_idle"}
"""Modes that are asked a second time on the connection of the first, because that is what they are about."""

HEAD = """# Conformance: which server behaviour gives which outcome

Each row is a mode of the misbehaving server in `tests/load/wire/misbehaving.py`, asked over a real socket. Columns two and
three are the outcome with and without streaming; a dash means that the mode does not apply. The last column is the error
text in the record. `make conformance` writes this page, and a test keeps it current. The outcomes: [outcomes](outcomes.md).

| what the server does | streamed | not streamed | status | error text |
| --- | --- | --- | --- | --- |
"""


ENDPOINTS_HEAD = """
## By endpoint

The same on the other [endpoints](traffic.md#endpoints), in the events and bodies of each
(`tests/load/wire/endpoint_shapes.py`). Rows that begin with *whole* are not streamed. What HTTP and TCP do is in the first
table. A dash: the endpoint has no such thing.

"""


def once(server: Misbehaving, mode: str, *, stream: bool, expected: str = "") -> Seen:
    """Send one request to a mode.

    The timeouts are short where silence is expected, and foreign nonces are searched for.
    """
    judged_by = rules_of(mode)
    limits = SHORT if expected == "stalled" else WireTimeouts()
    slot = Slot(Origin(server.url_of(mode)))
    if mode in KEPT_ALIVE:
        ask(server.url_of(mode), stream=stream, judged_by=judged_by, slot=slot, keep=True)
        until(lambda: slot._idle is None or slot._idle.is_stale(), "the close")
    return ask(server.url_of(mode), stream=stream, judged_by=judged_by, limits=limits, slot=slot)


def rules_of(mode: str) -> AnswerRules:
    """Rules for the answers of a mode; they find foreign nonces and broken contracts."""
    return rules(
        foreign_nonce=lambda text: "zebra-17" if "zebra-17" in text else None,
        contract=next((contract for begin, contract in CONTRACTS.items() if begin in mode), None),
        answers=2 if "choice" in mode and "null" not in mode else None,
        most_tokens=32,
        limit=32 if mode.startswith("length_after") else None,
        model="tiny",
        logprobs="no_logprobs" in mode,
    )


def words(mode: str) -> str:
    return mode.replace("_", " ")


def render() -> str:
    """The whole page, from answers got just now."""
    lines = []
    with Misbehaving() as server:
        for mode, kinds, expected in TABLE:
            replies = {kind: once(server, mode, stream=kind, expected=expected) for kind in kinds}
            streamed, whole = (f"`{replies[k]['outcome']}`" if k in replies else "-" for k in (True, False))
            reply = next(iter(replies.values()))
            lines.append(f"| {words(mode)} | {streamed} | {whole} | {reply['status'] or '-'} | {_error_cell(reply)} |")
    return HEAD + "\n".join(lines) + "\n" + endpoint_section()


def endpoint_section() -> str:
    """The second table: a row for each behaviour, a column for each endpoint."""
    lines = [f"| what the server does | {' | '.join(SHAPES)} |", f"| --- |{' --- |' * len(SHAPES)}"]
    with Misbehaving() as server:
        for behaviour in OUTCOMES_OF_BEHAVIOURS:
            cells = [f"`{r['outcome']}`" if (r := ask_endpoint(server, name, behaviour)) else "-" for name in SHAPES]
            lines.append(f"| {words(behaviour)} | {' | '.join(cells)} |")
    return ENDPOINTS_HEAD + "\n".join(lines) + "\n"


def ask_endpoint(server: Misbehaving, name: str, behaviour: str) -> Seen | None:
    """Ask an endpoint that behaves so; None where it cannot."""
    answer = SHAPES[name].behave(behaviour)
    if answer is None:
        return None
    mode = f"{name}-{behaviour}"
    server.modes[mode] = answer
    limits = SHORT if behaviour.endswith("silence") else WireTimeouts()
    streams = SHAPES[name].streams and not behaviour.startswith("whole")
    contract = next((c for begin, c in CONTRACTS.items() if begin in behaviour), None)
    judged_by = replace(rules_of(behaviour), contract=contract, answers=None if SHAPES[name].streams else 2)
    return ask(server.url_of(mode), stream=streams, judged_by=judged_by, limits=limits, reader=ENDPOINTS[name].answer)


def _error_cell(reply: EndRow) -> str:
    notes = [
        f"`{name}`"
        for name in (*_NOTED, *reply.get("signs", []))
        if name in {*reply["detail"], *reply.get("signs", [])}
    ]
    notes = list(dict.fromkeys(notes)) if reply["outcome"] == "ok" else []
    if notes:
        return f"noted: {', '.join(notes)}"
    text = " ".join((reply["error"] or "").split())
    text = text if len(text) <= 72 else text[:70] + " ..."
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;") or "-"


if __name__ == "__main__":
    print(render(), end="")
