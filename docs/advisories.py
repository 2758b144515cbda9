"""Write docs/advisories.md from loadchaos/analysis/advisories: `python -m docs.advisories`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadchaos.analysis.advisories.advisory import ENGINES, WORST_FIRST, Advisory, VersionEvidence, all_shipped, engine
from loadchaos.report.phrases import issue_path
from loadchaos.run.doctor_page import cure_texts, title_of
from loadchaos.server.dialects import DIALECTS

FILE = Path(__file__).parent / "advisories.md"
_NEWEST = 14
_HEAD = """# Advisories

Known bugs of servers, as [`loadchaos doctor`](how-to/doctor.md) compares them with a server. This page is generated from
`loadchaos/analysis/advisories/`, a file for each. `proved`: a reproducer was run. All else is `reported`: it was read in a
public report or in a summary of one, and not tried. {open} of the {all} advisories name no affected version and no fix, as
nothing that was read does: doctor counts them, and judges no version by them.

"""


def page() -> str:
    lines = []
    for name in ENGINES:
        found = sorted(all_shipped(name), key=lambda a: (WORST_FIRST.index(a.severity), a.id))
        if found:
            lines += [f"## {DIALECTS[name].title}", "", *_by_version(name, found), *_table(found)]
            lines += [line for one in found for line in _entry(one)]
    every = [a for name in ENGINES for a in all_shipped(name)]
    unknown = sum(not a.affected and a.first_good is None for a in every)
    return _HEAD.format(open=unknown, all=len(every)) + "\n".join(lines).rstrip() + "\n"


def _by_version(name: str, found: Sequence[Advisory]) -> list[str]:
    rows = []
    for release in engine(name).releases[: -_NEWEST - 1 : -1]:
        has = [f"[{a.id}](#{a.id})" for a in found if a.has(release)]
        rows.append(f"| {release} | {len(has)} | {', '.join(has)} |")
    return ["| release | bugs | advisories that certainly hold |", "|---|---|---|", *rows, ""] if rows else []


def _table(found: Sequence[Advisory]) -> list[str]:
    rows = [
        f"| [{a.id}](#{a.id}) | {a.severity} | {_text(title_of(a))} | {'proved' if a.proofs else 'reported'} | {a.fixed} |"
        for a in found
    ]
    return ["| advisory | severity | what happens | evidence | fixed |", "|---|---|---|---|---|", *rows, ""]


def _entry(one: Advisory) -> list[str]:
    conditions = "; ".join(f"`{name}` {_condition(test)}" for name, test in one.when.items())
    rows = [
        ("severity", one.severity + (f", failure `{one.failure}`" if one.failure else "")),
        ("when", one.trigger),
        ("conditions", conditions),
        ("traffic", ", ".join(one.traffic)),
        ("affected", "; ".join(map(_evidence, one.affected))),
        ("not affected", "; ".join(map(_evidence, one.unaffected))),
        ("seen", one.seen),
        ("fixed", one.fixed),
        ("cure", "; ".join(cure_texts(one))),
        ("source", ", ".join(map(_link, one.issues)) + (f", state {one.state}" if one.state else "")),
    ]
    return [f"### {one.id}", "", title_of(one), "", *(f"- {k}: {_text(v)}" for k, v in rows if v), ""]


def _condition(test: object) -> str:
    if isinstance(test, bool):
        return "is given or on" if test else "is not given or off"
    return f"is {' or '.join(map(str, test))}" if isinstance(test, tuple) else f"is {test}"


def _evidence(one: VersionEvidence) -> str:
    if one.proved is None:
        return f"`{one.versions}` (reported: {_link(one.reported)})"
    link = (
        f"[{one.proved.build}](repros/{one.proved.reproducer}/README.md)" if one.proved.reproducer else one.proved.build
    )
    return f"`{one.versions}` (proved: {link}, {one.proved.tries}, {one.proved.date})"


def _link(source: str) -> str:
    if path := issue_path(source):
        return f"[{source}](https://github.com/{path})"
    return f"<{source}>" if source.startswith("https://") else source


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("</", "&lt;/").replace("< ", "&lt; ")


if __name__ == "__main__":
    FILE.write_text(page())
