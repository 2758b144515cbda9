"""A running generation under LMDeploy: its chunks, bodies and errors."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import orjson

from loadchaos.simulator.body import Body, inside
from loadchaos.simulator.engine.answers import AnswerText
from loadchaos.simulator.engine.types import RequestOutput
from loadchaos.simulator.http.server import DONE, HttpExchange, error_event
from loadchaos.simulator.lmdeploy import errors
from loadchaos.simulator.lmdeploy.errors import Outcome

if TYPE_CHECKING:
    from loadchaos.simulator.lmdeploy.api import LmdeployApi


class LmdeployGeneration:
    """One HTTP request being answered. `answer`: the text that its tokens have."""

    def __init__(
        self,
        server: LmdeployApi,
        exchange: HttpExchange,
        data: Body,
        answer: AnswerText,
        *,
        session: int,
        prompt_tokens: int,
    ) -> None:
        self._server, self._exchange, self.answer = server, exchange, answer
        self._session, self._prompt_tokens = session, prompt_tokens
        self._chat = chat = "/chat/" in exchange.path
        self._stream = bool(data.get("stream"))
        self._include_usage = bool(inside(data.get("stream_options")).get("include_usage"))
        self._tokens = self._pending = self._cached = 0
        self.finished = False
        shown_id = f"chatcmpl-{uuid.uuid4().hex[:22]}" if chat and server.release >= (0, 14, 0) else str(session)
        kind = ("chat.completion.chunk" if self._stream else "chat.completion") if chat else "text_completion"
        self._base = {"id": shown_id, "object": kind, "created": int(time.time()), "model": server.model}
        self._head = orjson.dumps(self._base)[:-1]
        server.metrics.in_flight += 1
        exchange.on_disconnect = self._disconnected
        exchange.on_resume = self._flush
        if self._stream:
            exchange.start()  # before admission: the first byte comes while the request still queues

    def output(self, output: RequestOutput) -> None:
        if self.finished:
            return
        if output.error is not None:
            self._engine_error(output.error)
            return
        self._measure(output)
        self._tokens += output.new_tokens
        self._pending += output.new_tokens
        if self._stream and not self._exchange.paused:
            self._flush()
        if output.finish_reason is not None:
            self.finish(output.finish_reason)

    def engine_died(self) -> None:
        """End after an engine death, as the era does. Up to 0.15 the text is cut without a finish_reason, later there
        is a clean error, in 0.6 the connection breaks.
        """
        if self.finished:
            return
        release = self._server.release
        if release >= (0, 16, 0):
            self._refuse(errors.engine_failed())
            return
        if release < (0, 7, 0):
            self._exchange.cut() if self._stream else self._exchange.connection.close()
        elif self._stream:
            self._exchange.end(DONE)
        elif self._tokens:
            self._exchange.send(200, self._body(self._text(), None))
        else:
            errors.send_plain_500(self._exchange)
        self._end(failed=True)

    def finish(self, reason: str, text: str | None = None) -> None:
        """End with a finish_reason. `text` replaces the answer's text where the server answers with an error text."""
        self.finished = True
        if not self._stream:
            shown = self._text() if text is None else text
            self._exchange.send(200, self._body(shown, reason))
        else:
            self._write(self._text() + (text or ""), reason)
            if self._include_usage:
                usage = orjson.dumps(self._usage())
                self._exchange.write(b'data: %b,"choices":[],"usage":%b}\n\n' % (self._head, usage))
            self._exchange.end(DONE)
        self._end(failed=reason in {"error", "abort"})

    def _engine_error(self, error: str) -> None:
        server, log = self._server, self._server.log
        chat, stream = self._chat, self._stream
        how = errors.outcome(server.release, chat, stream, server.rules.kv_error_as_500, server.refuses_cleanly)
        status = f"{error}, " if server.release >= (0, 12, 0) else ""
        if server.release >= (0, 7, 1):
            log.line("ERROR", "async_engine.py:731", f'session {self._session} finished, {status}reason "error"')
        if how is Outcome.HTTP_500:
            log.raw(errors.validation_traceback(chat, stream))
            self._exchange.cut() if stream else errors.send_plain_500(self._exchange)
            self._end(failed=True)
        elif how is Outcome.TEXT:
            self.finish("error", errors.error_text(error, server.release))
        else:
            self._refuse(errors.refusal_for(error))

    def _refuse(self, refusal: errors.LmdeployRefusal) -> None:
        if self._stream:
            self._exchange.write(error_event(refusal.error))
            self._exchange.end(DONE)
        else:
            self._exchange.send_json(refusal.error, refusal.status)
        self._end(failed=True)

    def _end(self, failed: bool) -> None:
        self.finished = True
        metrics = self._server.metrics
        if failed:
            metrics.failed += 1
        else:
            metrics.succeeded += 1
        metrics.in_flight -= 1

    def _measure(self, output: RequestOutput) -> None:
        metrics = self._server.metrics
        metrics.generation_tokens += output.new_tokens
        if not self._tokens:
            self._cached = output.cached_tokens
            metrics.prompt_tokens += self._prompt_tokens

    def _text(self) -> str:
        tokens, self._pending = self._pending, 0
        return self.answer.next_text(tokens) if tokens else ""

    def _flush(self) -> None:
        if self._stream and self._pending and not self.finished:
            self._write(self._text(), None)

    def _write(self, text: str, reason: str | None) -> None:
        choice: dict[str, object] = {"index": 0}
        choice |= {"delta": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        if reason is not None or self._server.release < (0, 14, 0):
            choice["finish_reason"] = reason  # the key is absent until the last chunk in newer versions
        self._exchange.write(b'data: %b,"choices":[%b],"usage":null}\n\n' % (self._head, orjson.dumps(choice)))

    def _usage(self) -> dict[str, object]:
        total = self._prompt_tokens + self._tokens
        usage: dict[str, object] = {
            "prompt_tokens": self._prompt_tokens,
            "total_tokens": total,
            "completion_tokens": self._tokens,
        }
        if self._server.release >= (0, 14, 0):
            usage["prompt_tokens_details"] = {"cached_tokens": self._cached}
        return usage

    def _body(self, text: str, reason: str | None) -> bytes:
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": reason}
        message = {"role": "assistant", "content": text, "tool_calls": None}
        choice |= {"message": message} if self._chat else {"text": text}
        return orjson.dumps({**self._base, "choices": [choice], "usage": self._usage()})

    def _disconnected(self) -> None:
        self._end(failed=True)
        self._server.engine.abort([str(self._session)])
