"""Send one question and record its answer. Where the server gives logprobs, the row has each token with the gap to the
next likely one: that tells a wrong token from a near tie.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass

from loadchaos.core.ledger.rows import Emit, QuestionPart, QuestionRow, QuestionTime
from loadchaos.core.redact import Redactor
from loadchaos.server.answer import ANSWER_LIMIT_S, ERROR_CHARS, NOT_WAITED_FOR, Answer, Asker, chat_body
from loadchaos.server.memory import Learned, ProbeMemory
from loadchaos.server.probes.question import Question

_TEXT_CHARS = 4_000
_TOP = 2


@dataclass(frozen=True)
class Purpose:
    """Purpose of a question; fields as in `QuestionRow`."""

    part: QuestionPart
    kind: str
    when: QuestionTime
    group: int = 0
    role: str = ""


class RecordedAsker:
    """Asks the chat URL of one server and writes a row for each question."""

    def __init__(
        self, asker: Asker, url: str, model: str, emit: Emit, redactor: Redactor, memory: ProbeMemory | None = None
    ) -> None:
        self._asker, self._url, self.model = asker, url, model
        self._emit, self._redactor = emit, redactor
        self._memory = memory if memory is not None else ProbeMemory()
        self.kept: list[Learned] | None = None
        """Collects the rows that are written; None: they are not collected."""

    @property
    def logprobs(self) -> bool:
        """False once the server refused a request with logprobs."""
        return self._memory.logprobs

    def emit(self, row: Learned) -> None:
        self._emit(row)
        if self.kept is not None:
            self.kept.append(row)

    def new_group(self) -> int:
        return next(self._memory.groups)

    async def ask(
        self, question: Question, purpose: Purpose, *, stream: bool = False, model: str | None = None
    ) -> QuestionRow:
        sent_ns, n, model = time.monotonic_ns(), next(self._memory.numbers), model or self.model
        answer = NOT_WAITED_FOR
        try:
            answer = await self._send(question, model, stream=stream)
            if self.logprobs and 400 <= answer.status < 500 and "logprob" in answer.error.lower():
                self._memory.logprobs = False
                answer = await self._send(question, model, stream=stream)
        finally:
            row = self._row(question, purpose, answer)
            row |= {"n": n, "sent_ns": sent_ns, "model": model}
            self.emit(row)
        return row

    async def leave(self, question: Question, *, after_tokens: int) -> None:
        """Send a streamed request and close its connection after some tokens. Nothing is judged, so no row is written."""
        await self._send(question, self.model, stream=True, leave_after=after_tokens)

    async def _send(self, question: Question, model: str, *, stream: bool, leave_after: int | None = None) -> Answer:
        options: dict[str, object] = {"stream": stream, "seed": 1}
        if stream:
            options["stream_options"] = {"include_usage": True}
        if question.salt:
            options["cache_salt"] = question.salt
        if self.logprobs:
            options |= {"logprobs": True, "top_logprobs": _TOP}
        body = chat_body(model, _content(question), question.most_tokens, self._asker.changes, **options)
        return await self._asker.ask(self._url, body, limit_s=ANSWER_LIMIT_S, stream=stream, leave_after=leave_after)

    def _row(self, question: Question, purpose: Purpose, answer: Answer) -> QuestionRow:
        message = json.dumps([question.prompt, *question.images])
        row: QuestionRow = {
            "row": "question", "at_ns": time.monotonic_ns(), "sent_ns": 0, "n": 0, "group": purpose.group,
            "part": purpose.part, "kind": purpose.kind, "when": purpose.when, "role": purpose.role, "model": "",
            "prompt": question.prompt[:_TEXT_CHARS], "hash": hashlib.sha256(message.encode()).hexdigest()[:16],
            "expected": question.expected, "status": answer.status, "text": answer.text[:_TEXT_CHARS],
            "error": self._redactor.text(answer.error)[:ERROR_CHARS],
        }  # fmt: skip
        if question.images:
            row["image_names"] = [_name(question.uuid or url) for url in question.images]
        if answer.finish is not None:
            row["finish"] = answer.finish
        if answer.tokens:
            row["tokens"], row["gaps"] = answer.tokens, answer.gaps
        counts = answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens
        if counts != (None, None, None):
            row["prompt_tokens"], row["completion_tokens"], row["cached_tokens"] = counts
        return row


def _name(image: str) -> int:
    return int.from_bytes(hashlib.sha256(image.encode()).digest()[:6])


def _content(question: Question) -> object:
    if not question.images:
        return question.prompt
    named = {"uuid": question.uuid} if question.uuid else {}
    images = [{"type": "image_url", "image_url": {"url": url}, **named} for url in question.images]
    return [*images, {"type": "text", "text": question.prompt}]
