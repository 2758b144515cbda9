from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules, final_event
from loadchaos.load.wire.sse import EventTemplate

TEXT = st.sampled_from([
    b" the", b"", b"a", b" river", b'\\"', b"\\n", b"\\u00e9", b'"', b"\\", b"\n", b"\r", b"\x00", b"\x7f", b"\xc3\xa9",
    b"\xe2\x80\xa8", b"\xc2\x85", b"\xff", b"\xed\xa0\x80", b"\xe4\xb8\xad", b'","x":"', b'"}}],"error":{"message":"no"}}',
    b'x"},"finish_reason":"error"}]}\n\ndata: {"a":"', b"\n\n", b"[DONE]", b"null", b'"content":"',
])  # fmt: skip
FORM = st.sampled_from([
    b'{"id":"c","choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":null}],"usage":null}',
    b'{"id":"c","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}',
    b'{"choices":[{"index":0,"delta":{"content":"%s","content":"two"}}]}',
    b'{"choices":[{"index":1,"delta":{"reasoning":"%s"},"finish_reason":null}]}',
    b'{"choices":[{"index":0,"delta":{"reasoning_content":"%s","content":null},"finish_reason":null}]}',
    b'{"choices":[{"index":0,"text":"%s","finish_reason":null}]}',
    b'{"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":"stop"}]}',
    b'{"choices":[{"index":0,"delta":{"role":"%s","content":"x"},"finish_reason":null}]}',
    b'{"choices":[{"index":0,"delta":{"content":"%s"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}',
    b'{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}],"content":"%s"}}]}',
    b'{"choices":[{"index":0,"delta":{"content":7}}]}%s',
    b'{"error":{"message":"%s"}}',
    b'{"choices":\ndata: [{"index":0,"delta":{"content":"%s"}}]}',
    b'{"choices":\n[{"index":0,"delta":{"content":"%s"}}]}',
    b"[DONE]%s",
])  # fmt: skip
FRAME = st.sampled_from(
    [b"data: %s\n\n"] * 6 + [b"data:%s\n\n", b"data: %s\r\n\r\n", b"event: x\ndata: %s\n\n", b": %s\n"]
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Draw runs of events of one form, sometimes disturbed by others."""
    stream = b""
    for _ in range(draw(st.integers(1, 3))):
        form, frame = draw(FORM), draw(FRAME)
        for text in draw(st.lists(TEXT, min_size=1, max_size=7)):
            # `%s` by hand: the texts hold percent signs of nobody's, and the forms more than one quote
            stream += frame.replace(b"%s", form.replace(b"%s", text))
        stream += draw(st.sampled_from([b"", b"", b"data: ", b"\n", b"data: [DONE]\n\n"]))
    return stream


def read(stream: bytes, cuts: list[int], *, learning: bool) -> dict[str, Any]:
    answer = AnswerReader(AnswerRules(), asked_stream=True, declared_stream=True)
    edges = sorted({0, len(stream), *(c for c in cuts if c < len(stream))})
    with pytest.MonkeyPatch.context() as patch:
        if not learning:
            patch.setattr(EventTemplate, "learn", lambda *_: None)
        for n, (a, b) in enumerate(pairwise(edges)):
            answer.feed(1000 * n + 1, stream[a:b])
        answer.close(10**9, complete=True)
    hidden = {"_template", "_sse", "_prefix", "_text"}
    return {
        **{k: getattr(answer, k) for k in AnswerReader.__slots__ if k not in hidden},
        "outcome_events": list(dict.fromkeys(answer.outcome_events)),  # of text after the end, the first one counts
        "text": answer.text,
        "end": final_event(answer),
    }


def frames(stream: bytes) -> list[int]:
    """Offsets at which events end; a server writes each by itself."""
    return [n + 2 for n in range(len(stream)) if stream.startswith(b"\n\n", n)]


@settings(max_examples=250, deadline=None)
@given(stream=streams(), cuts=st.lists(st.integers(0, 2000), max_size=10))
def test_event_template_does_not_change_a_streams_result(stream: bytes, cuts: list[int]) -> None:
    for pieces in (frames(stream), cuts, frames(stream)[::3], []):
        assert read(stream, pieces, learning=True) == read(stream, pieces, learning=False)


@pytest.mark.parametrize(
    ("often", "then"),
    [
        (LINES := b'data: {"choices":\ndata: [{"delta":{"content":"a"}}]}\n\n', LINES.replace(b"data: [", b"[")),
        (b'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":1}}\n\n', b'data: {"usage":{}}\n\n'),
        (TOKEN := b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n', TOKEN.replace(b"null", b'"x"')),
        (TOKEN, TOKEN.replace(b"null", b'null,"token_ids":[1]')),
        (TOKEN, TOKEN.replace(b"}\n", b',"error":{"message":"b"}}\n')),
        (TWICE := b'data: {"choices":[{"delta":{"content":"a"},"s":"a"}]}\n\n', TWICE.replace(b's":"a', b's":"z')),
    ],
)  # fmt: skip
def test_event_template_rejects_events_that_only_look_equal(often: bytes, then: bytes) -> None:
    stream = often * 4 + then + often
    assert read(stream, frames(stream), learning=True) == read(stream, frames(stream), learning=False)


def test_event_template_parses_a_usual_stream_twice_only(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    real = orjson.loads

    def loads(data: bytes) -> Any:
        if data[:1] == b"{":
            parsed.append(data)
        return real(data)

    monkeypatch.setattr("loadchaos.load.wire.answer_reader.orjson.loads", loads)
    form = b'{"id":"c","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}'
    answer = AnswerReader(AnswerRules(), asked_stream=True, declared_stream=True)
    for n in range(50):
        answer.feed(n, b"data: " + form.replace(b"%s", b" word%d" % n) + b"\n\n")
    assert (answer.chunks, len(parsed)) == (50, 3)  # the first, the second, and the proof
    assert answer.text.endswith(" word49")


def test_event_template_stops_learning_where_other_fields_differ() -> None:
    template = EventTemplate()
    for n in range(20):
        value = {"choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [n]}]}
        template.learn(orjson.dumps(value), value)
    assert template._tries == 0
