"""Read answers whose stream is typed events, as those of /v1/responses.

Each event is a JSON object with a `type`. A terminal event ends the stream; there is no [DONE] of its own. Sans-I/O.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import orjson

from loadchaos.core.outcome_rules import TEXT_AFTER_DONE, TEXT_AFTER_FINISH, OutcomeEvent
from loadchaos.load.wire.answer_reader import PART_CHARS, AnswerReader, WrongShapeError, excerpt
from loadchaos.load.wire.sse import Event, JsonObject


class TypedEvents(AnswerReader):
    """Base of answers whose stream is typed events. A subclass reads an event in `read_typed` and a whole answer in
    `_read_whole`. Usage is kept under the names of a chat completion.
    """

    __slots__ = ("_given",)

    ALWAYS_DONE = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._given: dict[object, list[str]] = {}

    @abstractmethod
    def read_typed(self, at_ns: int, kind: str, data: JsonObject) -> None:
        """Read one event. Raises WrongShapeError."""

    def _event(self, at_ns: int, event: Event) -> None:
        self._events += 1
        if event.data == b"[DONE]":
            return  # some gateways add it
        try:
            data = orjson.loads(event.data)
        except orjson.JSONDecodeError:
            self._not_json(
                event if event.name == "error" else event._replace(name="")
            )  # names are part of the protocol
            return
        kind = data.get("type") if isinstance(data, dict) else None
        if not isinstance(kind, str) or kind == "error" or event.name == "error":
            if not self._is_error(event, data, named=kind == "error") and event.name in {"", "message"}:
                self.fail(f"an event has no type: {excerpt(event.data)}")
            return
        try:
            self.read_typed(at_ns, kind, data)
        except WrongShapeError as e:
            self.fail(f"{e}: {excerpt(event.data)}")

    def add_text(self, at_ns: int, text: object, *, answer: bool, part: object = None) -> None:
        """Add a piece of text that an event brought; `part` is its place."""
        if not isinstance(text, str):
            raise WrongShapeError("the text of an event is not a string")
        if not text:
            return
        if self.done_seen:
            self.spoil(OutcomeEvent("wrong_output", TEXT_AFTER_DONE))
            return
        if self.finish.get(0) is not None:
            self.outcome_events.append(OutcomeEvent("wrong_output", TEXT_AFTER_FINISH))
        self._text.append(text)
        if answer and part is not None:
            self._given.setdefault(part, []).append(text)
        if answer and self._content is not None:
            self._content.setdefault(0, []).append(text)
        self._record_token(at_ns, answer=answer)

    def check_text(self, part: object, whole: object) -> None:
        """Compare the text of a part with the pieces that were streamed."""
        given = "".join(self._given.get(part, ()))
        if not isinstance(whole, str):
            raise WrongShapeError("the text of an event is not a string")
        if whole != given and not self.contradictions and not self.front_skipped:
            text = "the complete text of the stream differs from its pieces"
            expected, got = whole[-PART_CHARS:], given[-PART_CHARS:]
            self.contradictions.append({"id": "stream_contradicts", "text": text, "expected": expected, "got": got})

    def add_call(self, at_ns: int, number: int, name: str, arguments: str) -> None:
        known, before, _ = self._calls.setdefault((0, number), ["", "", ""])
        self._calls[0, number] = [known or name, before + arguments, ""]
        self.has_calls = True
        self.names_call = self.names_call or bool(name)
        self._record_token(at_ns, answer=True)

    def whole_text(self, text: object, *, answer: bool) -> None:
        if not isinstance(text, str):
            raise WrongShapeError("a text is not a string")
        if text:
            self._text.append(text)
            self.has_text = True
            self.has_answer = self.has_answer or answer
            if answer and self._content is not None:
                self._content.setdefault(0, []).append(text)

    def whole_call(self, name: object, arguments: str) -> None:
        self._calls[0, len(self._calls)] = [str(name), arguments, ""]
        self.has_text = self.has_answer = self.has_calls = True

    def keep_id(self, holder: Mapping[str, object]) -> None:
        """Keep the id and the labels of the answer, and count changes of its id."""
        self._read_labels(holder)
        known = holder.get("id")
        if not isinstance(known, str):
            return
        if self.answer_id is None:
            self.answer_id = known
        elif known != self.answer_id:
            self.id_changes += 1
