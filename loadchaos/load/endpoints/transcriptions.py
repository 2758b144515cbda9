"""The transcription endpoint: /v1/audio/transcriptions.

Its body is multipart. vLLM streams chunks as those of chat, OpenAI typed events (`transcript.text.delta`).
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from loadchaos.core.model import Facts
from loadchaos.core.outcome_rules import TEXT_AFTER_DONE, OutcomeEvent
from loadchaos.load.endpoints.base import ModelEndpoint, all_sampling_but
from loadchaos.load.wire.answer_reader import AnswerReader, WrongShapeError, usage_of
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.sse import Event

_BOUNDARY = "loadchaos-7d1f0a64c2b9435e8f3a"
_DELTA, _DONE = "transcript.text.delta", "transcript.text.done"


def _body(request: Request, facts: Facts) -> bytes:
    fields: dict[str, object] = {
        "model": request.model or facts.model,
        "temperature": request.extra.get("temperature", 0),
        "seed": request.step.seed & 0x7FFFFFFF,
        "max_completion_tokens": request.output_tokens,
    }
    if request.stream:
        fields |= {"stream": "true", "stream_include_usage": "true"}
    parts = [
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    head = 'Content-Disposition: form-data; name="file"; filename="audio.wav"\r\nContent-Type: audio/wav'
    begin = f"{''.join(parts)}--{_BOUNDARY}\r\n{head}\r\n\r\n"
    return b"".join(
        (begin.encode(), request.audio_files[0] if request.audio_files else b"", f"\r\n--{_BOUNDARY}--\r\n".encode())
    )


class TranscriptionAnswer(AnswerReader):
    """An answer of /v1/audio/transcriptions. vLLM applies max_completion_tokens to each 30 s of audio."""

    __slots__ = ()
    LIMIT_IS_OF_WHOLE_ANSWER = False

    def _event(self, at_ns: int, event: Event) -> None:
        kind, data = _typed(event)
        if kind not in {_DELTA, _DONE}:
            super()._event(at_ns, event)
            return
        self._events += 1
        text = data.get("delta", "") if kind == _DELTA else ""
        if not isinstance(text, str):
            self.fail("the text of an event is not a string")
        elif text and self.done_seen:
            self.spoil(OutcomeEvent("wrong_output", TEXT_AFTER_DONE))
        elif text:
            self._text.append(text)
            self._record_token(at_ns, answer=True)
        if kind == _DONE and not self.done_seen:
            self._read_usage(data)
            self.finish[0] = "stop"
            self.end_stream()

    def _after_finish(self, index: int) -> None:
        """Expect another finish_reason, which ends the text of the next part."""
        self.finish[index] = None

    def _read_whole(self, data: object) -> None:
        if not isinstance(data, dict) or not isinstance(data.get("text"), str):
            raise WrongShapeError("text is not a string")
        self._read_usage(data)
        if data["text"]:
            self._text.append(data["text"])
            self.has_text = self.has_answer = True
        self.finish[0] = "stop"

    def _read_usage(self, data: Mapping[str, object]) -> None:
        """Read usage in tokens, or the seconds of audio in their place."""
        if (usage := usage_of(data)) is not None:
            names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
            self.usage = {names.get(name, name): value for name, value in usage.items()}


def _typed(event: Event) -> tuple[str, Mapping[str, object]]:
    if not event.data.startswith(b"{") or b'"transcript.text.' not in event.data:
        return "", {}
    try:
        data = orjson.loads(event.data)
    except orjson.JSONDecodeError:
        return "", {}
    return str(data.get("type")), data


ENDPOINT = ModelEndpoint(
    path="/v1/audio/transcriptions",
    body=_body,
    payloads=frozenset({"audio", "sampling"}),
    answer=TranscriptionAnswer,
    exact_fields=frozenset(),
    content_type=f"multipart/form-data; boundary={_BOUNDARY}",
    needs="audio",
    lacks=all_sampling_but("models", "adapters", "temperature") | {"audio.count"},
)
