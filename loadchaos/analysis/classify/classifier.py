"""Match log lines against the signatures. `group()` turns the matches into failures."""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from loadchaos.analysis.classify.access_log import ANSWER, GENERATED, REFUSED, refusal, time_of
from loadchaos.analysis.classify.group import PASSING_ON, group
from loadchaos.analysis.classify.last_words import (
    QUIET_LEVELS,
    Candidate,
    LastWords,
    is_quiet,
    is_suspicious,
    may_say_error,
    may_warn,
    rank_of,
    says_error,
    severity_in_words,
    severity_of_warning,
    warns_of_failure,
)
from loadchaos.analysis.classify.match import (
    EVIDENCE_CHARS,
    TITLE_CHARS,
    Match,
    engine_of,
    for_engine,
    match_of,
    put_stack,
)
from loadchaos.analysis.classify.native_stack import NativeStack
from loadchaos.analysis.classify.normalise import normalise, without_numbers
from loadchaos.analysis.classify.prefixes import (
    ERROR_LEVELS,
    ISO_STAMP,
    PREFIX_CHARS,
    TIME_KEYS,
    LogLine,
    clock,
    expand,
    strip_prefixes,
    without_margin,
)
from loadchaos.analysis.classify.python_stack import FRAME, HEADER, Trace, begins_chained_traceback, is_of_start
from loadchaos.analysis.classify.signature_file import (
    UNCAUGHT,
    UNEXPLAINED_END,
    UNKNOWN,
    Signature,
    SignatureError,
    Signatures,
    load,
)
from loadchaos.analysis.classify.standstill import HINT, STANDSTILL, StandstillWatch
from loadchaos.analysis.classify.unexplained import UnexplainedErrors
from loadchaos.analysis.failure import DEADLY, DEADLY_OR_HUNG, Failure, evidence
from loadchaos.core.foreign_json import json_value
from loadchaos.core.model import Severity

__all__ = ["Classifier", "Match", "SignatureError", "Signatures", "classify_text", "group", "load"]

_LONGEST_LINE = 8_000
"""A dumped batch is megabytes, and some patterns take quadratic time. What names a failure stands at an end of a line."""
_MOST_WRITERS = 256
_ATTEND = 10  # lines after a traceback that may go on with its message
_INTRO = 3  # lines between an echo and the traceback that it introduces
_REPEATS = 8  # equal matches reported one by one within _REPEAT_S (or _REPEAT_LINES); more are counted
_REPEAT_S = 10.0
_REPEAT_LINES = 2_000
_MOST_REPEATS_KEPT = 4_096
_MOST_JUDGED = 1_000  # kinds of lines
_LONGEST_BODY = 1 << 20
_STACK_FOLLOWS = 12  # lines between what names a crash and the stack printed of it, and within that stack
_LAST_WORDS = 3  # lines after an uncaught exception that are still its message
_HEAD_LINES = 200  # of a log that was rotated or cut
_ENDED_IN_ORDER = 60  # lines after an orderly shutdown whose errors kill nobody
_FIRST_LINES = 12  # of a log that may begin with the start of its program
_BEGINS = re.compile(r"\b(?:[Ss]tarting|[Ii]nitializing|[Ll]aunching|[Bb]ooting)\b")
_MAY_SERVE = re.compile(
    r"\b(?:GET|POST|PUT) |HTTP/[12]|[Rr]equest|\b[Ss]elected\b|\b[Rr]eady\b|[Rr]eadiness succeeded"
    r"|\b(?:[Ll]istening|[Ss]erving|[Aa]ccepting|[Rr]unning)\b|\bstarted (?:in|successfully)|main dispatch loop|complete\b"
    r"|[Tt]unnel connection"
    r"|^thread '(?!main')"
)
"""Sign of a program that has started, or that was asked for something."""
_LIVES_ON = 40  # lines after an error that ends most programs: more than its stack
_ANSWERED = '" 200 OK'  # of an access log: the server serves
_FINISHED = re.compile(r'finished, reason "(?:length|stop)"')  # a request of LMDeploy
_STATISTICS = ("Avg prompt throughput", "Decode batch", "launch_slot_")  # of an engine that has served
_JSON_TIME = re.compile(rf'"(?:{"|".join(map(re.escape, TIME_KEYS))})": ?"{ISO_STAMP.pattern}')
_DEBUG_RECORD = re.compile(r'"(?:level|lvl|levelname)": ?"(?:debug|trace|DEBUG|TRACE)"')
_LOG_LEVELS = ("ERROR", "WARNING", "CRITICAL")  # a logger reports an exception in the line before it
_WARNS = "WARNING"
PAGE = re.compile(r"\s*<(?:!doctype|\?xml|html|head|body|title|center|h\d|p|div|pre|error)\b", re.IGNORECASE)
"""Begin of an HTML or XML page. A syslog's `<30>` and Python's `<frozen runpy>:128:` are no pages."""
_NAMELESS = re.compile(
    r"'NoneType' object|(?:list|tuple|string|pop) (?:index|assignment index|from)|.{0,20}division by zero"
)
"""Message of an exception that names nothing of the code: its line says more."""
_ENDINGS = ("KeyboardInterrupt", "SystemExit", "CancelledError", "GeneratorExit")  # ended on purpose


class _ErrorLine(NamedTuple):
    """Judgement of a line that no signature knows; its fields are as in `Candidate`."""

    rank: int
    loud: bool
    place: Signature | None
    severity: Severity


@dataclass(slots=True)
class _Writer:
    trace: Trace | None = None
    last: Trace | None = None
    last_line: int = -_ATTEND
    chained: bool = False
    intro: list[Match] = field(default_factory=list)
    intro_line: int = -_INTRO
    causes: list[Match] = field(default_factory=list)  # of the newest lines, without a traceback
    word: Candidate | None = None


@dataclass(slots=True)
class _Repeats:
    """Counts of equal matches within a short time. `since` is in seconds; `last` is the newest reported one."""

    since: float
    last: Match
    reported: int = 0
    left_out: int = 0


@dataclass(slots=True)
class _Source:
    """State of one log: open tracebacks, facts, repeats. `writers` has the least recently active first; `carry` is the
    writer of unprefixed lines.
    """

    writers: OrderedDict[str, _Writer] = field(default_factory=OrderedDict)
    carry: str = ""
    open: int = 0
    attend_until: int = 0
    facts: dict[str, str] = field(default_factory=dict)
    engine: str = ""  # who writes it, as the newest proof says
    before: str = ""
    last_line: int = 0
    starting: bool = False
    served: bool = False
    begun: bool = False  # the log begins with the start of its program
    may_serve: bool = False  # the start is over, or cannot be told from what follows
    doubtful_line: int = 0  # the newest match of a signature that is doubtful
    stopped_line: int = -_ENDED_IN_ORDER
    ending: tuple[Trace, Match] | None = None
    told_chains: deque[int] = field(default_factory=lambda: deque(maxlen=_MOST_WRITERS))  # an echo of each was given
    stills: StandstillWatch = field(default_factory=StandstillWatch)
    printed: Match | None = None  # the exception of `ending`, where no signature knows it
    doubted: list[Match] = field(default_factory=list)  # deadly causes that a logger reported
    ends: list[Candidate] = field(default_factory=list)  # errors that say that the program ended
    answers: bool = False  # the line before is of an answered request
    record_line: int = 0  # the newest line with a level of its own
    headed: bool = False  # a traceback began in this log: before it, the first one may be cut off
    warned: list[Match] = field(default_factory=list)  # matches of the traceback after a warning
    warned_line: int = 0
    crash: tuple[Match, NativeStack] | None = None
    repeats: OrderedDict[tuple[str, str, str], _Repeats] = field(default_factory=OrderedDict)

    def settle_doubts(self, *, doubtful: bool = False) -> None:
        """Note that the process lived on after the errors that a logger called deadly, or after `doubtful` ones only."""
        for match in self.doubted:
            match.survived |= match.signature.doubtful or not doubtful
        self.doubted = [m for m in self.doubted if not m.survived]
        self.doubtful_line = 0

    def doubt(self, found: Sequence[Match]) -> None:
        self.doubted += [m for m in found if m.logged and m.role == "cause" and m.severity == "engine_death"]
        del self.doubted[:-_REPEATS]
        self.doubtful_line = next((m.line for m in found if m.signature.doubtful), self.doubtful_line)

    def follow_start(self, line: str, line_no: int) -> None:
        self.begun |= line_no <= _FIRST_LINES and _BEGINS.search(line) is not None
        self.may_serve = self.may_serve or _MAY_SERVE.search(line) is not None

    def is_starting(self, line_no: int) -> bool:
        return self.starting or (self.begun and not (self.may_serve or self.served) and line_no <= _HEAD_LINES)

    def ended_in_traceback(self) -> bool:
        if self.ending is None:
            return False
        trace, match = self.ending
        line: int = match.line
        return self.last_line - line <= _LAST_WORDS and (not trace.warned or self.record_line < line)


@dataclass(slots=True)
class _Position:
    """Position of one line: log, number from 1 on, arrival (monotonic ns)."""

    source: str
    state: _Source
    line_no: int
    at_ns: int | None
    before: str = ""  # the line before, out of its JSON record
    raw: str = ""

    @property
    def transport_s(self) -> float | None:
        """Time of a transport's ISO stamp or of a JSON record, as `LogLine.clock_s`; read only where a line has matched."""
        found = ISO_STAMP.search(self.raw[:PREFIX_CHARS]) or _JSON_TIME.search(self.raw)
        return clock(found["day"], found["time"]) if found is not None else None

    @property
    def text_before(self) -> str:
        return strip_prefixes(self.before).text


class Classifier:
    """Matches the lines of any number of logs. Its state is bounded, and no text makes it raise."""

    def __init__(self, *, live: bool = False) -> None:
        """Match all signatures; live: the phase is known elsewhere."""
        self._signatures = load()
        self._live = live
        self.last_words = LastWords()
        self.loud: list[Candidate] = []  # lines at ERROR level that no rule knows
        self._warnings: dict[str, Candidate | None] = {}  # by their text without numbers; None for no failure
        self._sources: dict[str, _Source] = {}
        self._chain = 0
        self._judged: dict[tuple[str, str, str], _ErrorLine | None] = {}

    def feed(self, line: str, *, line_no: int, at_ns: int | None = None, source: str = "") -> list[Match]:
        """Fold the next line of `source` and give its matches.

        Args:
            line: the raw line.
            line_no: its number, from 1 on.
            at_ns: its arrival, monotonic ns; None for a log that is not live.
            source: name of the log.
        """
        state = self._sources.get(source)
        if state is None:
            state = self._sources[source] = _Source()
        before, state.before = state.before, line
        if line.strip():
            state.last_line = line_no
        if state.answers:
            state.answers = False
            if "ERROR" not in line:  # else that answer may have failed after its status: LMDeploy
                state.settle_doubts()
        if state.doubted and _FINISHED.search(line):
            state.settle_doubts()
        if not state.served or state.ending is not None or state.doubted or state.ends:
            self._follow_service(line, state)
        hangs: list[Match] = []
        if HINT in line and state.stills.may_matter(line):
            hangs = self._stands_still(line, _Position(source, state, line_no, at_ns, before, line))
        idle = not state.open and line_no > state.attend_until
        if line_no <= _HEAD_LINES:
            idle = idle and not _may_be_cut(line, line_no, state)
            state.follow_start(line, line_no)
        if state.doubtful_line and line_no - state.doubtful_line > _LIVES_ON:
            state.settle_doubts(doubtful=True)
        if idle and not self._live and (answer := refusal(line)):  # a run knows the answers itself
            text, clock_s = line[:EVIDENCE_CHARS], time_of(line)
            self.loud.append(Candidate(source, line_no, text, "", 0, at_ns, loud=True, answer=answer, clock_s=clock_s))
        if idle and (line.endswith(_ANSWERED) or (not self._signatures.may_match(line) and not is_suspicious(line))):
            return hangs  # nine lines in ten end here
        if before.endswith("}"):
            before = expand(before)[-1]
        found: list[Match] = []
        position = _Position(source, state, line_no, at_ns, before[:_LONGEST_LINE], line)
        if HEADER in line and self._quotes_a_traceback(line):
            return hangs
        for text in expand(line) if len(line) <= _LONGEST_LINE else map(_ends, expand(line)):
            if HEADER in text and text is not line and self._quotes_a_traceback(text):
                continue  # in a JSON record
            if state.crash is not None and not state.open and self._in_stack(text, line_no, state):
                continue
            found += self._line(text, position)
        if found and self.loud and self.loud[-1].line == line_no:
            _name_of_record(self.loud[-1], found)
        for match in found:
            self._follow_phase(match, state)
            if match.role in ("cause", "echo") and match.severity == "engine_death" and not match.frames:
                self._crashed(match, line_no, state)
        found = [m for m in found if not any(p.search(before) for p in m.signature.unless_before)]
        state.doubt(found)
        return [*hangs, *(m for m in found if self._is_reported(m, state))]

    def _follow_service(self, line: str, state: _Source) -> None:
        if ANSWER.search(line) is not None:
            state.starting, state.served = False, True
            if state.printed is not None:
                state.printed.loud = not state.printed.harmless
            state.ending = state.printed = None  # who answers has not ended
            for word in state.ends:
                word.severity = "request"
            state.ends.clear()
            state.answers = GENERATED.search(line) is not None
        elif any(words in line for words in _STATISTICS):
            state.starting, state.served = False, True

    def _stands_still(self, line: str, position: _Position) -> list[Match]:
        """Fold a line of the engine's statistics; gives a hang when it has become one, and keeps its title up to date."""
        text = strip_prefixes(expand(line)[-1])
        clock_s = text.clock_s if text.clock_s is not None else position.transport_s
        still = position.state.stills.on_line(text.text, text.writer, position.line_no, clock_s)
        if still is None or (signature := self._signatures.get(STANDSTILL)) is None:
            return []
        values = {"seconds": str(round(still.seconds)), "running": str(still.running), "waiting": str(still.waiting)}
        shown = evidence(position.source, still.text[:EVIDENCE_CHARS].rstrip(), still.line)
        line_at = text._replace(clock_s=still.since_s)
        match = match_of(signature, values, line_at, shown, None, self._signatures)
        match.at_ns = position.at_ns
        if still.match is None:
            still.match = match
            return [match]
        still.match.title = match.title  # without effect once a failure was made of it
        return []

    def as_failed_start(self, found: Sequence[Failure], source: str) -> list[Failure]:
        """Make failed requests a failed start where nothing asked the program: it began in this log, and no line shows that
        it serves. Call it at the end of the log.
        """
        state = self._sources.get(source)
        if state is None or not state.is_starting(state.last_line):
            return list(found)
        return [replace(f, severity="startup") if f.severity == "request" else f for f in found]

    def warnings(self) -> list[Candidate]:
        """Warnings of failures, for a log in which nothing else was found."""
        return [word for word in self._warnings.values() if word is not None]

    def take_loud(self) -> list[Candidate]:
        lines, self.loud = self.loud, []
        return lines

    def error_of_excerpt(self, lines: Sequence[str], source: str) -> list[Candidate]:
        """The last line that has a word of an error, as a list. [] for none, and where a rule knows any line: what it knows
        was left out for a reason.
        """
        found: list[Candidate] = []
        for n, raw in enumerate(lines, 1):
            line = strip_prefixes(expand(raw)[-1])
            text = line.text.strip()
            known = self._signatures.ignored(text) or self._signatures.is_harmless(text) or self._signatures.scan(text)
            if known or 'File "' in text or ANSWER.search(raw):
                return []
            if may_say_error(line):
                found = [Candidate(source, n, text[:EVIDENCE_CHARS], line.writer, 0, loud=True)]
        return found

    def _quotes_a_traceback(self, line: str) -> bool:
        return self._signatures.ignored(strip_prefixes(line).text.partition(HEADER)[0][:_LONGEST_LINE])

    def _follow_phase(self, match: Match, state: _Source) -> None:
        if match.role == "start":
            state.starting, state.served = match.signature.starting, not match.signature.starting
            state.stills = StandstillWatch()
            if not self._live:
                self.last_words.forget(str(match.evidence.source))
        elif match.role == "ready":
            state.starting, state.served = False, True
        elif match.role == "stop":
            state.stopped_line = match.line

    def _crashed(self, match: Match, line_no: int, state: _Source) -> None:
        """Expect the stack of a death without a traceback. The stack belongs to the first line that names the death."""
        stack = NativeStack()
        if state.crash is not None and line_no <= state.attend_until:
            if state.crash[0].role == "cause" or match.role == "echo":
                match = state.crash[0]
            stack = state.crash[1]
        state.crash = (match, stack)
        state.attend_until = max(state.attend_until, line_no + _STACK_FOLLOWS)

    def _in_stack(self, text: str, line_no: int, state: _Source) -> bool:
        """True for a line of the stack that a crashing process prints. Its match gets the frames."""
        assert state.crash is not None
        match, stack = state.crash
        if not stack.feed(strip_prefixes(text).text, line_no):
            if line_no > state.attend_until:
                state.crash = None
            return False
        put_stack(match, stack.outermost_first(), stack.guilty_frame(self._signatures.skip))
        match.loading = not self._live and not state.served and is_of_start(stack.frames)
        state.attend_until = max(state.attend_until, line_no + _STACK_FOLLOWS)
        return True

    def close(self, *, died: bool = False) -> list[Match]:
        """End all logs and give their last matches. A traceback without its last line is still one. `died`: the process
        is gone, or nothing is known of it. Then an unlogged traceback at the very end killed it.
        """
        found: list[Match] = []
        for source, state in self._sources.items():
            for process, writer in state.writers.items():
                if writer.trace is not None and not writer.trace.frames and writer.word is not None:
                    writer.word.loud = True  # no frame of the traceback that it introduced could be read
                if writer.trace is not None and writer.trace.frames:
                    last = writer.trace.frames[-1]
                    line = LogLine(f"(the log ends inside this traceback) {last}", process)
                    position = _Position(source, state, last.line_no, None)
                    phase = self._match(UNKNOWN, None, line, position, writer.trace)
                    phase.role = "hint"  # it only tells the phase of what raised it
                    found += [phase, *self._ended(writer, line, position)]
            state.writers.clear()
            state.open = 0
            if state.answers:
                state.settle_doubts()
            if died and state.record_line < state.warned_line:
                # Nothing was logged after the traceback, so that it ended the process. The warning before it is unrelated.
                for match in state.warned:
                    match.warned = False
            if died and state.ended_in_traceback():
                assert state.ending is not None
                if not state.served and not self._live:
                    state.ending[1].starting = True
                found.append(state.ending[1])
            elif died and not self._live and (end := self._unexplained_end(source, state)) is not None:
                found.append(end)
            for repeat in state.repeats.values():
                if repeat.left_out and _is_counted(repeat.last):
                    found.append(replace(repeat.last, repeats=repeat.left_out - 1))
            state.repeats.clear()  # after a restart in the same log, no line repeats one of the old process
        return found

    def _unexplained_end(self, source: str, state: _Source) -> Match | None:
        word = self.last_words.at_end(source, state.last_line, starting=state.starting, served=state.served)
        if word is None or state.last_line - state.stopped_line <= _ENDED_IN_ORDER:
            return None
        line = LogLine(word.text, word.process)
        match = self._match(UNEXPLAINED_END, None, line, _Position(source, state, word.line, word.at_ns), None)
        if not state.served:
            match.severity = "startup"
        match.title = f"{match.title}: {normalise(word.text)[:TITLE_CHARS]}"
        return match

    def _line(self, text: str, position: _Position) -> list[Match]:
        state, line = position.state, strip_prefixes(text)
        process = line.writer or (state.carry if not line.level else "")
        if line.writer:
            state.carry = ""
        line = line._replace(writer=process)
        if line.level:
            state.record_line = position.line_no
        writer = self._writer(state, process)
        if writer.trace is None and HEADER not in line.text:
            if not _may_be_cut(line.text, position.line_no, state) or FRAME.match(without_margin(line.text)) is None:
                return self._plain(writer, line, position)
            begun = self._open(writer, line, state)
            begun.logged = begun.loud = True  # nothing says that it ended its process
        state.headed = True
        body = without_margin(line.text)
        if HEADER in body:
            found = self._begin(writer, line, body, position)
            if writer.trace is not None:
                previous = strip_prefixes(expand(position.before)[-1])
                level = line.level or previous.level
                writer.trace.logged |= bool(line.level) or level in _LOG_LEVELS
                writer.trace.warned |= level == _WARNS
                # A logger that marks its process marks its traceback with its level, too. Python marks nothing when it ends;
                # vLLM 0.22 puts the process before all of its output.
                writer.trace.may_be_uncaught |= bool(previous.writer and previous.level) and not line.level
                writer.trace.loud |= level in ERROR_LEVELS or (not level and says_error(position.before))
            return found
        trace = writer.trace
        if trace is None or (line.level and line.level != trace.level):  # another logger between the lines
            return self._plain(writer, line, position)
        if trace.feed(body, position.line_no):
            return []
        return self._ended(writer, line._replace(text=body), position)

    def _writer(self, state: _Source, process: str) -> _Writer:
        writer = state.writers.get(process)
        if writer is None:
            writer = state.writers[process] = _Writer()
            if len(state.writers) > _MOST_WRITERS:
                _, gone = state.writers.popitem(last=False)
                state.open -= gone.trace is not None
        else:
            state.writers.move_to_end(process)
        return writer

    def _begin(self, writer: _Writer, line: LogLine, body: str, position: _Position) -> list[Match]:
        """Open a traceback. Text before it in the same line (SGLang, old vLLM) introduces it."""
        line_no, state = position.line_no, position.state
        found: list[Match] = []
        before = body[: body.index(HEADER)]
        if before.strip():
            found = self._plain(writer, line._replace(text=before, file=""), position)
        if len(state.warned) > _MOST_WRITERS:
            state.warned.clear()
        introduced = bool(writer.intro) and line_no - writer.intro_line <= _INTRO
        trace = self._open(writer, line, state)
        trace.logged |= introduced
        if writer.word is not None and line_no - writer.word.line <= _INTRO:
            writer.word.loud = False  # it introduces this traceback
        if introduced:
            for match in writer.intro:
                match.chain = trace.chain
            if any(match.reported for match in writer.intro):
                state.told_chains.append(trace.chain)
        writer.intro = []
        if line.writer:
            state.carry = line.writer
        # With frames, a line seemed to go on with the traceback before; right before this one, it introduces it.
        near = [m for m in writer.causes if line_no - m.line <= (1 if m.frames else _INTRO)]
        for match in near:
            match.chain = match.chain or trace.chain
        writer.causes, trace.introduced_by = [], near
        trace.named |= any(not m.signature.quiet for m in near)
        return found

    def _open(self, writer: _Writer, line: LogLine, state: _Source) -> Trace:
        """Open a traceback of its own, or the next one of a chain."""
        state.open += writer.trace is None
        if writer.last is not None and writer.chained:
            writer.trace = writer.last.chained(line.level)
        else:
            self._chain += 1
            writer.trace = Trace(self._chain, line.level)
        writer.chained = False
        return writer.trace

    def _ended(self, writer: _Writer, line: LogLine, position: _Position) -> list[Match]:
        """Close a traceback at its exception line. The line is matched, then the frames; else it is an unknown
        exception.
        """
        line_no, state, trace = position.line_no, position.state, writer.trace
        assert trace is not None
        if trace.exception == "AssertionError" and not trace.message and trace.frames:
            frame = trace.frames[-1]  # an assertion without a message is known by its code
            trace.message = frame.code
            line = line._replace(text=f"{line.text} <- {frame} | {frame.code}")
        trace.blame(self._signatures.skip, self._signatures.engine)
        writer.trace, writer.last, writer.last_line = None, trace, line_no
        state.open -= 1
        state.attend_until = line_no + _ATTEND
        if trace.ends_its_program:  # a record above it is another one: a logger shows no frame above its own
            trace.logged = trace.warned = False
        unlogged = not trace.logged or (trace.warned and trace.may_be_uncaught)  # `close` decides
        if (
            trace.exception
            and unlogged
            and trace.exception not in _ENDINGS
            and (trace.ends_its_process or not state.served)
        ):
            state.ending = (trace, self._match(UNCAUGHT, None, line, position, trace))
        for match in trace.introduced_by:
            match.evidence = replace(match.evidence, text=f"{match.evidence.text} <- {line.text}"[:EVIDENCE_CHARS])
        found = self._scan(line, position, trace)
        found += self._in_frames(trace, line, position)
        if any(m.role in ("cause", "echo") for m in found):
            trace.named = True
        elif trace.exception and not trace.named:
            harmless = trace.exception in _ENDINGS or self._signatures.is_harmless(line.text)
            unknown = self._unknown(line, position, trace, harmless=harmless)
            found.append(unknown)
            if state.ending is not None and state.ending[0] is trace:
                state.printed = unknown
            if not harmless and not trace.warned:
                text = LogLine(line.text, line.writer)  # neither its level nor its place make it loud
                word = self.last_words.feed(text, position.source, line_no, position.at_ns)
                if word is not None:
                    word.loud, word.traced = False, True
        return found

    def _unknown(self, line: LogLine, position: _Position, trace: Trace, *, harmless: bool) -> Match:
        place = None if harmless else self._signatures.place(line.text, [frame.text for frame in trace.frames])
        signature = UNKNOWN
        if place is not None:
            signature = replace(place, title=f"{place.title}: {UNKNOWN.title}", role="cause", severity=UNKNOWN.severity)
        match = self._match(signature, None, line, position, trace)
        if trace.frames and (frame := trace.frames[-1]).code and _NAMELESS.match(trace.message):
            text = f"{match.evidence.text} <- {frame.where}: {frame.code}"
            match.evidence = replace(match.evidence, text=text[:EVIDENCE_CHARS])
        # A program that serves printed it, and went on.
        printed = not trace.logged and position.state.served and not trace.ends_its_process
        printed = printed and trace.exception not in PASSING_ON
        match.unknown, match.harmless, match.loud = True, harmless, (trace.loud or printed) and not harmless
        return match

    def _plain(self, writer: _Writer, line: LogLine, position: _Position) -> list[Match]:
        """Match a line outside tracebacks. Right after one it may still be the exception's message."""
        line_no, state = position.line_no, position.state
        for match in writer.causes:
            if match.signature.text_below and line_no == match.line + 1 and (match.evidence.text or "").endswith(":"):
                match.evidence = replace(match.evidence, text=f"{match.evidence.text} {line.text}"[:EVIDENCE_CHARS])
                match.title = f"{match.title.rstrip(':')}: {normalise(line.text)[:TITLE_CHARS]}"
        if writer.last is not None and (line.level != writer.last.level or line_no - writer.last_line > _ATTEND):
            writer.last = None  # another record begins
        trace = writer.last
        if trace is not None and begins_chained_traceback(line.text):
            writer.chained = True
            writer.last_line = line_no
            return []
        found = self._scan(line, position, trace)
        if not found:
            self._listen(writer, line, position)
        if line.level and not line.writer:
            state.carry = ""
        writer.causes = [m for m in found if m.role == "cause"]
        if any(m.signature.text_below for m in writer.causes):
            state.attend_until = max(state.attend_until, line_no + 1)
        introducing = [m for m in found if m.role == "echo"]
        if introducing:
            writer.intro, writer.intro_line = introducing, line_no
            state.attend_until = max(state.attend_until, line_no + _INTRO)
        return found

    def _listen(self, writer: _Writer, line: LogLine, position: _Position) -> None:
        if not self._live and may_warn(position.raw):
            self._warn(line, position)
        if line.level in QUIET_LEVELS or (line.level not in ERROR_LEVELS and not is_suspicious(line.text)):
            return
        if _DEBUG_RECORD.search(position.raw) is not None:
            return
        judged = self._judge_line(line)
        if judged is None:
            return
        ranked = judged.rank, judged.loud
        word = self.last_words.keep(line, position.source, position.line_no, position.at_ns, ranked)
        if word.loud:
            word.loud = writer.last is None  # else it continues the message of an exception
            word.place = judged.place
            self._weigh(word, judged.severity, position)
            writer.word = word
            self.loud.append(word)

    def _warn(self, line: LogLine, position: _Position) -> None:
        """Count a warning of a failure. Lines of one kind are judged once."""
        if not position.state.may_serve and position.line_no <= _HEAD_LINES:
            return  # a start warns of what it does without
        kind = without_numbers(line.text)
        if kind not in self._warnings:
            if len(self._warnings) >= _MOST_JUDGED:
                self._warnings = {k: w for k, w in self._warnings.items() if w is not None}
            fails = warns_of_failure(position.raw, line.text) and not self._signatures.ignored(line.text)
            counted = fails and len(self._warnings) < _MOST_JUDGED
            self._warnings[kind] = self._warning(line, position) if counted else None
        elif (first := self._warnings[kind]) is not None:
            first.repeats += 1

    def _warning(self, line: LogLine, position: _Position) -> Candidate:
        text = line.text.strip()[:EVIDENCE_CHARS]
        word = Candidate(position.source, position.line_no, text, line.writer, 0, position.at_ns, loud=True)
        word.clock_s, word.severity, word.warned = line.clock_s, severity_of_warning(line.text), True
        word.place = self._signatures.place(line.text)
        return word

    def _weigh(self, word: Candidate, severity: Severity, position: _Position) -> None:
        """Give an error the severity that its words have, unless the program is known to go on."""
        state = position.state
        if self._live or (severity == "startup" and (state.served or position.line_no > _HEAD_LINES)):
            return
        if severity in ("engine_death", "hang"):
            if len(state.ends) >= _REPEATS:
                return
            state.ends.append(word)  # an answer takes it back
        word.severity = severity

    def _judge_line(self, line: LogLine) -> _ErrorLine | None:
        """Judge a line that no signature knows; None if it says no error. Lines of one kind are judged once."""
        key = (without_numbers(line.text), line.level, line.file)
        if key in self._judged:
            return self._judged[key]
        judged, (rank, loud) = None, rank_of(line)
        if rank and not (self._signatures.ignored(line.text) or self._signatures.is_harmless(line.text)):
            frame = f'File "{line.file}", line 0, in {line.file}'
            place = self._signatures.place(line.text, [frame]) if loud else None
            judged = _ErrorLine(rank, loud, place, severity_in_words(line.text) if loud else "request")
        if len(self._judged) >= _MOST_JUDGED:
            self._judged.clear()
        self._judged[key] = judged
        return judged

    def _scan(self, line: LogLine, position: _Position, trace: Trace | None) -> list[Match]:
        state = position.state
        hits = self._signatures.scan(line.text)
        if hits and self._signatures.ignored(line.text):  # command lines contain any text, but begin a life
            hits = [(s, hit) for s, hit in hits if s.role == "start"]
        found = []
        if any(s.role == "loading" and (s.starting or not state.served) for s, _ in hits):
            state.starting, state.served = True, False
        for signature, hit in hits:
            if signature.role == "loading":
                continue
            if signature.loud and is_quiet(line):
                continue
            if signature.before and not any(p.search(position.text_before) for p in signature.before):
                continue
            if signature.role == "fact":
                state.facts.update({k: v for k, v in hit.groupdict().items() if v is not None})
                continue
            if signature.role == "start":
                state.repeats.clear()  # a new life may die of the same cause
            found.append(self._match(signature, hit, line, position, trace))
        return found

    def _in_frames(self, trace: Trace, line: LogLine, position: _Position) -> list[Match]:
        found = []
        for frame in trace.frames:
            for signature, hit in self._signatures.scan(frame.text, where="traceback"):
                shown = line._replace(text=f"{line.text} <- {frame} | {frame.code}")
                found.append(self._match(signature, hit, shown, replace(position, line_no=frame.line_no), trace))
        return found

    def _match(
        self,
        signature: Signature,
        hit: re.Match[str] | None,
        line: LogLine,
        position: _Position,
        trace: Trace | None,
    ) -> Match:
        hits = [hit, *(p.search(position.text_before) for p in signature.before)]
        shown = line.text
        if signature.role == "echo" and REFUSED.search(position.before):
            shown = f"{position.text_before} <- {shown}"  # the request that it answered so
        groups = {k: v for found in hits if found is not None for k, v in found.groupdict().items() if v is not None}
        with_facts = signature.derive or signature.role == "cause"
        position.state.engine = engine_of(signature, trace) or position.state.engine
        match = match_of(
            signature,
            {**position.state.facts, **groups} if with_facts else groups,
            line,
            evidence(position.source, shown[:EVIDENCE_CHARS].rstrip(), position.line_no),
            trace,
            self._signatures,
        )
        if not signature.id.startswith(position.state.engine.lower()):
            match.remedy = for_engine(match.remedy, position.state.engine)
        match.at_ns, match.transport_s = position.at_ns, position.transport_s
        if trace is not None and trace.warned and trace.may_be_uncaught:
            position.state.warned.append(match)
            position.state.warned_line = position.line_no
        match.warned = trace.warned if trace is not None else line.level == _WARNS and match.severity == "startup"
        match.logged = not self._live and (trace.logged if trace is not None else line.level in ERROR_LEVELS)
        match.logged |= signature.doubtful and not self._live
        match.starting = not self._live and position.state.is_starting(position.line_no)
        if trace is not None and not self._live and not position.state.served:
            match.loading = is_of_start(trace.frames)
        return match

    def _is_reported(self, match: Match, state: _Source) -> bool:
        """False from the ninth equal match in a short time on. The next reported one counts those left out."""
        key = (match.id, match.title, match.process or "")
        now = match.at_ns / 1e9 if match.at_ns is not None else match.when_s
        now = now if now is not None else match.line * _REPEAT_S / _REPEAT_LINES
        repeat = state.repeats.setdefault(key, _Repeats(now, match))
        state.repeats.move_to_end(key)
        if len(state.repeats) > _MOST_REPEATS_KEPT:
            state.repeats.popitem(last=False)
        if not 0 <= now - repeat.since <= _REPEAT_S:
            repeat.since, repeat.reported = now, 0
        repeat.reported += 1
        # Where its echo was given, the cause is, too: their windows begin apart, and an echo alone would be a failure.
        if repeat.reported > _REPEATS and not (match.role == "cause" and match.chain in state.told_chains):
            repeat.left_out += 1
            return False
        match.repeats += repeat.left_out
        repeat.left_out, repeat.last, match.reported = 0, match, True
        return True


def _name_of_record(word: Candidate, found: Sequence[Match]) -> None:
    """Show an error with the first cause in another line of the same record: one failure is one finding."""
    cause = next((m for m in found if m.role == "cause"), None)
    if cause is not None:
        word.loud = False
        cause.evidence = replace(cause.evidence, text=f"{word.text} <- {cause.evidence.text}"[:EVIDENCE_CHARS])


def _ends(text: str) -> str:
    """The begin and the end of a text that is too long to be read."""
    half = _LONGEST_LINE // 2
    return text if len(text) <= _LONGEST_LINE else f"{text[:half]} {text[-half:]}"


def _may_be_cut(line: str, line_no: int, state: _Source) -> bool:
    """True for a line of the head of a log that may be of a traceback whose begin is missing."""
    return line_no <= _HEAD_LINES and not state.headed and 'File "' in line


def _is_counted(match: Match) -> bool:
    """True for a failure of requests, whose number says how many there were."""
    if match.role != "cause":
        return False
    return match.values.get("exception") not in PASSING_ON if match.unknown else match.severity not in DEADLY


def classify_text(text: str, *, source: str = "") -> list[Failure]:
    """Failures of a whole log or an HTTP body by root cause. Echoes only where no cause was found. A body (one line, or
    JSON, or a page) also gets client errors such as a prompt over the context; in a log those are left out unless the
    server made a 500 of them.
    """
    classifier = Classifier()
    matches: list[Match] = []
    lines = text.splitlines()
    is_page = PAGE.match(text) is not None or _is_one_json(text)
    if is_page:
        lines = [" ".join(line.strip() for line in lines)]
    is_body = len(lines) <= 1
    for n, line in enumerate(lines, 1):
        matches += classifier.feed(line, line_no=n, source=source)
    matches += classifier.close(died=not is_body)
    leftover: list[Match] = []
    found = [with_candidates(f, classifier.last_words) for f in group(matches, quiet=not is_body, leftover=leftover)]
    if is_body:
        answered = is_page or text.lstrip().startswith(("{", "data:"))  # who answers has not ended
        return [replace(f, severity="request") if answered and _is_words(f) else f for f in found]
    errors = UnexplainedErrors()
    errors.add_exceptions(leftover)
    errors.add_lines(classifier.take_loud())
    return classifier.as_failed_start(found + errors.beside(found), source)


def _is_words(failure: Failure) -> bool:
    return failure.role == "cause" and failure.severity == "engine_death"


def with_candidates(failure: Failure, words: LastWords) -> Failure:
    if failure.role != "echo" or failure.severity not in DEADLY_OR_HUNG:
        return failure
    return replace(failure, candidates=tuple(words.around(failure.evidence)))


def _is_one_json(text: str) -> bool:
    """True for one JSON object (an error body), false for a log of records."""
    return len(text) <= _LONGEST_BODY and text.lstrip()[:1] == "{" and json_value(text) is not None
