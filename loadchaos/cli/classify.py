"""`loadchaos classify` and `signatures`: known failures in server logs."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import TYPE_CHECKING

import click

from loadchaos.cli.common import echo, json_option, print_json, print_result, say, text_width
from loadchaos.core.errors import OptionError, did_you_mean
from loadchaos.core.typed_json import from_json, to_json

if TYPE_CHECKING:
    from loadchaos.analysis.classify.diagnosis import Diagnosis, LogFailure
    from loadchaos.analysis.classify.signature_file import Signature, Signatures
    from loadchaos.analysis.failure import Failure
    from loadchaos.core.whole_lines import WholeLine

_KEYS = (
    "id",
    "severity",
    "title",
    "role",
    "evidence",
    "process",
    "at",
    "frames",
    "known",
    "remedy",
    "alt",
    "candidates",
)
"""Keys of a failure in JSON. Scripts rely on them: never remove one, and note a new one in the changelog."""
_BODY_CHARS = 1 << 20
_BODY_STARTS = ("{", "data:", "event:")


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@json_option("Print the failures as JSON. With several files, each failure has its `file`.")
def classify(files: tuple[str, ...], as_json: bool) -> None:
    """Find known failures in server logs and print their causes and remedies.

    FILE is a log, plain or compressed, or the body of one error response. Without FILE, or for `-`, stdin is read. Ctrl-C
    ends the reading of a log that still grows: tail -F server.log | loadchaos classify

    Exit codes: 0 no failure found, 1 failures found, 2 a file cannot be read.
    """
    from loadchaos.cli.logfiles import UnreadableError

    failures: list[dict[str, object]] = []
    unreadable = False
    for path in files or ("-",):
        try:
            found = classify_file(path, as_json=as_json)
        except UnreadableError as e:
            say(f"loadchaos: {e}")
            unreadable = True
            continue
        data = [{key: f[key] for key in _KEYS} for f in map(to_json, found)]
        failures += [{"file": path, **f} for f in data] if len(files) > 1 else data
    if as_json:
        print_json(failures)
    sys.exit(2 if unreadable else 1 if failures else 0)


def classify_file(path: str, *, as_json: bool) -> list[LogFailure]:
    """Find the failures of one file. Without `as_json`, also print them."""
    from loadchaos.analysis.classify.diagnosis import Diagnosis, LogFailure
    from loadchaos.cli.logfiles import UnreadableError, lines
    from loadchaos.core.redact import Redactor
    from loadchaos.report.terminal.diagnosis import render

    diagnosis = Diagnosis(path)
    broken: UnreadableError | None = None
    try:
        found = _failures(diagnosis, _until_interrupted(lines(path)))
    except UnreadableError as e:
        if not diagnosis.lines:
            raise
        found, broken = diagnosis.finish(), e  # report what could be read, then the error
    redactor = Redactor()  # people send the result to the server's developers
    shown = (LogFailure.of(failure, diagnosis.landmarks) for failure in found)
    failures = [from_json(LogFailure, redactor.data(to_json(failure))) for failure in shown]
    if not as_json:
        marks, version = diagnosis.landmarks.lines, diagnosis.landmarks.version
        name = "stdin" if path == "-" else path
        echo(render(name, failures, lines=diagnosis.lines, version=version, marks=marks, width=text_width()))
    if broken is not None:
        raise broken
    return failures


def _until_interrupted(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines until Ctrl-C. Ctrl-C interrupts the wait for a line, never the work on one."""
    waiting, asked = True, False

    def end(_signal: int, _frame: object) -> None:
        nonlocal asked
        asked = True
        if waiting:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, end)
    try:
        for line in lines:
            waiting = False
            yield line
            if asked:
                return
            waiting = True
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGINT, before)


def _failures(diagnosis: Diagnosis, lines: Iterator[str]) -> list[Failure]:
    """Failures of a log, or of an error body: a single line, JSON, a stream or an HTML page."""
    from loadchaos.analysis.classify.classifier import PAGE, classify_text
    from loadchaos.analysis.classify.log_document import log_lines
    from loadchaos.analysis.classify.rejoin import rejoin
    from loadchaos.cli.logfiles import LONGEST_LINE
    from loadchaos.cli.unknown_error import unknown

    head: list[WholeLine] = []
    size = 0
    whole = rejoin(log_lines(lines, longest_line=LONGEST_LINE))
    for line in whole:
        head.append(line)
        size += len(line.text)
        body = head[0].text.startswith(_BODY_STARTS) or PAGE.match(head[0].text) is not None
        if size > _BODY_CHARS or (len(head) > 1 and not body):
            break
    else:
        if not head:
            return []
        for line in head:
            diagnosis.feed(line)
        text = "\n".join(line.text for line in head)
        found = [_at_its_line(f, head) for f in classify_text(text)] or list(filter(None, [unknown(text)]))
        return found or ([] if body else diagnosis.finish())
    for line in chain(head, whole):
        diagnosis.feed(line)
    return diagnosis.finish()


def _at_its_line(failure: Failure, lines: Sequence[WholeLine]) -> Failure:
    at = failure.evidence.line or 1
    return replace(failure, evidence=replace(failure.evidence, line=lines[min(at, len(lines)) - 1].line_no))


@click.command()
@click.argument("signature_id", required=False, metavar="[ID]")
@json_option()
def signatures(signature_id: str | None, as_json: bool) -> None:
    """List all known failures, one per line, or explain the one named ID.

    The explanation has the log lines that identify the failure, its cause and its remedy.
    """
    from loadchaos.analysis.classify.signature_file import load
    from loadchaos.report.terminal.diagnosis import explain

    loaded = load()
    found = list(loaded.all) if signature_id is None else [s for s in loaded.all if s.id == signature_id]
    if signature_id is not None and not found:
        hint = did_you_mean(signature_id, [s.id for s in loaded.all], "; `loadchaos signatures` lists all of them")
        raise OptionError(f"unknown signature {signature_id!r}{hint}")
    print_result(
        as_json,
        lambda: to_json([_described(s, loaded) for s in found]),
        lambda: "\n".join(_listed(found)) if signature_id is None else explain(found[0], loaded, text_width()),
    )


def _described(s: Signature, loaded: Signatures) -> dict[str, object]:
    """A signature in JSON, with the known issues of all its variants."""
    names = ("id", "title", "severity", "role", "speaker", "layer", "versions", "trigger", "why", "remedy")
    return {name: getattr(s, name) for name in names} | {
        "patterns": [p.pattern for p in s.patterns],
        "examples": s.examples,
        "refines": s.refines,
        "variants": [{"title": v.title, "frames": v.frames} for v in s.variants],
        "known": loaded.all_issues(s),
    }


def _listed(found: Sequence[Signature]) -> Iterator[str]:
    for speaker, of_speaker in groupby(found, lambda s: s.speaker):
        yield f"{speaker}:"
        for s in of_speaker:
            kind = s.severity if s.role == "cause" else f"{s.severity}, {s.role}"
            yield f"  {s.id:38} {kind:22} {_listed_title(s.title)}"


def _listed_title(title: str) -> str:
    return re.sub(r"\{(\w+)\}", r"<\1>", title.replace(" in {frame}", ""))
