"""`loadchaos classify` and `loadchaos signatures`: what logs of servers we never touched say, and by which rules."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from loadchaos.core.errors import OptionError

if TYPE_CHECKING:
    from loadchaos.analysis.classify.diagnosis import Diagnosis
    from loadchaos.analysis.classify.signature_file import Signature
    from loadchaos.analysis.failure import Failure

_KEYS = ("id", "severity", "title", "role", "evidence", "process", "at", "frames", "known", "remedy", "alt")
"""What scripts are given of a failure: no key leaves, and none comes without a word in the changelog."""
_BODY_CHARS = 1 << 20
_BODY_BEGINS = ("{", "data:", "event:")


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--json", "as_json", is_flag=True, help="A list of failures; of several files, each with its `file`.")
def classify(files: tuple[str, ...], as_json: bool) -> None:
    """Say what a server's log tells: what died, of what, and what to do. FILE may be packed; `-` or none: stdin.

    Ctrl-C ends a log that still grows (`tail -F server.log | loadchaos classify`). Also takes one error body.
    Ends with 0: nothing found, 1: something found, 2: a file could not be read.
    """
    from loadchaos.cli.logfiles import UnreadableError

    told: list[dict[str, Any]] = []
    unreadable = False
    for path in files or ("-",):
        try:
            found = classify_one(path, as_json=as_json)
        except UnreadableError as e:
            click.echo(f"loadchaos: {e}", err=True)
            unreadable = True
            continue
        found = [{key: f[key] for key in _KEYS} for f in found]
        told += [{"file": path, **f} for f in found] if len(files) > 1 else found
    if as_json:
        import orjson

        click.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
    sys.exit(2 if unreadable else 1 if told else 0)


def classify_one(path: str, *, as_json: bool) -> list[dict[str, Any]]:
    """The failures of one file, with all that is known of each; printed in words where no JSON is wanted."""
    from loadchaos.analysis.classify.diagnosis import Diagnosis
    from loadchaos.cli.logfiles import UnreadableError, lines
    from loadchaos.core.redact import Redactor
    from loadchaos.report.terminal.diagnosis import render

    diagnosis = Diagnosis(path)
    broken: UnreadableError | None = None
    try:
        found = _fold(diagnosis, _until_interrupted(lines(path)))
    except UnreadableError as e:
        if not diagnosis.lines:
            raise
        found, broken = diagnosis.finish(), e  # what could be read counts, and the rest is said to be missing
    redactor = Redactor()  # the answer is made to be sent upstream
    told = [redactor.data(_told(failure, diagnosis)) for failure in found]
    if not as_json:
        marks, version = diagnosis.landmarks.lines, diagnosis.landmarks.version
        name = "stdin" if path == "-" else path
        click.echo(render(name, told, lines=diagnosis.lines, version=version, marks=marks, width=_width()))
    if broken is not None:
        raise broken
    return told


def _until_interrupted(lines: Iterator[str]) -> Iterator[str]:
    """Ctrl-C is the end of a log that goes on: it ends the waiting for a line, and never the work on one."""
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


def _fold(diagnosis: Diagnosis, lines: Iterator[str]) -> list[Failure]:
    """All failures; a text that is one error body (a line, one JSON, a page) is read as such."""
    from loadchaos.analysis.classify.classifier import PAGE, classify_text
    from loadchaos.analysis.classify.rejoin import joined

    head: list[tuple[int, str]] = []
    size = 0
    whole = joined(lines)
    for count, line in whole:
        head.append((count, line))
        size += len(line)
        body = head[0][1].startswith(_BODY_BEGINS) or PAGE.match(head[0][1]) is not None
        if size > _BODY_CHARS or (len(head) > 1 and not body):
            break
    else:
        for count, line in head:
            diagnosis.feed(line, count)
        text = "\n".join(line for _, line in head)
        return classify_text(text) or _answer_nobody_knows(text) if head else []
    for count, line in chain(head, whole):
        diagnosis.feed(line, count)
    return diagnosis.finish()


def _answer_nobody_knows(text: str) -> list[Failure]:
    from loadchaos.cli.unknown_error import unknown

    found = unknown(text)
    return [] if found is None else [found]


def _told(failure: Failure, diagnosis: Diagnosis) -> dict[str, Any]:
    from loadchaos.analysis.classify.prefixes import told
    from loadchaos.analysis.classify.versions import with_standing

    dialect, version, _ = diagnosis.landmarks.version or (None, None, 0)
    return {
        "id": failure.id,
        "severity": failure.severity,
        "title": failure.title,
        "role": failure.role,
        "evidence": {"line": failure.evidence["line"], "text": failure.evidence["text"]},
        "process": failure.process,
        "at": told(failure.clock_s) if failure.clock_s is not None else None,
        "frames": list(failure.frames),
        "known": with_standing(failure.known, dialect, version),
        "remedy": failure.remedy,
        "alt": list(failure.alt),
        "frame": failure.frame or None,
        "repeats": failure.repeats,
        "also": list(failure.also),
        "why": failure.why,
    }


def _width() -> int:
    import shutil

    return max(60, min(shutil.get_terminal_size((100, 24)).columns, 140))


@click.command()
@click.argument("signature_id", required=False, metavar="[ID]")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
def signatures(signature_id: str | None, as_json: bool) -> None:
    """List what loadchaos knows by name, a line each; with ID explain one: how it is told, why it happens, what helps."""
    from loadchaos.analysis.classify.signature_file import load

    loaded = load()
    if signature_id is None:
        _list([_explained(s, loaded.known) for s in loaded.all], as_json=as_json)
        return
    found = loaded.get(signature_id)
    if found is None:
        import difflib

        near = difflib.get_close_matches(signature_id, [s.id for s in loaded.all], 1)
        raise OptionError(
            f"no signature is called {signature_id!r}"
            + (f": did you mean {near[0]}?" if near else "; `loadchaos signatures` lists them")
        )
    if as_json:
        _list([_explained(found, loaded.known)], as_json=True)
    else:
        from loadchaos.report.terminal.diagnosis import explain

        click.echo(explain(_explained(found, loaded.known), _width()))


def _explained(s: Signature, known: Any) -> dict[str, Any]:
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


def _list(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        import orjson

        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
        return
    speaker = ""
    for s in found:
        if s["speaker"] != speaker:
            speaker = s["speaker"]
            click.echo(f"{speaker}:")
        kind = s["severity"] if s["role"] == "cause" else f"{s['severity']}, {s['role']}"
        click.echo(f"  {s['id']:38} {kind:22} {s['title']}")
