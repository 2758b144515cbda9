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
from tests.load.wire.endpoint_shapes import BEHAVIOURS_OF_ENDPOINTS, SHAPES
from tests.load.wire.misbehaving import Misbehaving
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


BOTH = [True, False]
TABLE: list[tuple[str, list[bool], str]] = [
    ("good", [True], "ok"),
    ("good_no_done", [True], "truncated"),
    ("error_first", [True], "stream_error"),
    ("error_first_code_400_dead", [True], "stream_error"),
    ("error_after_tokens", [True], "stream_error"),
    ("event_error", [True], "stream_error"),
    ("event_error_no_json", [True], "stream_error"),
    ("error_after_finish", [True], "stream_error"),
    ("error_after_done", [True], "stream_error"),
    ("engine_dead_after_done", [True], "stream_error"),
    ("event_error_after_done", [True], "stream_error"),
    ("text_after_done", [True], "wrong_output"),
    ("tokens_of_another_after_done", [True], "wrong_output"),
    ("role_after_done", [True], "ok"),
    ("text_after_finish", [True], "wrong_output"),
    ("many_tokens_after_finish", [True], "wrong_output"),
    ("role_after_finish", [True], "ok"),
    ("content_empty_in_every_chunk", [True], "ok"),
    ("one_word_for_16_tokens", [True], "ok"),
    ("more_chunks_than_tokens", [True], "ok"),
    ("no_text_no_usage", [True], "empty"),
    ("finish_error", [True], "finish_error"),
    ("finish_abort", [True], "finish_abort"),
    ("finish_timeout", [True], "finish_abort"),
    ("finish_cancelled", [True], "finish_abort"),
    ("finish_content_filter", [True], "finish_abort"),
    ("finish_eos_token", [True], "ok"),
    ("finish_tool_calls_without_a_call", [True], "wrong_output"),
    ("tool_calls_without_a_name", [True], "wrong_output"),
    ("one_choice_of_two", [True], "wrong_output"),
    ("model_of_another", [True], "wrong_output"),
    ("model_with_its_release", [True], "ok"),
    ("no_logprobs", [True], "wrong_output"),
    ("more_tokens_than_most", [True], "wrong_output"),
    ("more_cached_than_prompt_tokens", [True], "wrong_output"),
    ("thinking", [True], "ok"),
    ("reasoning_details", [True], "ok"),
    ("content_in_parts", [True], "ok"),
    ("logprob_above_zero", [True], "wrong_output"),
    ("no_finish_no_done", [True], "truncated"),
    ("no_finish_done", [True], "truncated"),
    ("done_only", [True], "truncated"),
    ("no_body", [True], "truncated"),
    ("comments_only", [True], "truncated"),
    ("reset_after_headers", BOTH, "reset"),
    ("reset_after_tokens", [True], "reset"),
    ("reset_mid_frame", [True], "reset"),
    ("closed_mid_frame", [True], "reset"),
    ("closed_without_last_chunk", [True], "reset"),
    ("reset_after_done", [True], "ok"),
    ("no_token_stop", [True], "empty"),
    ("eos_at_once", [True], "ok"),
    ("usage_zero", [True], "ok"),
    ("usage_missing", [True], "ok"),
    ("usage_late", [True], "ok"),
    ("garbage_json", [True], "protocol_error"),
    ("wrong_types", [True], "protocol_error"),
    ("content_is_number", [True], "protocol_error"),
    ("not_sse", BOTH, "protocol_error"),
    ("html", BOTH, "protocol_error"),
    ("sse_as_text_plain", [True], "ok"),
    ("json_for_stream", [True], "protocol_error"),
    ("crlf", [True], "ok"),
    ("cr_only", [True], "ok"),
    ("comments", [True], "ok"),
    ("multi_line_data", [True], "ok"),
    ("line_separators", [True], "ok"),
    ("utf8_split", [True], "ok"),
    ("four_events_a_packet", [True], "ok"),
    ("forty_packets", [True], "ok"),
    ("four_tokens_an_event", [True], "ok"),
    ("reasoning", [True], "ok"),
    ("reasoning_content", [True], "ok"),
    ("reasoning_only", [True], "ok"),
    ("tool_calls", [True], "ok"),
    ("text_completion", [True], "ok"),
    ("lmdeploy_internal", [True], "finish_error"),
    ("lmdeploy_cut", [True], "truncated"),
    ("queue_in_stream", [True], "shed"),
    ("code_429_in_stream", [True], "shed"),
    ("too_long_in_stream", [True], "rejected"),
    ("too_long_after_tokens", [True], "stream_error"),
    ("foreign_nonce", [True], "wrong_output"),
    ("two_done", [True], "wrong_output"),
    ("total_is_not_the_sum", [True], "wrong_output"),
    ("more_reasoning_than_completion", [True], "wrong_output"),
    ("choice_that_was_not_requested", [True], "wrong_output"),
    ("numbered_chunks", [True], "ok"),
    ("numbered_chunk_missing", [True], "wrong_output"),
    ("numbered_chunk_repeated", [True], "wrong_output"),
    ("chunk_with_another_id", [True], "ok"),
    ("schema_obeyed", [True], "ok"),
    ("schema_violated", [True], "wrong_output"),
    ("schema_answer_is_no_json", [True], "wrong_output"),
    ("schema_answer_cut_by_length", [True], "ok"),
    ("whole_schema_violated", [False], "wrong_output"),
    ("tools_obeyed", [True], "ok"),
    ("tools_arguments_violated", [True], "wrong_output"),
    ("tools_unknown", [True], "wrong_output"),
    ("tools_not_called", [True], "wrong_output"),
    ("tools_begin_at_call_1", [True], "wrong_output"),
    ("replacement_character", [True], "ok"),
    ("exclamation_marks", [True], "ok"),
    ("one_token_repeated", [True], "ok"),
    ("fewer_logprobs_than_tokens", [True], "ok"),
    ("gzip", [True], "ok"),
    ("event_of_4_mb", [True], "ok"),
    ("event_without_end", [True], "protocol_error"),
    ("gzip_bomb", BOTH, "protocol_error"),
    ("until_close", [True], "ok"),
    ("until_close_cut_short", [True], "truncated"),
    ("hundred_continue", [True], "ok"),
    ("big_headers", [True], "ok"),
    ("half_a_chunk", [True], "stalled"),
    ("whole", [False], "ok"),
    ("whole_finish_error", [False], "finish_error"),
    ("whole_finish_abort", [False], "finish_abort"),
    ("whole_no_finish", [False], "truncated"),
    ("whole_empty", [False], "empty"),
    ("whole_reasoning_only", [False], "ok"),
    ("whole_tool_calls", [False], "ok"),
    ("whole_tool_calls_without_a_name", [False], "wrong_output"),
    ("whole_one_choice_of_two", [False], "wrong_output"),
    ("whole_model_of_another", [False], "wrong_output"),
    ("whole_no_logprobs", [False], "wrong_output"),
    ("whole_finish_content_filter", [False], "finish_abort"),
    ("whole_content_in_parts", [False], "ok"),
    ("whole_wrong_types", [False], "protocol_error"),
    ("whole_not_json", [False], "protocol_error"),
    ("whole_nothing", [False], "protocol_error"),
    ("whole_gzip", [False], "ok"),
    ("whole_cut", [False], "reset"),
    ("whole_until_close", [False], "ok"),
    ("whole_foreign_nonce", [False], "wrong_output"),
    ("whole_sse", [False], "protocol_error"),
    ("error_object_200", BOTH, "http_error"),
    ("error_code_200", BOTH, "http_error"),
    ("status_500_json", BOTH, "http_error"),
    ("status_500_text", BOTH, "http_error"),
    ("status_500_empty", BOTH, "http_error"),
    ("status_503", BOTH, "http_error"),
    ("status_503_retry_after", BOTH, "shed"),
    ("status_503_busy", BOTH, "shed"),
    ("status_429", BOTH, "shed"),
    ("status_400_too_long", BOTH, "rejected"),
    ("status_400_flat", BOTH, "rejected"),
    ("status_400_unknown", BOTH, "http_error"),
    ("status_404", BOTH, "http_error"),
    ("status_401", BOTH, "http_error"),
    ("status_302", BOTH, "http_error"),
    ("not_http", BOTH, "protocol_error"),
    ("bad_chunk_size", BOTH, "protocol_error"),
    ("reset_before_headers", BOTH, "reset"),
    ("closed_before_headers", BOTH, "reset"),
    ("never", BOTH, "stalled"),
    # and more of each
    ("one_event_in_forty_packets", [True], "ok"),
    ("byte_order_mark", [True], "ok"),
    ("usage_in_every_chunk", [True], "ok"),
    ("two_choices", [True], "ok"),
    ("one_of_two_choices_unfinished", [True], "truncated"),
    ("logprobs", [True], "ok"),
    ("last_blank_line_missing", [True], "ok"),
    ("null_choices_first", [True], "protocol_error"),
    ("error_as_text", [True], "stream_error"),
    ("error_code_in_stream", [True], "stream_error"),
    ("tokens_then_silence", [True], "stalled"),
    ("headers_then_silence", BOTH, "stalled"),
    ("broken_gzip", [True], "protocol_error"),
    ("bytes_behind_the_end", [True], "ok"),
    ("chunk_sizes_with_extensions", [True], "ok"),
    ("whole_in_chunks", [False], "ok"),
    ("whole_shorter_than_promised", [False], "reset"),
    ("whole_hundred_continue", [False], "ok"),
    ("whole_big_headers", [False], "ok"),
    ("whole_half_then_silence", [False], "stalled"),
    ("whole_reset_mid_body", [False], "reset"),
    ("whole_usage_zero", [False], "ok"),
    ("whole_usage_missing", [False], "ok"),
    ("whole_no_token_stop", [False], "empty"),
    ("whole_utf8_split", [False], "ok"),
    ("content_length_is_no_number", BOTH, "protocol_error"),
    ("status_408", BOTH, "http_error"),
    ("status_413_gateway", BOTH, "http_error"),
    ("status_502_html", BOTH, "http_error"),
    ("status_504_gateway", BOTH, "http_error"),
    ("status_500_cut", BOTH, "http_error"),
    ("status_204", [True], "truncated"),
    ("status_204", [False], "protocol_error"),
    ("closed_while_idle", [True], "ok"),
    ("whole_closed_while_idle", [False], "ok"),
]
_A_NUMBER = SchemaRule({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
CONTRACTS = {
    "schema_": AnswerContract(_A_NUMBER),
    "tools_": AnswerContract(tools={"look_up": _A_NUMBER}, must_call=True),
}
"""Contracts of the modes whose names hold these words."""
SHORT = WireTimeouts(first_byte_ns=300_000_000, between_bytes_ns=200_000_000)
_NOTED = ("no_text", "thin_text", "extra_chunks", "usage_missing")
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
        for behaviour in BEHAVIOURS_OF_ENDPOINTS:
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
