"""Collect unexplained error lines: candidates for a death's cause.

A candidate is an error line that no signature matches: a line logged at ERROR or CRITICAL, an exception, or a message of
native code. Candidates are ranked by their kind, then by how near their writer is to the fault, then by their order.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from loadchaos.analysis.classify.normalise import normalise
from loadchaos.analysis.classify.prefixes import ERROR_LEVELS, PREFIX_CHARS, LogLine
from loadchaos.analysis.classify.python_stack import EXCEPTION_NAME
from loadchaos.analysis.classify.signature_file import Signature
from loadchaos.analysis.verdict.model import CandidateLine, Evidence
from loadchaos.core.model import Severity
from loadchaos.core.units import NS_PER_S

_MOST_KEPT = 200  # of one log
_MOST_SOURCES = 64
_MOST_SHOWN = 3
_LONGEST = 400
_WARNING_CHARS = 300  # of a warning that are judged
_BEFORE_API = 30  # for what the API server only logged: request errors, most of the time
_BEFORE, _AFTER = 400, 60  # lines around what shows the death
_BEFORE_S, _AFTER_S = 60, 10  # the same by time
EXCERPT = 12  # a log of no more lines is what somebody took out of one to show an error
_END = 8  # lines at the end of a log that may be its last words
_FATAL, _RAISED, _CRITICAL, _LOGGED, _SAID = 90, 80, 70, 60, 30  # ranks

_SIGNS = (
    "rror", "ERR", "FATAL", "FTL", "atal", "CRITICAL", "xception", "ssert", "ailed", "fail: ", "FAILED",
    "bort", "illed", "anic", "ermin", "nsupported", "not support", "annot", "ould not", "nable to", "core dumped", "nvalid",
    "imed out", "[E]", "[F]",
    "died", "rashed", "nexpectedly", " E ", "critical\t", "[emerg", "[alert", "[crit", "[ALERT",
)  # fmt: skip
_GLOG = ("E0", "E1", "F0", "F1")


_NATIVE = re.compile(
    r"\bFATAL\b|^[Ff]atal\b|\blevel=(?:fatal|panic)\b|\bFTL\b|"
    r"\[F\]|\bF\d{3,4} \d\d:|terminate called|\b[Aa]ssertion (?:`|fail)|(?:^|\] )(?:Aborted|Killed)\b"
    r"|core dumped|panicked at|\b(?:CUDA|HIP|NPU|SYCL|ACL|Driver)\b[\w ]{0,20}\berror\b|NCCL error|[Cc]heck failed:"
    r"|[Ii]llegal instruction|Bus error|unsupported toolchain|\bwhat\(\):|\bERR\d{5}\b|\bE[A-Z]\d{4}\b|libc\+\+abi"
    r"|but (?:your )?CPU does not support|\b(?:[Ff]atal|[Cc]ritical) error\b"
)
_EXCEPTION = re.compile(rf"{EXCEPTION_NAME}(?::\s|$)")
_MARKED = re.compile(
    r"\[E\]|\[CRITICAL\]|^CRITICAL\b|\bE\d{3,4} \d\d:|\b(?:ERROR|ERR|FTL|PNC)\b|\|CCL_ERROR\|"
    r"|\blevel=(?:error|fatal|panic)\b|\[(?:\w+:)?(?:error|critical|crit|alert|emerg)\s*\]|^error: |^fail: [\w.]+\[\d+\]"
    r"|,\d{3} E \d+ \d+\] "  # structlog, Apache, winston, .NET, Ray
)
_WORDED = re.compile(
    r"\b[Tt]imed out\b|\b[Ee]rror\b ?:|\b[Ff]ailed\b|\b[Uu]nable to\b|\b[Cc]annot\b|\b[Cc]ould not\b|[Uu]nsupported"
    r"|not supported|\b[Ii]nvalid\b|\b(?:died|was killed|crashed|unexpectedly)\b"
)
_NOT_STARTED = re.compile(
    r"\b(?:[Ff]ail(?:ed|ure|s)?|[Uu]nable|[Cc]an(?:not|\x27t)|[Cc]ould (?:not|n\x27t)|[Ee]rror|[Ii]nvalid|[Mm]issing)\b"
    r".{0,80}?\b(?:start(?:ing|ed|s|up)?(?!/)|boot(?:strap)?|initiali[sz]\w*|init|load(?:ing)?|bind|listen|set ?up"
    r"|config(?:uration|s)?|register(?:ing)?|pars(?:e|ing)"
    r"|creat(?:e|ing) (?:\w+ ){0,2}(?:server|manager|client|router|controller|runner|engine|app))\b"
)
_ENDED = re.compile(
    r"\b(?:[Ee]ngine|[Pp]rocess|[Ww]orker|[Ee]xecutor|[Ss]cheduler|[Ss]erver|[Rr]unner|[Ll]oop|[Tt]hread|[Rr]ank|[Pp]rogram|[Ss]ervice)\b"
    r"(?!.*\b(?:connection|stream|request|session|client|upstream)s?\b).{0,40}?"
    r"\b(?:died|crashed|is dead|exit(?:ed|ing)|terminat(?:ed|ing)|stopped|ended|killed|aborting|shutting down)\b"
)
_HANGS = re.compile(
    r"\b(?:[Hh]ang detected|(?:is|are) (?:hung|hanging|stuck)|[Dd]eadlock|(?:made |makes )?no progress)\b"
)
_ERROR_FIRST = re.compile(
    r"[Ee]rror: \S|Error (?:\w+ing|while|when|in|during|from|\w+ (?:is|was)) \w"
)  # of a command, or of a program without levels
_HARMLESS = re.compile(
    r"^\s*(?:File \"|frame #\d|Traceback|During handling|The above exception|\^|~)|\bDEBUG\b|^\s*\[W|^[IW]\d{4} \d\d:"
    r"|\bINFO\b"
    r"|\b(?:INF|DBG|TRC|WRN)\b|\blevel=(?:info|debug|warn)"
    r"|UserWarning|Deprecat"
    r"|errors?[=:] ?(?:0|None|null|\[\]|False)\b|_error['\"]?[=:]|exit_code=0|error_count|errors\.pydantic\.dev"
    r"|(?<!won't )(?<!not )(?<!no )\b(?:[Rr]etry|[Ii]gnor)(?:e|ing)?\b(?! (?:handler |attempts? )?(?:failed|exhausted))"
    r"|thrown while requesting"
    r"|See stack trace|please check the stack trace|For debugging consider|might be asynchronously|Compile with `TORCH"
)
_WIDE = re.compile(
    r"\b[Ee]rror(?:s? ?[:=\"']| occurred| code)|\bERROR\b|\ban? (?:\w+ )?(?:error|exception|failure)\b"
    r"|[Ee]xception (?:occur|caught)"
    r"|\b(?:[Ff]ails|[Ff]ailure|[Tt]imeout|OOM|[Oo]ut of memory|[Rr]efused|[Rr]ejected|[Rr]eset by peer|[Uu]navailable"
    r"|[Uu]nreachable|[Ee]xceed(?:s|ed)|[Aa]borted|[Cc]rashed|[Dd]eadlock|[Ss]tuck|[Ii]llegal|[Pp]anic(?:ked)?"
    r"|not found|not exist|[Nn]o such|[Nn]o space|mismatch)\b|\w(?:Error|Exception)\b"
)
QUIET_LEVELS = ("INFO", "DEBUG", "WARNING")
_OF_REQUEST = re.compile(
    r"\b(?:[Rr]equests?|[Cc]lients?|[Cc]ompletions?|[Pp]rompts?|[Cc]hat|POST|PUT|HTTP/[12][\d.]*)\b|_id=|[Rr]equestI[dD]"
)
_MAY_BE_OF_REQUEST = re.compile(
    r"\b(?:[Rr]esponses?|[Ss]treams?|[Aa]nswers?|[Tt]okens?|[Ss]tatus|[Cc]hannel|[Pp]roxy(?:ing)?|[Rr]elay|[Ff]orward(?:ing)?"
    r"|[Rr]oute)\b"
)
"""Words of a request, and of what work in the background asks for, too: there they come behind the name of that work."""
_OF_BACKGROUND = re.compile(
    r"(?i:\b(?:(?P<asks>health\w*|heartbeats?|probes?|scrap\w+|leases?|watch\w*|discover\w*)"
    r"|metrics?|telemetry|reload\w*|refresh\w*|sync\w*|plugins?|(?:de|un)?regist\w+|certificates?|budgets?|callbacks?"
    r"|clean ?up|cron|background|scheduled|statistics|cache)\b)"
)
_WARNS = re.compile(
    r"\bWARN\b|\[warn(?:ing)?\]|\blevel=\"?warn(?:ing)?\b|\"level\": ?\"warn(?:ing)?\"|\bWRN\b|\twarn(?:ing)?\t"
    r"|^W\d{4} \d\d:|^\[WARNING\] +(?:\d+/|\()"
)
"""Level of a warning as programs in Go, Rust and C write it: those in Python write WARNING, and warn of harmless things."""
_FAILS = re.compile(
    r"\b(?:[Ff]ail(?:ed|ure|s|ing)|[Ee]rror(?:ed)?\b(?: \w+ing\b|:| occurred)|[Tt]imed? ?out|[Rr]efused|[Rr]eset by peer"
    r"|[Uu]n(?:reach|avail)able|[Uu]nhealthy|[Uu]nable to|[Cc]ould not|[Rr]ejected|[Ee]xceed(?:s|ed)|[Aa]borted|[Dd]ropped"
    r"|[Pp]anic\w*)\b"
)
_MENDS = re.compile(
    r"(?i:\bretr(?:y|ies|ied|ying)\b(?! (?:attempts? )?(?:failed|exhausted))|ignor(?:e|ed|ing)|\bskip|fall(?:ing)? ?back"
    r"|deprecat|default|optional|not (?:set|configured|enabled|specified)|disabled|recommend|\bwaiting\b|\bagain\b|backoff"
    r"|reconnect|cancell?ed)"
)


@dataclass(slots=True)
class Candidate:
    """One unexplained error line. `rank` is higher for a likelier cause."""

    source: str
    line: int
    text: str
    process: str
    rank: int
    at_ns: int | None = None
    loud: bool = False  # logged at ERROR or higher, outside a traceback
    reported: bool = False  # by a logger at ERROR
    traced: bool = False  # the exception of a traceback
    place: Signature | None = None  # the part of the server it is from, where it is loud
    answer: str = ""  # a request that was answered with 5xx, as the access log has it
    clock_s: float | None = None  # time of an answer, as `LogLine.clock_s`
    severity: Severity = "request"  # what its words say of the program
    repeats: int = 0  # equal ones that were left out
    warned: bool = False

    def shown(self) -> CandidateLine:
        return CandidateLine(source=self.source, line=self.line, process=self.process or None, text=self.text)


@dataclass
class LastWords:
    """Candidates of all logs, newest last; bounded."""

    kept: dict[str, deque[Candidate]] = field(default_factory=dict)

    def feed(self, line: LogLine, source: str, line_no: int, at_ns: int | None) -> Candidate | None:
        rank, loud = rank_of(line)
        return self.keep(line, source, line_no, at_ns, (rank, loud)) if rank else None

    def keep(self, line: LogLine, source: str, line_no: int, at_ns: int | None, ranked: tuple[int, bool]) -> Candidate:
        text, (rank, loud) = line.text.strip()[:_LONGEST], ranked
        return self.add(Candidate(source, line_no, text, line.writer, rank, at_ns, loud, line.level == "ERROR"))

    def add(self, candidate: Candidate) -> Candidate:
        kept = self.kept.get(candidate.source)
        if kept is None:
            if len(self.kept) >= _MOST_SOURCES:
                self.kept.pop(next(iter(self.kept)))
            kept = self.kept[candidate.source] = deque(maxlen=_MOST_KEPT)
        kept.append(candidate)
        return candidate

    def around(self, evidence: Evidence) -> list[CandidateLine]:
        line, kept = evidence.line, self.kept.get(evidence.source or "", ())
        if line is None:
            return []
        found = [c for c in kept if -_reach(c) <= c.line - line <= _AFTER and c.line != line]
        return [c.shown() for c in best(found)]

    def at_time(self, at_ns: int, replica: str | None, *, kernel: str = "") -> list[CandidateLine]:
        """Best candidates around a time, of one server and the kernel.

        Args:
            at_ns: monotonic ns.
            replica: the stem of the log's name; None for all logs.
            kernel: name of the kernel's log.
        """
        found: list[Candidate] = []
        for source, kept in self.kept.items():
            if replica is None or source == kernel or PurePath(source).stem == replica:
                since, until = at_ns - _BEFORE_S * NS_PER_S, at_ns + _AFTER_S * NS_PER_S
                found += [c for c in kept if c.at_ns is not None and since <= c.at_ns <= until]
        return [c.shown() for c in best(found)]

    def at_end(self, source: str, last_line: int, *, starting: bool, served: bool) -> Candidate | None:
        """The likeliest error at the end of a log, None without one. `starting`: the server has not served yet, so that
        any error ended it; else only a message of native code did, or the last line of a command that never served.
        """
        least = _LOGGED if starting else _FATAL
        near = [
            c for c in self.kept.get(source, ())
            if last_line - c.line <= _END
            and (c.rank >= least or (not served and c.line == last_line and _ends_a_start(c.text)))
        ]  # fmt: skip
        # A traceback says by itself whether it ended its process, and who logs an error goes on.
        ended = [c for c in near if starting or not (c.traced or c.reported)]
        chosen = best(ended)
        return chosen[0] if chosen else None

    def raised(self, source: str, last_line: int) -> list[Candidate]:
        """Exceptions and messages of native code, for a log in which nothing else was found; without any, the likeliest
        of its last lines, or of an excerpt, that reads as an error.
        """
        kept = self.kept.get(source, ())
        said = best(c for c in kept if last_line - c.line <= (_END if last_line > EXCERPT else EXCERPT))
        return [replace(c, loud=True) for c in [c for c in kept if c.rank >= _RAISED] or said[:1]]

    def forget(self, source: str) -> None:
        self.kept.pop(source, None)


def _ends_a_start(text: str) -> bool:
    return _ERROR_FIRST.match(text) is not None or severity_in_words(text) == "startup"


def is_quiet(line: LogLine) -> bool:
    """True for a line that says itself that it is no error, by its level or in its words."""
    return line.level in QUIET_LEVELS or _HARMLESS.search(line.text[:_WARNING_CHARS]) is not None


def may_say_error(line: LogLine) -> bool:
    """True for a line with a word of an error; for an excerpt in which no rule found anything."""
    return _WIDE.search(line.text[:400]) is not None and not is_quiet(line)


def severity_in_words(text: str) -> Severity:
    """Severity in the words of an error; `startup` holds in its first lines, `engine_death` where it answers no more."""
    text = text[:_WARNING_CHARS]
    if _HANGS.search(text):
        return "hang"
    if _ENDED.search(text):
        return "engine_death"
    if _NOT_STARTED.search(text):
        return "startup"
    return "degraded" if _is_of_background(text) else "request"


def _is_of_background(text: str) -> bool:
    work, request = _OF_BACKGROUND.search(text), _MAY_BE_OF_REQUEST.search(text)
    if work is None or _OF_REQUEST.search(text) is not None:
        return False
    return request is None or (work["asks"] is not None and work.start() < request.start())


def may_warn(raw: str) -> bool:
    """True for a line that may be a warning; cheap, for many lines of a log."""
    head = raw[:PREFIX_CHARS]
    return "arn" in head or "WARN" in head or "WRN" in head or head[:1] == "W"


def warns_of_failure(raw: str, text: str) -> bool:
    """True for a warning of a program in Go, Rust or C that says that something failed and will not be tried again."""
    if _WARNS.search(raw[:PREFIX_CHARS]) is None:
        return False
    text = text[:_WARNING_CHARS]
    return _FAILS.search(text) is not None and _MENDS.search(text) is None


def severity_of_warning(text: str) -> Severity:
    text = text[:_WARNING_CHARS]
    of_request = _OF_REQUEST.search(text) or _MAY_BE_OF_REQUEST.search(text)
    return "request" if of_request is not None and not _is_of_background(text) else "degraded"


def says_error(raw: str) -> bool:
    return re.search(r"\b(?:[Ee]rror|ERROR|[Ee]xception|[Ff]ailed|[Ff]ailure)\b", raw) is not None


def is_suspicious(line: str) -> bool:
    """True for a line that may be a candidate; cheap, for every line of a log."""
    if "INFO" in line:
        return False  # most lines; _HARMLESS excludes them
    for sign in _SIGNS:  # spelled out: a generator or a regular expression takes several times as long
        if sign in line:
            return True
    return line.startswith(_GLOG)


def rank_of(line: LogLine) -> tuple[int, bool]:
    """Rank a line, and tell whether it is loud; 0 for no candidate."""
    text = line.text
    if not text.strip() or text[0] in " \t" or _HARMLESS.search(text[:_WARNING_CHARS]):
        return 0, False
    loud = line.level in ERROR_LEVELS or _MARKED.search(text[:120]) is not None
    if line.level in QUIET_LEVELS:
        return 0, False
    if _NATIVE.search(text[:_WARNING_CHARS]):
        return _FATAL, loud
    if _EXCEPTION.match(text):
        return _RAISED, loud
    if loud:
        return _CRITICAL if line.level == "CRITICAL" else _LOGGED, True
    if _ERROR_FIRST.match(text):
        return _LOGGED, not line.level and text[0] == "E"
    return (_SAID, False) if _WORDED.search(text[:_WARNING_CHARS]) else (0, False)


def best(candidates: Iterable[Candidate]) -> list[Candidate]:
    chosen: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: (-c.rank, writer_distance(c.process), c.line)):
        chosen.setdefault(normalise(candidate.text), candidate)
        if len(chosen) >= _MOST_SHOWN:
            break
    return list(chosen.values())


def _reach(candidate: Candidate) -> int:
    """Lines before a death within which a candidate may name it."""
    return _BEFORE_API if candidate.rank < _FATAL and writer_distance(candidate.process) == 2 else _BEFORE


def writer_distance(process: str | None) -> int:
    name = (process or "").lower()
    if "worker" in name or "rank" in name or re.match(r"(?:dp\d+ )?tp\d", name):
        return 0
    return 2 if "api" in name else 1
