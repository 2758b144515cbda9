"""`loadchaos classify` and `signatures`: known failures in server logs."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.common import print_json, text_width
from loadchaos.core.errors import OptionError

if TYPE_CHECKING:
    from loadchaos.analysis.classify.diagnosis import Diagnosis
    from loadchaos.analysis.classify.signature_file import Signature
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
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the failures as JSON. With several files, each failure has its `file`.",
)
def classify(files: tuple[str, ...], as_json: bool) -> None:
    """Find known failures in server logs and print their causes and remedies.

    FILE is a log, plain or compressed, or the body of one error response. Without FILE, or for `-`, stdin is read. Ctrl-C
    ends the reading of a log that still grows: tail -F server.log | loadchaos classify

    Exit codes: 0 no failure found, 1 failures found, 2 a file cannot be read.
    """
    from loadchaos.cli.logfiles import UnreadableError

    failures: list[dict[str, Any]] = []
    unreadable = False
    for path in files or ("-",):
        try:
            found = classify_file(path, as_json=as_json)
        except UnreadableError as e:
            click.echo(f"loadchaos: {e}", err=True)
            unreadable = True
            continue
        found = [{key: f[key] for key in _KEYS} for f in found]
        failures += [{"file": path, **f} for f in found] if len(files) > 1 else found
    if as_json:
        print_json(failures)
    sys.exit(2 if unreadable else 1 if failures else 0)


def classify_file(path: str, *, as_json: bool) -> list[dict[str, Any]]:
    """Find the failures of one file. Without `as_json`, also print them."""
    from loadchaos.analysis.classify.diagnosis import Diagnosis
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
    failures = [redactor.data(_failure_data(failure, diagnosis)) for failure in found]
    if not as_json:
        marks, version = diagnosis.landmarks.lines, diagnosis.landmarks.version
        name = "stdin" if path == "-" else path
        click.echo(render(name, failures, lines=diagnosis.lines, version=version, marks=marks, width=text_width()))
    if broken is not None:
        raise broken
    return failures


def _until_interrupted(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines until Ctrl-C.

    Ctrl-C interrupts the wait for a line, never the work on one.
    """
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
    """Find the failures of a log or of the body of one error response.

    The text is an error body if it is a single line, JSON, a stream or an HTML page.
    """
    from loadchaos.analysis.classify.classifier import PAGE, classify_text
    from loadchaos.analysis.classify.rejoin import rejoin

    head: list[WholeLine] = []
    size = 0
    whole = rejoin(lines)
    for line in whole:
        head.append(line)
        size += len(line.text)
        body = head[0].text.startswith(_BODY_STARTS) or PAGE.match(head[0].text) is not None
        if size > _BODY_CHARS or (len(head) > 1 and not body):
            break
    else:
        for line in head:
            diagnosis.feed(line)
        text = "\n".join(line.text for line in head)
        return [_at_its_line(f, head) for f in classify_text(text)] or _unknown_error(text) if head else []
    for line in chain(head, whole):
        diagnosis.feed(line)
    return diagnosis.finish()


def _at_its_line(failure: Failure, lines: Sequence[WholeLine]) -> Failure:
    """Give a failure the number of its line in the file."""
    at = failure.evidence["line"]
    return replace(failure, evidence={**failure.evidence, "line": lines[min(at, len(lines)) - 1].line_no})


def _unknown_error(text: str) -> list[Failure]:
    from loadchaos.cli.unknown_error import unknown

    found = unknown(text)
    return [] if found is None else [found]


def _failure_data(failure: Failure, diagnosis: Diagnosis) -> dict[str, Any]:
    from loadchaos.analysis.classify.prefixes import format_clock
    from loadchaos.analysis.classify.versions import with_standing

    dialect, version, _ = diagnosis.landmarks.version or (None, None, 0)
    return {
        "id": failure.id,
        "severity": failure.severity,
        "title": failure.title,
        "role": failure.role,
        "evidence": {"line": failure.evidence["line"], "text": failure.evidence["text"]},
        "process": failure.process,
        "at": format_clock(failure.clock_s) if failure.clock_s is not None else None,
        "frames": list(failure.frames),
        "known": with_standing(failure.known, dialect, version),
        "remedy": failure.remedy,
        "alt": list(failure.alt),
        "candidates": [{k: c[k] for k in ("line", "process", "text")} for c in failure.candidates],
        "frame": failure.frame or None,
        "repeats": failure.repeats,
        "also": list(failure.also),
        "why": failure.why,
    }


@click.command()
@click.argument("signature_id", required=False, metavar="[ID]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def signatures(signature_id: str | None, as_json: bool) -> None:
    """List all known failures, one per line, or explain the one named ID.

    The explanation has the log lines that identify the failure, its cause and its remedy.
    """
    from loadchaos.analysis.classify.signature_file import load

    loaded = load()
    if signature_id is None:
        _print_signatures([_signature_data(s, loaded.known) for s in loaded.all], as_json=as_json)
        return
    found = loaded.get(signature_id)
    if found is None:
        import difflib

        near = difflib.get_close_matches(signature_id, [s.id for s in loaded.all], 1)
        raise OptionError(
            f"unknown signature {signature_id!r}"
            + (f"; did you mean {near[0]}?" if near else "; `loadchaos signatures` lists all of them")
        )
    if as_json:
        _print_signatures([_signature_data(found, loaded.known)], as_json=True)
    else:
        from loadchaos.report.terminal.diagnosis import explain

        click.echo(explain(_signature_data(found, loaded.known), text_width()))


def _signature_data(s: Signature, known: Any) -> dict[str, Any]:
    return {
        "id": s.id,
        "title": s.title,
        "severity": s.severity,
        "role": s.role,
        "speaker": s.file.removesuffix(".toml"),
        "layer": s.layer,
        "versions": s.versions,
        "trigger": s.trigger,
        "why": s.why,
        "remedy": s.remedy,
        "patterns": [p.pattern for p in s.patterns],
        "examples": list(s.examples),
        "refines": list(s.refines),
        "variants": [{"title": v.title, "frames": list(v.frames)} for v in s.variants],
        "known": [
            {"issue": issue, **known.get(issue, {})}
            for issue in dict.fromkeys((*s.known, *(k for v in s.variants for k in v.known)))
        ],
    }


def _print_signatures(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    speaker = ""
    for s in found:
        if s["speaker"] != speaker:
            speaker = s["speaker"]
            click.echo(f"{speaker}:")
        kind = s["severity"] if s["role"] == "cause" else f"{s['severity']}, {s['role']}"
        click.echo(f"  {s['id']:38} {kind:22} {_listed_title(s['title'])}")


def _listed_title(title: str) -> str:
    """Title without the frame and with other values in angle brackets."""
    return re.sub(r"\{(\w+)\}", r"<\1>", title.replace(" in {frame}", ""))
