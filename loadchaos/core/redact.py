"""Replace secrets before anything reaches disk.

A secret is a given value, the value of a variable or option with a secret name, or a text of a known form (an API
key, a header). Text is handled as bytes, line by line (`\\n` or `\\r` ends a line), so that a stream cut anywhere is
redacted like the whole. In doubt a text is hidden: a log without a harmless word can still be read, and a leaked key
cannot be taken back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

REDACTED = "[redacted]"
_MARK = REDACTED.encode()
SHORTEST_LITERAL = 6
"""Shorter secrets are not searched for as text: they would match harmless words everywhere."""
_SHORTEST_NUMBER = 8  # a variable's value of digits only: 262144 is a setting, not a secret
_LONGEST_LINE_BYTES = 1 << 16
_TOKEN_CHARS = rb"A-Za-z0-9._~+/=%-"
_TOKEN_BYTES = b"".join(re.findall(rb"[" + _TOKEN_CHARS + rb"]", bytes(range(128))))

_SECRET_WORD = {
    "key", "keys", "apikey", "token", "secret", "password", "passwd", "auth", "authorization", "credential",
    "credentials", "cookie",
}  # fmt: skip
# AUTH_MODE=internal or KEY_FILE=/etc/key.pem are about a secret and hold none; hiding "internal" would blind the log.
_ABOUT_WORD = {
    "file", "path", "dir", "type", "mode", "sock", "url", "name", "env", "enabled", "timeout", "limit", "length", "len",
    "size", "count", "max", "min", "algo", "algorithm", "provider", "method",
}  # fmt: skip
_WORDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")


def secret_name(name: str) -> bool:
    """Tell whether a name denotes a secret: OPENAI_API_KEY, x-api-key."""
    words = [word.lower() for word in _WORDS.split(name) if word]
    return bool(words) and words[-1] not in _ABOUT_WORD and not _SECRET_WORD.isdisjoint(words)


_SETTINGS = [
    first + sep + second
    for first, second in (
        (b"api", b"key"),
        (b"access", b"token"),
        (b"auth", b"token"),
        (b"client", b"secret"),
        (b"secret", b"key"),
        (b"hf", b"token"),
    )
    for sep in (b"_", b"-", b"")
] + [b"password", b"passwd"]
_NAME = rb"(?:" + rb"|".join(_SETTINGS) + rb")"
_PARAMETER = (
    rb"X-(?:Amz|Goog|Oss)-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|OSSAccessKeyId|Signature|sig|"
    rb"(?:access_|api_|auth_|id_)?token|api[_-]?key|key|code|password|secret"
)
_QUOTE = rb"(?:b?['\"])?"  # also of bytes as Python prints them
_PREFIXES = [b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_", b"xox", b"nvapi-"]

# Each form of a secret: words of which one must be there (lower case; looking for them is cheap, matching is not), and
# a pattern of which group 1 is kept and the rest replaced. No pattern reaches over the end of a line.
_FORMS: tuple[tuple[Sequence[bytes], re.Pattern[bytes]], ...] = (
    # Headers, as HTTP, as JSON, as Python prints them.
    (
        [b"authorization"],
        re.compile(
            rb"(?i)(\b(?:proxy-)?authorization\b['\"]?[ \t]*[:=,][ \t]*"
            + _QUOTE
            + rb"(?:(?:bearer|basic|token|digest)[ \t]+)?)[^\s'\",;]+"
        ),
    ),
    (
        [b"x-api-key", b"x-auth-token", b"x-goog-api-key"],
        re.compile(
            rb"(?i)(\bx-(?:api-key|auth-token|goog-api-key)\b['\"]?[ \t]*[:=,][ \t]*" + _QUOTE + rb")[^\s'\",;]+"
        ),
    ),
    ([b"cookie"], re.compile(rb"(?i)(\b(?:set-)?cookie['\"]?[ \t]*:[ \t]*['\"]?)[^\r\n'\"]+")),
    ([b"bearer"], re.compile(rb"(?i)(\bbearer[ \t]+)[" + _TOKEN_CHARS + rb"]{6,}")),
    # Settings: api_key='...', "password": "...", api_key=['...'], --api-key ..., HF_TOKEN=...
    (_SETTINGS, re.compile(rb"(?i)(" + _NAME + rb"['\"]?[ \t]*[:=][ \t]*[\[(]?[ \t]*b?['\"])[^'\"\r\n]+")),
    (
        _SETTINGS,
        re.compile(rb"(?i)(" + _NAME + rb"[ \t]*[:=][ \t]*)(?!None\b|null\b|True\b|False\b)[^\s'\"\[(,;&]+"),
    ),
    ([b"--"], re.compile(rb"(?i)(--[a-z-]*(?:api-key|token|secret|password|auth)(?:[ \t]+|=)['\"]?)[^\s'\"]+")),
    (
        [b"_key=", b"_token=", b"_secret=", b"_password=", b"_auth="],
        re.compile(rb"(\b[A-Z0-9_]*(?:_KEY|_TOKEN|_SECRET|_PASSWORD|_AUTH)=['\"]?)[^\s'\",;]{6,}"),
    ),
    # URLs: user:password@, and the parameters that sign one.
    ([b"@"], re.compile(rb"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^/\s'\"@]+(?=@)")),
    ([b"?", b"&"], re.compile(rb"(?i)([?&](?:" + _PARAMETER + rb")=)[^&\s'\"#<>]+")),
    # Keys that show what they are.
    ([b"sk-"], re.compile(rb"()\bsk-[A-Za-z0-9_-]{8,}")),
    ([b"hf_"], re.compile(rb"()\bhf_[A-Za-z0-9]{20,}")),
    (
        _PREFIXES,
        re.compile(rb"()\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|xox[abprs]-[\w-]{10,}|nvapi-[\w-]{20,})"),
    ),
    ([b"akia", b"asia"], re.compile(rb"()\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ([b"aiza", b"eyj"], re.compile(rb"()\b(?:AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)")),
)


class Redactor:
    """Replaces known secrets and known forms of secrets by `[redacted]`.

    `feed` and `flush` handle one stream; `fork()` gives a Redactor for another stream with the same secrets. Not
    thread-safe.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[bytes] = set()
        self._literal: list[re.Pattern[bytes] | None] = [None]  # one cell, shared by forks
        self._rest = b""
        self._inside = False
        for secret in secrets:
            self.add(secret)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Redactor:
        """Create one that knows the values of all variables with secret names."""
        redactor = cls()
        for name, value in environment.items():
            if secret_name(name) and not (value.isdigit() and len(value) < _SHORTEST_NUMBER):
                redactor.add(value)
        return redactor

    def fork(self) -> Redactor:
        """Create a Redactor for another stream; both share all secrets."""
        other = Redactor()
        other._secrets, other._literal = self._secrets, self._literal
        return other

    def add(self, secret: str) -> None:
        """Hide this value from now on, also in its URL and JSON form.

        A value of less than 6 characters is not hidden.
        """
        for line in secret.splitlines():
            clean = line.strip()
            if len(clean) >= SHORTEST_LITERAL:
                forms = {
                    clean,
                    quote(clean, safe=""),
                    json.dumps(clean)[1:-1],
                    json.dumps(clean, ensure_ascii=False)[1:-1],
                }
                self._secrets |= {form.encode("utf-8", "surrogateescape") for form in forms}
        ordered = sorted(self._secrets, key=lambda s: (-len(s), s))  # a secret that begins like another wins over it
        self._literal[0] = re.compile(b"|".join(map(re.escape, ordered))) if ordered else None

    def redact(self, data: bytes) -> bytes:
        """Redact a complete text of any number of lines."""
        if self._literal[0] is not None:
            data = self._literal[0].sub(_MARK, data)
        lower = data.lower()
        for words, form in _FORMS:
            if any(word in lower for word in words):
                data = form.sub(rb"\1" + _MARK, data)
        return data

    def text(self, text: str) -> str:
        """Redact a complete text given as str."""
        return self.redact(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def feed(self, data: bytes) -> bytes:
        """Add bytes of a stream and return what is redacted so far.

        A line is held back until its end has come.
        """
        if self._inside:
            data = data.lstrip(_TOKEN_BYTES)
            if not data:
                return b""
            self._inside = False
        buffer = self._rest + data
        end = max(buffer.rfind(b"\n"), buffer.rfind(b"\r")) + 1
        done, self._rest = buffer[:end], buffer[end:]
        out = self.redact(done) if done else b""
        if len(self._rest) > _LONGEST_LINE_BYTES:
            out += self._cut()
        return out

    def flush(self) -> bytes:
        """End the stream and return the rest."""
        rest, self._rest, self._inside = self._rest, b"", False
        return self.redact(rest)

    def _cut(self) -> bytes:
        """Return the front of an endless line, cut outside any secret."""
        keep = max([_LONGEST_LINE_BYTES // 4, *map(len, self._secrets)])
        cut = max(len(self._rest) - keep, 0)
        for pattern in (self._literal[0], *(form for _, form in _FORMS)):
            for match in pattern.finditer(self._rest) if pattern is not None else ():
                if match.start() < cut < match.end():
                    cut = match.start()
        if cut == 0:
            # One secret as long as the buffer: it is hidden here, and what is left of it when it comes.
            self._rest, self._inside = b"", True
            return _MARK
        front, self._rest = self._rest[:cut], self._rest[cut:]
        return self.redact(front)

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Redact a command line and learn its secret options (`--api-key X`)."""
        shown: list[str] = []
        hide = False
        for arg in argv:
            name, sign, value = arg.partition("=")
            if arg.startswith("-") and secret_name(name.lstrip("-")):
                hide = not sign  # vLLM's --api-key takes several values: all up to the next option
                self.add(value)
                shown.append(f"{name}={REDACTED}" if sign else arg)
            elif arg.startswith("-") or not hide:
                hide = False
                if sign and secret_name(name) and not name.startswith("-"):  # env NAME=value command
                    self.add(value)
                    shown.append(f"{name}={REDACTED}")
                else:
                    shown.append(arg)
            else:
                self.add(arg)
                shown.append(REDACTED)
        return [self.text(arg) for arg in shown]

    def mapping(self, values: Mapping[str, str]) -> dict[str, str]:
        """Redact headers or an environment and learn values under secret names."""
        shown = {}
        for name, value in values.items():
            if secret_name(name):
                self.add(re.sub(r"(?i)^(?:bearer|basic|token)\s+", "", value))
            shown[name] = REDACTED if secret_name(name) and value else self.text(value)
        return shown

    def data(self, value: Any) -> Any:
        """Redact JSON-like data: values under secret names and secrets in texts."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {k: REDACTED if v and _hides(k, v) else self.data(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(v) for v in value]
        return value


def _hides(key: object, value: object) -> bool:
    """Tell whether a value is hidden: a text or texts under a secret name."""
    texts = value if isinstance(value, list | tuple) else [value]
    return isinstance(key, str) and secret_name(key) and all(isinstance(text, str) for text in texts)
