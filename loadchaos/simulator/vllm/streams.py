"""A running generation under vLLM: chunks of a stream, or one body."""

from __future__ import annotations

import time
import uuid
import zlib
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

import orjson

from loadchaos.simulator.body import Body
from loadchaos.simulator.engine.answers import AnswerText, opening_of, ordered_opening
from loadchaos.simulator.engine.types import RequestOutput
from loadchaos.simulator.http.server import DONE, HttpExchange
from loadchaos.simulator.media.processor import answer_seed
from loadchaos.simulator.vllm import errors
from loadchaos.simulator.vllm.errors import VllmRefusal
from loadchaos.simulator.vllm.requests import CheckedRequest

if TYPE_CHECKING:
    from loadchaos.simulator.vllm.api import VllmApi


@dataclass(slots=True, eq=False)
class Choice:
    """One of the n answers: its text, its end, and its unwritten tokens. `entries`: logprobs of tokens, not yet sent."""

    owner: VllmGeneration
    index: int
    id: str
    answer: AnswerText
    stop_after: int
    entries: list[Body] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    tokens: int = 0
    pending: int = 0
    finish: str | None = None
    stop_text: str | None = None
    written: bool = False

    def output(self, output: RequestOutput) -> None:
        self.owner.output(self, output)

    def engine_died(self) -> None:
        self.owner.engine_died()


class VllmGeneration:
    """One HTTP request being answered. The engine's side calls `output`, `fail` and `abort`."""

    chunk_kind = ""
    """Value of `object` in a chunk; empty: that of chat or text completions."""

    def __init__(
        self, server: VllmApi, exchange: HttpExchange, checked: CheckedRequest, engine_id: str, seeds: list[int]
    ) -> None:
        self._server = server
        self._exchange = exchange
        self._checked = checked
        self._answering = False
        self._created = int(time.time())
        self._model = checked.adapter or server.model
        self._cached = 0
        self.finished = False
        sampling = checked.sampling
        ids = [engine_id] if sampling.n == 1 else [f"{i}_{engine_id}" for i in range(sampling.n)]
        guided = checked.guided
        pictures = [image.content for _, image in checked.images]
        opening = opening_of(checked.ids, pictures, guided)
        self._tool = guided.tool if guided is not None else ""
        self._named = guided is not None and guided.named
        self.choices = [Choice(self, i, ids[i], AnswerText(seeds[i], opening), len(opening)) for i in range(sampling.n)]
        kind = "chat.completion.chunk" if checked.chat else "text_completion"
        tier = {"service_tier": server.service_tier} if server.service_tier else {}
        head = {
            "id": checked.request_id,
            "object": self.chunk_kind or kind,
            "created": self._created,
            "model": self._model,
        }
        self._head = orjson.dumps({**head, **tier})[:-1]
        exchange.on_disconnect = self._disconnected
        exchange.on_resume = self._flush
        if sampling.stream:
            exchange.start()
        self._prepare()

    def _prepare(self) -> None:
        """Send what stands at the begin of a stream."""

    @property
    def ids(self) -> list[str]:
        return [choice.id for choice in self.choices if choice.finish is None]

    @property
    def prompt_tokens(self) -> int:
        return len(self._checked.ids)

    def output(self, choice: Choice, output: RequestOutput) -> None:
        if self.finished:
            return
        if output.error is not None:
            self._server.metrics.finished["error"] += 1
            self.fail(VllmRefusal("Internal server error", "InternalServerError", None, 500))
            return
        self._measure(output)
        if output.seen_image is not None:
            self._answer_about(choice, output.seen_image)
        if output.used_adapter is not None and self._checked.guided is None:
            seeds = seeds_for(replace(self._checked, adapter=output.used_adapter), Random(choice.answer.seed))
            choice.answer = AnswerText(seeds[choice.index], ordered_opening(self._checked.ids))
        if output.fault is not None:
            choice.answer.spoil(output.fault, after=choice.pending)
        choice.tokens += output.new_tokens
        choice.pending += output.new_tokens
        choice.finish = output.finish_reason
        if self._checked.sampling.stop:
            self._stop_at_text(choice)
        if choice.finish is not None:
            self._server.metrics.finished[choice.finish] += 1
        if self._checked.sampling.stream and not self._exchange.paused:
            self._write(choice)
        if all(c.finish is not None for c in self.choices):
            self._finish()

    def _answer_about(self, choice: Choice, mm_hash: str) -> None:
        other = self._server.seen_images.get(mm_hash)
        opening = ordered_opening(self._checked.ids, [other.content] if other is not None else ())
        if opening:
            choice.answer = AnswerText(choice.answer.seed, opening)
        else:
            choice.answer.spoil("derailed", after=0)

    def engine_died(self) -> None:
        self.fail(errors.dead(self._server.release))

    def fail(self, refusal: VllmRefusal) -> None:
        """End with an error: inside the stream, or as the answer."""
        if self.finished:
            return
        self.finished = True
        self._server.engine.abort(self.ids)
        if self._checked.sampling.stream:
            self._fail_stream(refusal)
        else:
            errors.send(self._exchange, refusal, self._server.release)
        self._server.generation_ended(self)

    def _fail_stream(self, refusal: VllmRefusal) -> None:
        self._exchange.write(errors.stream_event(refusal, self._server.release))
        self._exchange.end(DONE)

    def abort(self) -> None:
        """End with finish_reason abort and the text so far. /abort_requests, /pause and /sleep do this."""
        if self.finished:
            return
        self._server.engine.abort(self.ids)
        for choice in self.choices:
            if choice.finish is None:
                choice.finish = "abort"
                self._server.metrics.finished["abort"] += 1
                if self._checked.sampling.stream:
                    self._write(choice)
        self._finish()

    def _measure(self, output: RequestOutput) -> None:
        metrics = self._server.metrics
        metrics.generation_tokens += output.new_tokens
        if not self._answering:
            self._answering = True
            self._cached = output.cached_tokens
            metrics.prompt_tokens += self.prompt_tokens

    def _stop_at_text(self, choice: Choice) -> None:
        """End at the first stop text, which vLLM leaves out of the answer."""
        choice.parts.append(choice.answer.next_text(choice.pending))
        choice.pending = 0
        text = "".join(choice.parts)
        found = [(text.find(stop), stop) for stop in self._checked.sampling.stop if stop in text]
        if found:
            position, stop = min(found)
            choice.parts = [text[:position]]
            choice.stop_text = stop
            if choice.finish is None:
                self._server.engine.abort([choice.id])
            choice.finish = "stop"

    def _unwritten_text(self, choice: Choice) -> str:
        if self._checked.sampling.stop:
            text, choice.parts = "".join(choice.parts), choice.parts if not self._checked.sampling.stream else []
            return text
        tokens, choice.pending = choice.pending, 0
        if self._checked.sampling.logprobs:
            texts = [choice.answer.next_text(1) for _ in range(tokens)]
            choice.entries += [token_logprob(text, self._checked.sampling.top_logprobs) for text in texts if text]
            return "".join(texts)
        return choice.answer.next_text(tokens) if tokens else ""

    def _write(self, choice: Choice) -> None:
        """Write one chunk for all new tokens. The role comes before the first chunk of all."""
        text = self._unwritten_text(choice)
        chat = self._checked.chat
        if chat and not choice.written:
            deltas: list[Body] = [{"role": "assistant", "content": ""}]
            if self._tool:
                call = {"index": 0, "id": f"call_{choice.id}", "type": "function", "function": {"name": self._tool}}
                deltas.append({"tool_calls": [call]})
            for delta in deltas:
                self._chunk({"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None})
        choice.written = True
        chunk: dict[str, object] = {"index": choice.index}
        if not chat:
            chunk["text"] = text
        elif self._tool:
            chunk["delta"] = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        else:
            chunk["delta"] = {"content": text}
        chunk |= {"logprobs": self._logprobs(choice), "finish_reason": self._finish_reason(choice)}
        if choice.finish is not None:
            chunk["stop_reason"] = choice.stop_text
        self._chunk({**chunk, "token_ids": None}, last=choice.finish is not None)

    def _logprobs(self, choice: Choice) -> Body | None:
        """Take the entries of the tokens since the last call; None where none were asked for."""
        entries, choice.entries = choice.entries, []
        return {"content": entries} if self._checked.sampling.logprobs else None

    def _chunk(self, choice: Body, *, last: bool = False) -> None:
        fingerprint = b""
        if last and self._server.fingerprint:
            fingerprint = b',"system_fingerprint":%b' % orjson.dumps(self._server.fingerprint)
        self._exchange.write(b'data: %b,"choices":[%b]%b}\n\n' % (self._head, orjson.dumps(choice), fingerprint))

    def _flush(self) -> None:
        for choice in self.choices:
            if choice.pending and not self.finished:
                self._write(choice)

    def _finish(self) -> None:
        self.finished = True
        if self._checked.sampling.stream:
            self._end_stream()
        else:
            self._exchange.send(200, self._body())
        self._server.generation_ended(self)

    def _write_rest(self) -> None:
        for choice in self.choices:
            if choice.pending or not choice.written:
                self._write(choice)

    def _end_stream(self) -> None:
        self._write_rest()
        if self._checked.sampling.include_usage:
            usage = orjson.dumps(self._usage(whole=False))
            self._exchange.write(b'data: %b,"choices":[],"usage":%b}\n\n' % (self._head, usage))
        self._exchange.end(DONE)

    def _usage(self, whole: bool) -> Body:
        done = sum(c.tokens for c in self.choices)
        usage: dict[str, object] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + done,
            "completion_tokens": done,
        }
        if self._server.token_details:
            images = sum(image.tokens for _, image in self._checked.images)
            usage["prompt_tokens_details"] = {"cached_tokens": self._cached, "multimodal_tokens": {"image": images}}
        elif whole:
            usage["prompt_tokens_details"] = None
        if whole:
            usage["completion_tokens_details"] = None
        return usage

    def _body(self) -> bytes:
        choices = [self._whole_choice(choice) for choice in self.choices]
        kind = "chat.completion" if self._checked.chat else "text_completion"
        body: dict[str, object] = {
            "id": self._checked.request_id, "object": kind, "created": self._created, "model": self._model,
            "choices": choices, "service_tier": self._server.service_tier, "system_fingerprint": self._server.fingerprint,
            "usage": self._usage(whole=True),
        }  # fmt: skip
        if self._checked.chat:
            body |= {"prompt_logprobs": None, "prompt_token_ids": None}
        return orjson.dumps({**body, "kv_transfer_params": None})

    def _finish_reason(self, choice: Choice) -> str | None:
        """Finish reason that the client reads. It is `stop` for a call that the request named, as in vLLM 0.32."""
        called = self._checked.chat and self._tool and not self._named and choice.finish == "stop"
        return "tool_calls" if called else choice.finish

    def _whole_choice(self, choice: Choice) -> Body:
        text = self._unwritten_text(choice)
        rest = {"finish_reason": self._finish_reason(choice), "stop_reason": choice.stop_text, "token_ids": None}
        if not self._checked.chat:
            return {"index": choice.index, "text": text, "logprobs": None, **rest, "prompt_logprobs": None}
        message: dict[str, object] = {
            "role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None,
            "function_call": None, "reasoning": None,
        }  # fmt: skip
        if self._tool:
            called = {"name": self._tool, "arguments": text}
            calls = [{"id": f"call_{choice.id}", "type": "function", "function": called}]
            message |= {"content": None, "tool_calls": calls}
        return {"index": choice.index, "message": message, "logprobs": self._logprobs(choice), **rest}

    def _disconnected(self) -> None:
        """End after a disconnect. Such requests are counted in no finished_reason (measured on 0.32)."""
        self.finished = True
        self._server.engine.abort(self.ids)
        self._server.generation_ended(self)


def token_logprob(text: str, top: int) -> Body:
    """Return one token's entry of `logprobs`. The second likely token is far behind."""

    def entry(token: str, logprob: float) -> Body:
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

    second = entry(" the" if text != " the" else " of", -4.5)
    return {**entry(text, -0.02), "top_logprobs": [entry(text, -0.02), second][:top]}


def new_id(chat: bool, client_id: str | None) -> str:
    """Return an id: chatcmpl- and the client's X-Request-Id, or a random one."""
    return f"{'chatcmpl' if chat else 'cmpl'}-{client_id or uuid.uuid4().hex[:16]}"


def seeds_for(checked: CheckedRequest, rng: Random) -> list[int]:
    sampling = checked.sampling
    base = answer_seed(checked.ids, checked.images, sampling.temperature, sampling.seed, rng)
    base ^= zlib.crc32(checked.adapter.encode()) & 0x7FFFFFFF
    return [base + i for i in range(sampling.n)]
