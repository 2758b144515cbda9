"""A request, from the step that it is made of until its answer is read: its contents, headers and time limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadchaos.core.errors import OptionError
from loadchaos.core.model import AS_ALLOWED, INSTEAD, Outcome, Output, Step
from loadchaos.core.version import __version__
from loadchaos.load.wire.contract import AnswerContract
from loadchaos.profile.client_limits import ClientLimits

if TYPE_CHECKING:
    from loadchaos.load.payloads.text import Options as TextOptions
    from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules

DEFAULT_HEADERS: Mapping[str, str] = {
    "User-Agent": f"loadchaos/{__version__}",
    "Accept": "text/event-stream, application/json",
}
"""Headers of all requests of the load; X-Request-Id is added for each one (worker/worker_plan.py)."""
_DEFAULT_LIMITS = ClientLimits()


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


@dataclass(frozen=True)
class WireTimeouts:
    """Longest silences allowed, in ns: until the first body byte, between bytes, and for the whole request. A request is
    sent again only if its connection had been idle for longer than `retry_idle_ns`.
    """

    first_byte_ns: int = _ns(_DEFAULT_LIMITS.first_byte)
    between_bytes_ns: int = _ns(_DEFAULT_LIMITS.between_bytes)
    total_ns: int = _ns(_DEFAULT_LIMITS.total)
    retry_idle_ns: int = _ns(_DEFAULT_LIMITS.retry_idle)

    @classmethod
    def of(cls, limits: ClientLimits) -> WireTimeouts:
        seconds = (limits.first_byte, limits.between_bytes, limits.total, limits.retry_idle)
        return cls(*(_ns(s) for s in seconds))


@dataclass(slots=True)
class Request:
    """One request on its way: payloads add to it, its endpoint writes the body, the worker addresses and sends it.

    Attributes:
        expect: outcomes that are right.
        body: a payload that sets it itself sends it as it is.
        tokens: prompt tokens that the server should count; None: unknown.
        asked: prompt tokens that the profile asks for, where the count of the server is unknown.
        owner: owner of the secret word in its prompt (payloads/secret_word.py), `secret` its code; None: without one.
        nonce: words that only its prompt has; with `secret_sent` they are its secret word.
        quotes: how often the answer has to repeat the secret word; 0: not at all.
        parts: content parts before the text, each as JSON bytes with a trailing comma.
        text_tokens: tokens of template and text; None where the server's count is unknown.
        text_style: prefix and blocks of its text, which is in `script`; None: plain words.
        wanted_tokens: tokens of the text as the profile has them, template included; None: no payload wrote one.
        more_texts: further texts of a request of several; `texts_differ`: no two of them are equal.
        image_names: numbers of images and videos that may be sent again; others are new. None: unknown.
        image_file: the file of a hostile image.
        audio_files: they are among `parts`, too.
        length_known: false if the prompt holds more than text and images.
        fixed_length: a payload has set prompt and output itself, so nothing is fitted to the server.
        edge: prompt tokens minus the limit, for a near-limit request.
        history: earlier messages as JSON, each with a trailing comma; `history_tokens` is their cost.
        continues: the history is the whole prompt: the results of tools follow an answer, and no question.
        calls_over: the model may call no more tools.
        extra: more fields of the body; `more_fields`: those that are added as they are, as JSON.
        contract: rules that its answer must obey; None: there are none.
        answers: choices or results that it asks for; None: unknown.
        notes: what was reduced to fit the server, in words.
        exact: tokens that the answer must have; None: any number up to `max_tokens`.
        most: as `exact`, for a server that cannot be asked for an exact length: the answer may be shorter.
        id: id that the server may log (X-Request-Id).
        fresh: it needs a connection that no other request uses.
        tries: times that it was refused with 429 before.
    """

    step: Step
    output: Output
    expect: list[Outcome]
    stream: bool
    path: str
    endpoint: str = "chat"
    owner: int | None = None
    secret: int = 0
    body: bytes = b""
    tokens: int | None = None
    asked: int | None = None
    max_tokens: int | None = None
    exact: int | None = None
    most: int | None = None
    answers: int | None = None
    contract: AnswerContract | None = None
    text: str | None = None
    text_tokens: int | None = None
    text_style: TextOptions | None = None
    script: str = "latin"
    wanted_tokens: int | None = None
    more_texts: list[str] = field(default_factory=list)
    texts_differ: bool = False
    nonce: str = ""
    secret_sent: bool = False
    quotes: int = 0
    parts: list[bytes] = field(default_factory=list)
    images: int = 0
    videos: int = 0
    image_names: list[int] | None = field(default_factory=list)
    image_tokens: int = 0
    image_tokens_known: bool = True
    image_file: str = ""
    audio: int = 0
    audio_files: list[bytes] = field(default_factory=list)
    length_known: bool = True
    fixed_length: bool = False
    edge: int | None = None
    history: list[bytes] = field(default_factory=list)
    history_tokens: int = 0
    continues: bool = False
    calls_over: bool = False
    extra: dict[str, object] = field(default_factory=dict)
    more_fields: bytes = b""
    model: str | None = None
    notes: list[str] = field(default_factory=list)
    id: str = ""
    head: bytes = b""
    fresh: bool = False
    tries: int = 0
    limits: WireTimeouts = WireTimeouts()
    rules: AnswerRules = field(init=False, repr=False, compare=False)
    reader: type[AnswerReader] = field(init=False, repr=False, compare=False)

    @property
    def output_tokens(self) -> int:
        return self.output.tokens

    def adapt(self, sent: str, asked: str, why: str, *, allowed: bool = False) -> None:
        """Note what is sent in place of what was asked. `allowed`: the range of the profile has it, too."""
        self.notes.append(f"{sent}{INSTEAD}{asked}: {why}{AS_ALLOWED if allowed else ''}")

    @property
    def fitted(self) -> str:
        """Text that names what was reduced to fit the server; empty: nothing."""
        return "; ".join(self.notes) if self.notes else ""


def headers_with_values(headers: Mapping[str, str], api_key_env: str | None, env: Mapping[str, str]) -> dict[str, str]:
    """Headers of the user with the values of `env:VAR`, and the API key where they have no Authorization, in any case.
    Raises OptionError for a variable that is not set.
    """
    found = {
        name: _variable(value.removeprefix("env:"), f"--header {name}={value}", env)
        if value.startswith("env:")
        else value
        for name, value in headers.items()
    }
    if api_key_env and all(name.lower() != "authorization" for name in found):
        found["Authorization"] = f"Bearer {_variable(api_key_env, f'--api-key-env {api_key_env}', env)}"
    return found


def _variable(name: str, option: str, env: Mapping[str, str]) -> str:
    if not env.get(name):
        raise OptionError(f"{option}: the environment variable {name} is not set; export it")
    return env[name]


def request_head(path: str, host: str, headers: Mapping[str, str], content_type: str = "application/json") -> bytes:
    """Build the head of a POST up to its Content-Length. Raises ValueError for a header that would break out of its line."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Content-Type: {content_type}"]
    for name, value in headers.items():
        if "\r" in value or "\n" in value or not name.isascii() or ":" in name or "\n" in name:
            raise ValueError(f"header {name!r} cannot be sent")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, ""]).encode("utf-8")


def content_length(body: bytes) -> bytes:
    """Build the Content-Length line and the empty line that end a head."""
    return b"Content-Length: %d\r\n\r\n" % len(body)
