"""Write docs/doctor.md from docs/measured/doctor-*.json, which `loadchaos doctor --prove --releases --json` prints:
`python -m docs.doctor`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from loadchaos.campaigns.prove.cells import Cell, score
from loadchaos.core.typed_json import from_json

FOLDER = Path(__file__).parent
_RUN_BEFORE = {"vllm": ("0.22.1", "0.32.0")}
"""Releases that were run before anything was predicted. Predictions of all others were committed before their cells ran,
but for the cells that are marked known."""
_NOTES = {
    "vllm": """
- 0.22.1 and 0.32.0 were predicted when most reproducers named single releases: four present bugs of 0.22.1 were left open.
  Since then a version between two that have a bug has it. The held-out releases were predicted so.
- top-k-under-speculation had another script at first. Its answers were random and seldom drafted; it failed on no release
  before 0.32.0. Doctor had predicted that it applies. The cells here are of the script that makes the answer repeat itself,
  by the same predictions: it was written when the results of the first one were known. With that one, precision of the
  held-out releases that had been run by then was 20 of 24.
- image-at-chunk-end on 0.25.1: vllm-project/vllm#38551 has more ways to the same failure, and is mended in 0.27.1. This
  way was mended in 0.24.0. It has an advisory of its own since.
- preempted-image on 0.29.0 was present in 1 of 1 on 2026-11-22: milliseconds decide which request is preempted.
- On 0.22.0 eight present bugs were left open: the oldest release that most advisories named was 0.22.1, and of an older one
  doctor says that nothing was read about it. Without 0.22.0 recall of the held-out releases is 92 % (61 of 66).
- 0.28.0 and 0.29.0 load Qwen3-VL on a CPU only with `--hf-overrides` (advisory vllm-qwen3-vl-on-a-cpu); their cells have it.
"""
}
_HEAD = """# Predictions of doctor, measured

`loadchaos doctor --prove --releases A..B` ([how to](how-to/doctor.md#prove-it)) runs [reproducers](README.md#reproducers)
on releases of a server, and writes down what doctor said before. This page is generated from its output,
`docs/measured/doctor-*.json`. A cell has what was seen, how often on fresh servers, and the prediction behind a colon.
**Bold**: the prediction was wrong, or it left open what is present.

- Precision: of the cells that were predicted to apply, those that are present.
- Recall: of the cells that are present, those that were predicted to apply. "May apply" and "unsettled" count as missed.
- Neither counts cells marked *known*: the reproducer had been run on this release before, so that doctor only repeats it.

A reproducer runs only where the launch command meets the conditions of its advisory. So this measures what doctor knows of
versions, not its conditions. All reproducers were found with loadchaos: it says little of the advisories that have none.
One server shows that a bug is present; three without the failure count as absent.
"""


def page() -> str:
    lines = [_HEAD]
    for file in sorted((FOLDER / "measured").glob("doctor-*.json")):
        engine = file.stem.removeprefix("doctor-")
        cells = [from_json(Cell, row) for row in json.loads(file.read_text("utf-8"))["rows"]]
        before = _RUN_BEFORE.get(engine)
        held = [] if before is None else [r for r in dict.fromkeys(c.release for c in cells) if r not in before]
        lines += [f"## {engine}", "", *_matrix(cells), "", *_scores(cells, held), ""]
        unknown = [c for c in cells if c.state == "unknown"]
        lines += [f"- {c.reproducer} on {c.release} is unknown: {c.why or 'it was stopped'}" for c in unknown]
        lines += [*_NOTES.get(engine, "").strip().splitlines(), ""]
    return "\n".join(lines).rstrip() + "\n"


def _matrix(cells: Sequence[Cell]) -> list[str]:
    releases = list(dict.fromkeys(c.release for c in cells))
    found = {(c.reproducer, c.release): c for c in cells}
    rows = [
        [f"[{name}](repros/{name}/README.md)", *(_cell(found.get((name, r))) for r in releases)]
        for name in dict.fromkeys(c.reproducer for c in cells)
    ]
    return _table(["reproducer", *releases], rows)


def _cell(cell: Cell | None) -> str:
    if cell is None or cell.state == "not run":
        return f"not run: {cell.predicted}" if cell is not None else "not run"
    text = f"{cell.state} {cell.reproduced} of {cell.tries}: {'*known*' if cell.proved else cell.predicted}"
    return f"**{text}**" if cell.differs else text


def _scores(cells: Sequence[Cell], held: Sequence[str]) -> list[str]:
    releases = list(dict.fromkeys(c.release for c in cells))
    groups = [(f"{r}{', held out' if r in held else ''}", [r]) for r in releases]
    groups += [("all held out", list(held))] if held else []
    rows = []
    for name, some in [*groups, ("all", releases)]:
        found = score(c for c in cells if c.release in some)
        rows.append([name, found.precision, found.recall, str(found.left_open), str(found.seen)])
    return _table(["release", "precision", "recall", "present, left open", "cells"], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    (FOLDER / "doctor.md").write_text(page())
