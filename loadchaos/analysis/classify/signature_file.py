"""Load and validate the signature files, and scan lines for signatures."""

from __future__ import annotations

import ast
import math
import operator
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib import resources
from types import ModuleType
from typing import get_args

from loadchaos.analysis import signatures
from loadchaos.analysis.advisories import advisory
from loadchaos.analysis.verdict.model import KnownIssue
from loadchaos.core import typed_json
from loadchaos.core.errors import LoadchaosError
from loadchaos.core.model import Severity
from loadchaos.core.plugins import PluginTable
from loadchaos.core.version_ranges import clauses

WORD = re.compile(r"[A-Za-z]{3,}")
"""Words of a line for the cheap scan: a signature is tried only where its rarest word occurs."""
_SHORT_WORD = re.compile(r"(?<=\s)[A-Za-z]{2}(?=--\s)")  # HAProxy's ` sH-- `

_LETTERS = bytes(c if chr(c).isalpha() and c < 128 else 32 for c in range(256))


def words_of(line: str) -> list[bytes]:
    """Words of ASCII letters of a line, in less time than WORD takes."""
    return line.encode("utf-8", "surrogatepass").translate(_LETTERS).split()


ROLES = ("cause", "echo", "hint", "noise", "fact", "start", "loading", "ready", "stop", "place")
_COMMON_TEXT = """
error errors exception failed failure request requests memory with for not the and was from this that session engine process
server model cache tokens token number config info warning message code line file core get post chat http
"""
_COMMON = frozenset(_COMMON_TEXT.split())
_LISTS = ("find", "alt", "known", "refines", "examples", "frames")
_PATTERNS = ("pattern", "unless", "unless_before", "before")
_MOST_FRAME_PLACES = 2_000
_SEVERITIES = get_args(Severity)


SIGNATURES = PluginTable[ModuleType]("signatures", ModuleType, {"loadchaos": signatures})
"""Packages whose TOML files have signatures."""


class NotOverError(ValueError):
    """over(x, limit) with x not over the limit. The figure does not explain this failure and is left out."""


class SignatureError(LoadchaosError):
    """A mistake in a signature file, with file, entry and reason."""


@dataclass(frozen=True)
class Variant:
    """Title of a signature when all `frames` are in its traceback."""

    frames: tuple[str, ...]
    title: str
    remedy: str = ""
    known: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, eq=False)
class Signature:
    """One entry of signatures/*.toml; docs/signatures.md explains every key.

    `find` are substrings, one of which a line must hold; `patterns` regular expressions, one of which must match there;
    `unless` those that must not, `unless_before` those that the line before must not, `before` those of which one must
    match there and gives its groups. `within_s` is how far before an echo its cause may lie. `derive` are figures
    computed from what facts collected, such as capacity_tokens = "blocks * block_size".
    """

    id: str
    title: str
    severity: Severity
    role: str = "cause"
    file: str = ""
    find: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()
    unless: tuple[re.Pattern[str], ...] = ()
    unless_before: tuple[re.Pattern[str], ...] = ()
    before: tuple[re.Pattern[str], ...] = ()
    alt: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    refines: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = field(default=(), metadata=typed_json.key("variant"))
    layer: str = ""
    remedy: str = ""
    why: str = ""
    trigger: str = ""
    versions: str = ""
    where: str = "line"
    quiet: bool = False
    loud: bool = False
    doubtful: bool = False
    vague: bool = False
    text_below: bool = False
    weak: bool = False
    asynchronous: bool = False
    symptom: bool = False
    starting: bool = False
    within_s: float = 10.0
    derive: Mapping[str, str] = field(default_factory=dict)

    @property
    def speaker(self) -> str:
        return self.file.removesuffix(".toml")


_KEYS = {"pattern", "variant"} | {f.name for f in fields(Signature)} - {"patterns", "variants", "file"}


@dataclass(frozen=True)
class Signatures:
    """All signatures, ready to scan. A line without a word of `keys` cannot match."""

    all: tuple[Signature, ...]
    by_word: Mapping[bytes, tuple[Signature, ...]]
    keys: frozenset[bytes]
    skip: tuple[re.Pattern[str], ...]
    engine: tuple[re.Pattern[str], ...]
    ignore: tuple[re.Pattern[str], ...]
    harmless: tuple[re.Pattern[str], ...]
    places: tuple[Signature, ...] = ()
    frame_places: dict[str, Signature | None] = field(default_factory=dict)  # of the frames seen; bounded

    def issues(self, names: Iterable[str]) -> tuple[KnownIssue, ...]:
        """The upstream issues of the advisories with these ids."""
        return tuple(issue for name in names for issue in _issues(advisory.shipped(name)))

    def all_issues(self, signature: Signature) -> tuple[KnownIssue, ...]:
        return self.issues(dict.fromkeys((*signature.known, *(k for v in signature.variants for k in v.known))))

    def place(self, text: str, frames: Sequence[str] = ()) -> Signature | None:
        """Part of the server that an unknown error is from, None if not known.

        Args:
            text: the error's line. Its type or words come first.
            frames: its stack as `File "path", line 1, in function code`, outermost first. The innermost known one decides.
        """
        for place in self.places:
            if place.where == "line" and any(p.search(text) for p in place.patterns):
                return place
        for frame in reversed(frames):
            if (found := self._frame_place(frame)) is not None:
                return found
        return None

    def _frame_place(self, frame: str) -> Signature | None:
        if frame in self.frame_places:
            return self.frame_places[frame]
        found = next(
            (s for s in self.places if s.where == "traceback" and any(p.search(frame) for p in s.patterns)), None
        )
        if len(self.frame_places) >= _MOST_FRAME_PLACES:
            self.frame_places.clear()
        self.frame_places[frame] = found
        return found

    def get(self, signature_id: str) -> Signature | None:
        return next((s for s in self.all if s.id == signature_id), None)

    def may_match(self, line: str) -> bool:
        """False for a raw line that no signature and no traceback can match. Cheap, and never misses one."""
        words = self.keys.intersection(words_of(line))
        if not words:
            return False
        if "\x1b" in line or line.rstrip().endswith("}") or not _EXTRA_KEYS.isdisjoint(words):
            return True  # colours and JSON may hide a text from the search below
        for word in words:
            for signature in self.by_word.get(word, ()):
                for part in signature.find:
                    if part in line:
                        return True
        return False

    def scan(self, text: str, where: str = "line") -> list[tuple[Signature, re.Match[str]]]:
        found: list[tuple[Signature, re.Match[str]]] = []
        words = self.keys.intersection(words_of(text))
        if not words:
            return found
        for signature in dict.fromkeys([s for w in words if w in self.by_word for s in self.by_word[w]]):
            if signature.where != where:
                continue
            for part in signature.find:
                if part in text:
                    break
            else:
                continue
            hit = next((m for p in signature.patterns if (m := p.search(text))), None)
            if hit is not None and not any(p.search(text) for p in signature.unless):
                found.append((signature, hit))
        return found

    def ignored(self, text: str) -> bool:
        """True for a line that quotes client text or is our own."""
        return _matches(self.ignore, text)

    def is_harmless(self, text: str) -> bool:
        return _matches(self.harmless, text)


def _issues(of: advisory.Advisory) -> list[KnownIssue]:
    """Its issues. Without a fix, an affected range says only where it was seen, and not that later versions are good."""
    single = ", ".join(version for e in of.affected for sign, version in clauses(e.versions) if sign == "==")
    affected = of.affected_range if of.fixed else None
    return [
        KnownIssue(
            issue=name,
            title=of.title or None,
            state=of.state or None,
            affected=affected,
            seen=of.seen or (None if affected else single or None),
            fixed=of.fixed or None,
        )
        for name in of.issues
    ]


def _matches(patterns: Sequence[re.Pattern[str]], text: str) -> bool:
    # Spelled out and one by one: a generator or an alternation takes several times as long.
    for pattern in patterns:  # noqa: SIM110
        if pattern.search(text):
            return True
    return False


# An exception that no signature names; it counts only where an echo shows that it mattered.
UNKNOWN = Signature(
    id="unknown_exception",
    title="{exception}: {message} in {frame}",
    severity="engine_death",
    role="cause",
    remedy="report it upstream with the log around it; no signature matches this exception yet",
)

# A log that ends in an unlogged traceback: the process died of it.
UNCAUGHT = Signature(
    id="uncaught_exception",
    title="the log ends with an uncaught exception",
    severity="engine_death",
    role="echo",
    vague=True,
    remedy="the exception ended the process; report it with the log around it",
)

# A log that ends with an error that no signature knows.
UNEXPLAINED_END = Signature(
    id="unexplained_end",
    title="The log ends with an error that no signature matches",
    severity="engine_death",
    role="echo",
    vague=True,
    remedy="read the last lines of the log; report them upstream with the log around them",
)

_EXTRA_KEYS = frozenset({b"Traceback", b"File", b"traceback"})  # so that tracebacks are read at all


@lru_cache(maxsize=1)
def load() -> Signatures:
    """The shipped signatures and those of plugins, loaded once. Raises SignatureError for a mistake in a shipped one; a
    plugin with a mistake is left out.
    """
    texts = _texts_of(signatures)
    built = build(texts)
    for name, package in SIGNATURES.items():
        if package is not signatures:
            try:
                more = {f"{name}/{file}": text for file, text in _texts_of(package).items()}
                built = build({**texts, **more})
            except (SignatureError, OSError) as e:
                SIGNATURES.leave_out(name, str(e))
            else:
                texts |= more
    return built


def _texts_of(package: ModuleType) -> dict[str, str]:
    files = resources.files(package).iterdir()
    return dict(sorted((f.name, f.read_text("utf-8")) for f in files if f.name.endswith(".toml")))


def build(texts: Mapping[str, str]) -> Signatures:
    """Build signatures from file name -> TOML text. Raises SignatureError for any mistake."""
    files = {name: _parse(name, text) for name, text in texts.items()}
    frames, ignore = (files.pop(name, _Table(name, {})) for name in ("frames.toml", "ignore.toml"))
    found: dict[str, Signature] = {}
    for name, file in files.items():
        _Table(f"{name}: the file", file.data).allow(("signature",))
        for n, table in enumerate(file.tables("signature")):
            signature = _signature(name, _Table(f"{name}: {table.data.get('id') or f'entry {n + 1}'}", table.data))
            if signature.id in found:
                raise SignatureError(f"{name}: {signature.id}: the id is already used in {found[signature.id].file}")
            found[signature.id] = signature
    for s in found.values():
        for other in s.refines:
            if other not in found:
                raise SignatureError(f"{s.file}: {s.id}: refines {other!r}, which no file has")
        for name in (*s.known, *(k for v in s.variants for k in v.known)):
            if not advisory.exists(name):
                raise SignatureError(f"{s.file}: {s.id}: known {name!r} is no advisory")
    places = tuple(s for s in found.values() if s.role == "place")
    by_word = _index(s for s in found.values() if s.role != "place")
    return Signatures(
        all=tuple(found.values()),
        by_word=by_word,
        keys=frozenset(by_word) | _EXTRA_KEYS,
        skip=frames.patterns("skip"),
        engine=frames.patterns("engine"),
        ignore=tuple(pattern for line in ignore.tables("line") for pattern in line.patterns("pattern")),
        harmless=tuple(pattern for line in ignore.tables("harmless") for pattern in line.patterns("pattern")),
        places=places,
    )


@dataclass(frozen=True)
class _Table:
    """One table of a file; `where` says which one, for its mistakes."""

    where: str
    data: Mapping[str, object]

    def mistake(self, text: str) -> SignatureError:
        return SignatureError(f"{self.where}: {text}")

    def allow(self, keys: Collection[str]) -> None:
        for key in self.data:
            if key not in keys:
                raise self.mistake(f"unknown key {key!r} (known: {', '.join(sorted(keys))})")

    def tables(self, key: str) -> list[_Table]:
        found = self.data.get(key)
        return [_Table(f"{self.where}: {key}", one) for one in found] if isinstance(found, list) else []

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.data.get(key, [])
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
            raise self.mistake(f"{key} must be a text or a list of texts")
        return tuple(texts)

    def patterns(self, key: str) -> tuple[re.Pattern[str], ...]:
        found = []
        for text in self.texts(key):
            try:
                found.append(re.compile(text))
            except re.error as mistake:
                raise self.mistake(f"{text!r} is no regular expression: {mistake}") from mistake
        return tuple(found)


def _parse(name: str, text: str) -> _Table:
    try:
        return _Table(name, tomllib.loads(text))
    except tomllib.TOMLDecodeError as mistake:
        raise SignatureError(f"{name}: {mistake}") from mistake


def _signature(file: str, table: _Table) -> Signature:
    table.allow(_KEYS)
    for key in ("id", "title", "severity"):
        if not table.data.get(key):
            raise table.mistake(f"{key} is missing")
    texts = {key: table.texts(key) for key in _LISTS}
    patterns = {key: table.patterns(key) for key in _PATTERNS}
    signature = replace(
        typed_json.from_json(Signature, {**{k: v for k, v in table.data.items() if k not in _PATTERNS}, **texts}),
        file=file,
        patterns=patterns["pattern"],
        unless=patterns["unless"],
        unless_before=patterns["unless_before"],
        before=patterns["before"],
    )
    if signature.role not in ROLES:
        raise table.mistake(f"role {signature.role!r} is none of {', '.join(ROLES)}")
    if signature.severity not in _SEVERITIES:
        raise table.mistake(f"severity {signature.severity!r} is none of {', '.join(_SEVERITIES)}")
    if not signature.patterns and not signature.symptom:
        raise table.mistake("pattern is missing (symptom = true for one without log lines)")
    if not signature.find and not signature.symptom and signature.role != "place":
        raise table.mistake("find is missing")
    if wordless := [text for text in signature.find if not (WORD.search(text) or _SHORT_WORD.search(text))]:
        raise table.mistake(f"find {wordless[0]!r} has no word of three letters or more")
    for expression in signature.derive.values():
        _check_expression(table, expression)
    for variant in table.tables("variant"):
        variant.allow({f.name for f in fields(Variant)})
        if not variant.data.get("title") or not variant.data.get("frames"):
            raise variant.mistake("a variant needs frames and a title")
    return signature


def _index(signatures: Iterable[Signature]) -> dict[bytes, tuple[Signature, ...]]:
    """Index by rarest word. A word at either end of `find` may be longer in the line, so it is avoided."""
    index: dict[str, list[Signature]] = {}
    for signature in signatures:
        for text in signature.find:
            words = list(WORD.finditer(text)) or list(_SHORT_WORD.finditer(text))
            inner = [w[0] for w in words if w.start() > 0 and w.end() < len(text)]
            candidates = inner or [w[0] for w in words]
            word = max(candidates, key=lambda w: (w.lower() not in _COMMON, len(w)))
            entries = index.setdefault(word, [])
            if signature not in entries:
                entries.append(signature)
    return {word.encode(): tuple(entries) for word, entries in index.items()}


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def _check_expression(table: _Table, text: str) -> None:
    try:
        evaluate(text, dict.fromkeys((n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)), 1.0))
    except NotOverError:  # with made-up figures it need not be
        pass
    except (SyntaxError, ValueError, KeyError) as mistake:
        raise table.mistake(f"derive {text!r}: {mistake}") from mistake


def evaluate(expression: str, values: Mapping[str, float]) -> float:
    """Evaluate + - * /, ceil(x), ceil2(x) and over(x, limit) on named figures. ceil2 rounds up to two decimals. Raises
    KeyError for a figure that is not there, ValueError for anything else that is not arithmetic.
    """

    def of(node: ast.AST) -> float:
        match node:
            case ast.Expression(body=body):
                return of(body)
            case ast.Constant(value=int() | float() as number):
                return float(number)
            case ast.Name(id=name):
                return values[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](of(left), of(right))
            case ast.Call(func=ast.Name(id="ceil"), args=[argument]):
                return float(math.ceil(of(argument)))
            case ast.Call(func=ast.Name(id="ceil2"), args=[argument]):
                return math.ceil(of(argument) * 100 - 1e-9) / 100
            case ast.Call(func=ast.Name(id="over"), args=[argument, limit]):
                if of(argument) > of(limit):
                    return of(argument)
                raise NotOverError("it is not over the limit")
        raise ValueError("only + - * /, ceil(), ceil2(), over(), numbers and the names of figures")

    try:
        return of(ast.parse(expression, mode="eval"))
    except ZeroDivisionError as mistake:
        raise ValueError("division by zero") from mistake
