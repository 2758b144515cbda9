"""Replace secrets before anything reaches disk.

A secret is a given value, the value of a variable or option with a secret name, or a text of a known form (an API
key, a header): names, headers and forms are tables of core/secret_patterns.py. Text is handled as bytes, line by line
(`\\n` or `\\r` ends a line), so that a stream cut anywhere is redacted like the whole. In doubt a text is hidden: a log
without a harmless word can still be read, and a leaked key cannot be taken back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from loadchaos.core.secret_patterns import (
    FORMS,
    LONGEST_WRITING,
    PEM_BEGIN,
    PEM_BODY,
    PEM_END,
    PEM_HEAD,
    TOKEN_BYTES,
    is_secret_header,
    secret_name,
    writings,
)

REDACTED = "[redacted]"
_PROMPT_MARK = b"[text of a request]"
_MARK = REDACTED.encode()
SHORTEST_LITERAL = 6
"""Shorter secrets are not searched for as text: they would match harmless words everywhere."""
_MOST_KNOWN, _MOST_KNOWN_CHARS = 1000, 80  # texts of rows that are not looked at again
_SHORTEST_NUMBER = 8  # a variable's value of digits only: 262144 is a setting, not a secret
_LONGEST_LINE_BYTES = 1 << 16
_ANY_WORD = re.compile(b"|".join({re.escape(word): None for words, _ in FORMS for word in words}))
_ENGINE_SETTING = re.compile(
    r"(?:VLLM|LMDEPLOY|SGLANG|SGL|TM|CUDA|NCCL|TORCH|PYTORCH|TRITON|NVIDIA|HF|TRANSFORMERS|TOKENIZERS|OMP|MKL|GLOO|UCX|RAY|"
    r"PYTHON|LC|FLASHINFER|HIP|ROCR|ASCEND|XPU)[A-Z]*_|PYTHON[A-Z]+$|LANG$"
)


HIDDEN_VARIABLE = "LOADCHAOS_HIDE_"
"""Prefix of variables that tell a process of loadchaos which values to hide; they are not for the server."""


def hidden_variables(values: Iterable[str]) -> dict[str, str]:
    """Make variables that tell another process which values to hide."""
    return {f"{HIDDEN_VARIABLE}{n}": value for n, value in enumerate(values)}


def hidden_values(environment: Mapping[str, str]) -> list[str]:
    return [value for name, value in environment.items() if name.startswith(HIDDEN_VARIABLE)]


def launch_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Select the variables of a launch command that may hold a secret. All do but plain settings: numbers, existing
    paths, and words under the name of an engine's setting.
    """
    return {name: value for name, value in environment.items() if not _is_setting(name, value)}


def _is_setting(name: str, value: str) -> bool:
    if secret_name(name):
        return False
    if re.fullmatch(r"[0-9.,:-]*", value) and len(value) < _SHORTEST_NUMBER:
        return True
    if value.startswith("/") and all(_exists(part) for part in value.split(":") if part):
        return True
    return (
        _ENGINE_SETTING.match(name) is not None
        and re.fullmatch(r"[A-Za-z]{1,16}([_-][A-Za-z]{1,16})*", value) is not None
    )


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)  # noqa: PTH110 - Path.exists raises for a name that is too long
    except ValueError:
        return False


class Redactor:
    """Replaces known secrets and known forms of secrets by `[redacted]`. `feed` and `flush` handle one stream; `fork()`
    gives a Redactor for another stream with the same secrets. Not thread-safe.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: dict[bytes, bool] = {}  # and whether a begin of it is hidden, too
        self._found: dict[bytes, re.Pattern[bytes]] = {}  # what is replaced, by the mark in its place; shared by forks
        self._known_texts: dict[str, tuple[int, str]] = {}  # with the number of secrets then; shared by forks
        self._rest = b""
        self._inside = False
        self._in_key = False  # the stream is between the first and the last line of a private key
        for secret in secrets:
            self.add(secret)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Redactor:
        redactor = cls()
        for name, value in environment.items():
            if secret_name(name) and not (value.isdigit() and len(value) < _SHORTEST_NUMBER):
                redactor.add(value)
        return redactor

    @classmethod
    def of_launch(cls, environment: Mapping[str, str], variables: Mapping[str, str], argv: Sequence[str]) -> Redactor:
        """Create one that also knows the secrets of a launch command, with its own variables."""
        redactor = cls.from_environment(environment)
        for name, value in launch_secrets(variables).items():
            redactor.add(value, begins=secret_name(name))
        redactor.argv(argv)
        return redactor

    def fork(self) -> Redactor:
        """Create a Redactor for another stream; both share all secrets."""
        other = Redactor()
        other._secrets, other._found, other._known_texts = self._secrets, self._found, self._known_texts
        return other

    def add(self, secret: str, *, begins: bool = True) -> None:
        """Hide this value from now on, however it is written (`writings`). One of less than 6 characters is not hidden.
        `begins`: hide its first half, too, as a text is cut somewhere; not for a value that may be a path or a URL.
        """
        lines = (line.strip() for line in secret.splitlines())
        self._secrets |= {
            line.encode("utf-8", "surrogateescape"): begins for line in lines if len(line) >= SHORTEST_LITERAL
        }
        self._find(_MARK, self._secrets, lambda value: writings(value, begins=self._secrets[value]))

    def add_prompts(self, passages: Iterable[str]) -> None:
        """Replace quoted passages of our prompts by `[text of a request]`. The passages are as logs quote them."""
        self._find(_PROMPT_MARK, {passage.encode("utf-8", "surrogateescape") for passage in passages}, re.escape)

    def _find(self, mark: bytes, texts: Iterable[bytes], pattern: Callable[[bytes], bytes]) -> None:
        self._found.pop(mark, None)
        self._known_texts.clear()
        if ordered := sorted(texts, key=lambda s: (-len(s), s)):  # one that begins like another wins over it
            self._found[mark] = re.compile(b"|".join(map(pattern, ordered)))

    def redact(self, data: bytes) -> bytes:
        return self._redact(data, in_key=False)[0]

    def _redact(self, data: bytes, *, in_key: bool) -> tuple[bytes, bool]:
        if in_key or b"PRIVATE KEY" in data:
            data, in_key = _hide_keys(data, in_key)
        data = self._without_known(data)
        lower = data.lower()
        if _ANY_WORD.search(lower) is None:  # most short texts
            return data, in_key
        for words, form in FORMS:
            if any(word in lower for word in words):
                data = form.sub(rb"\1" + _MARK, data)
        return data, in_key

    def _without_known(self, data: bytes) -> bytes:
        for mark in (_MARK, _PROMPT_MARK):
            if mark in self._found:
                data = self._found[mark].sub(mark, data)
        return data

    def text(self, text: str) -> str:
        return self.redact(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def _of_row(self, text: str) -> str:
        """Redact a text of a row. Rows have the same short ones again and again: names, paths, keys."""
        if len(text) > _MOST_KNOWN_CHARS:
            return self.text(text)
        known = self._known_texts
        if (found := known.get(text)) is None or found[0] != len(self._secrets):
            if len(known) >= _MOST_KNOWN:
                known.clear()
            found = known[text] = (
                len(self._secrets),
                self.text(text),
            )  # a text of before the newest secret is made again
        return found[1]

    def known(self, text: str) -> str:
        """Hide known values only, in a text that may look like a secret and is none: the name of a model, an error."""
        return self._without_known(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def knows(self, row: object) -> bool:
        """Tell whether data that becomes JSON has a known value; this is cheaper than `data`."""
        if not self._found:
            return False
        try:
            line = orjson.dumps(row, option=orjson.OPT_NON_STR_KEYS)
        except TypeError:  # a text that is no UTF-8
            return True
        return self._without_known(line) != line

    def feed(self, data: bytes) -> bytes:
        """Add bytes of a stream and return what is redacted so far. A line is held back until its end has come."""
        if self._inside:
            data = data.lstrip(TOKEN_BYTES)
            if not data:
                return b""
            self._inside = False
        buffer = self._rest + data
        end = max(buffer.rfind(b"\n"), buffer.rfind(b"\r")) + 1
        done, self._rest = buffer[:end], buffer[end:]
        out = self._redact_next(done) if done else b""
        if len(self._rest) > _LONGEST_LINE_BYTES:
            out += self._cut()
        return out

    def flush(self) -> bytes:
        rest, self._rest, self._inside = self._rest, b"", False
        out = self._redact_next(rest)
        self._in_key = False
        return out

    def _redact_next(self, data: bytes) -> bytes:
        out, self._in_key = self._redact(data, in_key=self._in_key)
        return out

    def _cut(self) -> bytes:
        keep = max([_LONGEST_LINE_BYTES // 4, *(LONGEST_WRITING * len(secret) for secret in self._secrets)])
        cut = max(len(self._rest) - keep, 0)
        known = [self._found[_MARK]] if _MARK in self._found else []
        for pattern in (*known, *(form for _, form in FORMS)):
            for match in pattern.finditer(self._rest):
                if match.start() < cut < match.end():
                    cut = match.start()
        if cut == 0:
            # One secret as long as the buffer: it is hidden here, and what is left of it when it comes.
            self._rest, self._inside = b"", True
            return _MARK
        front, self._rest = self._rest[:cut], self._rest[cut:]
        return self._redact_next(front)

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Redact a command line and learn its secret options (`--api-key X`)."""
        shown: list[str] = []
        hide = False
        for arg in argv:
            name, sign, value = arg.partition("=")
            is_option = arg.startswith("-")
            is_assignment = bool(sign) and not hide  # env NAME=value command
            if secret_name(name.lstrip("-")) and (is_option or is_assignment):
                hide = is_option and not sign  # vLLM's --api-key takes several values: all up to the next option
                self.add(value)
                shown.append(f"{name}={REDACTED}" if sign else arg)
            elif is_option or not hide:
                hide = False
                shown.append(arg)
            else:
                self.add(arg)
                shown.append(REDACTED)
        return [self.text(arg) for arg in shown]

    def mapping(self, values: Mapping[str, str]) -> dict[str, str]:
        """Redact headers or an environment and learn values under secret names."""
        shown = {}
        for name, value in values.items():
            if is_secret_header(name):
                self.add(re.sub(r"(?i)^(?:bearer|basic|token)\s+", "", value))
            shown[name] = REDACTED if is_secret_header(name) and value else self.text(value)
        return shown

    def data(self, value: Any) -> Any:
        """Redact JSON-like data: values under secret names and secrets in texts, also in those that are keys."""
        if isinstance(value, str):
            return self._of_row(value) if len(value) >= SHORTEST_LITERAL else value
        if isinstance(value, Mapping):
            return {self.data(k): REDACTED if v and _hides(k, v) else self.data(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(v) for v in value]
        return value


def _hides(key: object, value: object) -> bool:
    texts = value if isinstance(value, list | tuple) else [value]
    return isinstance(key, str) and is_secret_header(key) and all(isinstance(text, str) for text in texts)


def _hide_keys(data: bytes, in_key: bool) -> tuple[bytes, bool]:
    """Hide the lines of private keys. Returns the text, and whether it ends inside a key. A line without base64 ends a
    key that has no last line.
    """
    lines = data.splitlines(keepends=True)
    for n, line in enumerate(lines):
        if in_key and PEM_END in line:
            in_key = False
            before, mark, after = line.partition(PEM_END)
            lines[n] = PEM_BODY.sub(_MARK, before) + mark + after
        elif in_key:
            lines[n], found = PEM_BODY.subn(_MARK, line)
            in_key = bool(found) or PEM_HEAD.search(line) is not None
        elif (begin := PEM_BEGIN.search(line)) is not None and PEM_END not in line[begin.end() :]:
            in_key = True
            lines[n] = line[: begin.end()] + PEM_BODY.sub(_MARK, line[begin.end() :])
    return b"".join(lines), in_key
