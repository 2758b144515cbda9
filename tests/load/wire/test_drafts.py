from typing import Any

import orjson
import pytest

from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules
from loadchaos.load.wire.drafts import DraftCount

VLLM = {"metrics": {"speculative_decoding": {"num_draft_tokens": 30, "num_accepted_draft_tokens": 21}}}
LLAMA_CPP = {"timings": {"predicted_n": 30, "draft_n": 12, "draft_n_accepted": 0}}
SGLANG = {
    "sglext": {
        "spec_tokens_details": [
            {"spec_num_proposed_drafts": 8, "spec_num_correct_drafts": 6},
            {"spec_num_proposed_drafts": 4, "spec_num_correct_drafts": 1},
        ]
    }
}


def drafts(told: dict[str, Any], *, stream: bool) -> DraftCount | None:
    answer = AnswerReader(AnswerRules(), asked_stream=stream, declared_stream=stream)
    head = {"id": "x", "object": "chat.completion"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    if stream:
        pieces = [
            {**head, "choices": [{"index": 0, "delta": {"content": f"w{n}"}, "finish_reason": None}]} for n in range(9)
        ]
        events = [*pieces, {**head, "choices": [], "usage": usage, **told}]
        body = b"".join(b"data: " + orjson.dumps(e) + b"\n\n" for e in events) + b"data: [DONE]\n\n"
    else:
        message = {"role": "assistant", "content": "hello"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = orjson.dumps({**head, "choices": [choice], "usage": usage, **told})
    answer.feed(1, body)
    answer.close(2, complete=True)
    return answer.drafts


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("told", "found"),
    [
        (VLLM, DraftCount(30, 21)),
        (LLAMA_CPP, DraftCount(12, 0)),
        (SGLANG, DraftCount(12, 7)),
        ({}, None),
        ({"metrics": None, "timings": {"predicted_n": 3}, "sglext": 7}, None),
        ({"metrics": {"speculative_decoding": {"num_draft_tokens": "3", "num_accepted_draft_tokens": 1}}}, None),
    ],
)
def test_draft_count_is_read_from_streams_and_whole_answers(
    told: dict[str, Any], found: DraftCount | None, *, stream: bool
) -> None:
    assert drafts(told, stream=stream) == found
