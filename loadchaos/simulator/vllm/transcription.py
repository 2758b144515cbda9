"""/v1/audio/transcriptions of the embedded server. A real vLLM serves it with a speech model, and then no chat; this
one serves both.
"""

from __future__ import annotations

import re

import orjson

from loadchaos.simulator.body import Body
from loadchaos.simulator.http.server import HttpExchange
from loadchaos.simulator.media.audio import of_bytes
from loadchaos.simulator.media.processor import DecodedImage, ImageError
from loadchaos.simulator.vllm.errors import VllmRefusal, validation
from loadchaos.simulator.vllm.streams import Choice, VllmGeneration

PATH = "/v1/audio/transcriptions"
_BOUNDARY = re.compile(r'multipart/form-data;.*boundary="?([^";]+)"?')
_FIELD = re.compile(rb'name="([^"]+)"')
START = (257, 258, 259, 260)
"""Tokens that a transcription begins with."""


class Form:
    """Fields and file of a multipart body. Raises VllmRefusal for a body without a file that can be read."""

    def __init__(self, exchange: HttpExchange) -> None:
        kind = _BOUNDARY.match(exchange.headers.get("content-type", ""))
        if kind is None:
            raise validation("missing", "body.file", "Field required", None)
        self.fields: dict[str, str] = {}
        found: bytes | None = None
        for part in exchange.body.split(b"--" + kind[1].encode())[1:-1]:
            head, _, content = part.partition(b"\r\n\r\n")
            name = _FIELD.search(head)
            content = content.removesuffix(b"\r\n")
            if name is not None and name[1] == b"file":
                found = content
            elif name is not None:
                self.fields[name[1].decode()] = content.decode("utf-8", "replace")
        if found is None:
            raise validation("missing", "body.file", "Field required", None)
        self.file = found

    def sampling_fields(self) -> Body:
        found: dict[str, object] = {"max_tokens": int(self.fields.get("max_completion_tokens") or 448)}
        if "seed" in self.fields:
            found["seed"] = int(self.fields["seed"])
        found["temperature"] = float(self.fields.get("temperature") or 0)
        if self.fields.get("stream") == "true":
            usage = self.fields.get("stream_include_usage") == "true"
            found |= {"stream": True, "stream_options": {"include_usage": usage}}
        return found

    def audio(self) -> DecodedImage:
        try:
            return of_bytes(self.file)
        except ImageError as error:
            raise VllmRefusal(str(error)) from error


class TranscriptionGeneration(VllmGeneration):
    """A running transcription."""

    chunk_kind = "transcription.chunk"

    def _write(self, choice: Choice) -> None:
        delta = {"content": self._unwritten_text(choice)}
        choice.written = True
        self._chunk({"delta": delta, "finish_reason": choice.finish, "stop_reason": None})

    def _body(self) -> bytes:
        text = self._unwritten_text(self.choices[0])
        (_, audio), *_ = self._checked.images
        return orjson.dumps({"text": text, "usage": {"type": "duration", "seconds": audio.width}})
