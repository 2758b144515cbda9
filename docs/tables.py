"""Write the tables of docs/*.md that follow from the code: `python -m docs.tables`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. `make docs` runs this.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from loadchaos.analysis.classify import signature_file
from loadchaos.chaos.toxics import TOXICS
from loadchaos.core.attack_names import ATTACK_KINDS
from loadchaos.core.expectation_names import NAMES
from loadchaos.core.latency_names import FEWEST_ITL_ANSWERS, FEWEST_SAMPLES, all_names
from loadchaos.load.endpoints import ENDPOINTS
from loadchaos.load.payloads import PAYLOADS
from loadchaos.profile.slo import Slo

FOLDER = Path(__file__).parent
_BLOCK = re.compile(r"(<!-- table: ([a-z ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _attack_kinds() -> str:
    rows = [(f"`{kind}`", spec.describe(), spec.needs) for kind, spec in ATTACK_KINDS.items()]
    return _table(("kind", "effect", "needs"), rows)


def _network_faults() -> str:
    rows = []
    for name, toxic in TOXICS.items():
        effect = (inspect.getdoc(toxic) or "").split("\n\n")[0].replace("\n", " ")
        rows.append((f"`{name}`", effect, ", ".join(f"`{a.name}` ({a.unit})" for a in toxic.attributes) or "none"))
    return _table(("fault", "effect", "parameters"), rows)


def _failures_without_a_line() -> str:
    """Signatures with `symptom = true`."""
    signatures = [s for s in signature_file.load().all if s.symptom]
    rows = [(f"`{s.id}`", s.severity, s.title, ", ".join(f"`{i}`" for i in s.refines)) for s in signatures]
    return _table(("id", "severity", "title", "refines"), rows)


def _expectations() -> str:
    rows = [(f"`{name}`", about) for name, (_, about) in NAMES.items()]
    statistics = " ".join(f"`{statistic}`" for statistic in dict.fromkeys(n.statistic for n in all_names()))
    latencies = (
        "`ttft` (first token), `ttfo` (first token that is not reasoning), `itl` (between chunks), `e2e`; "
        f"each with {statistics}; [samples](#percentiles)"
    )
    rows += [
        ("`ttft_p99` and similar", latencies),
        ("`outcomes.ok` and similar", "number of requests with this outcome"),
    ]
    return _table(("name", "meaning"), rows)


def _fewest_samples() -> str:
    rows = [(f"`{statistic}`", f"{fewest:,}") for statistic, fewest in FEWEST_SAMPLES.items()]
    return _table(("statistic", "samples"), [*rows, ("any of `itl`", f"also {FEWEST_ITL_ANSWERS} answers")])


def _limits_of_slo() -> str:
    rows = [(f"`{name}`", field.description or "") for name, field in Slo.model_fields.items()]
    return _table(("limit", "meaning"), rows)


def _endpoints() -> str:
    rows = []
    for name, endpoint in ENDPOINTS.items():
        options = sorted(option for option in endpoint.lacks if "." in option)
        lacking = ", ".join(f"`{option}`" for option in options) or "none"
        payloads = " ".join(f"`{payload}`" for payload in PAYLOADS if endpoint.carries(payload))
        rows.append((f"`{name}`", f"`{endpoint.path}`", payloads, lacking, "yes" if endpoint.streams else "no"))
    return _table(("endpoint", "path", "payloads", "options that it lacks", "streams"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "attack kinds": _attack_kinds,
    "network faults": _network_faults,
    "failures without a line": _failures_without_a_line,
    "expectations": _expectations,
    "fewest samples": _fewest_samples,
    "limits of slo": _limits_of_slo,
    "endpoints": _endpoints,
}


def current(text: str) -> str:
    """A page with its tables made anew."""
    return _BLOCK.sub(lambda block: block[1] + TABLES[block[2]]() + block[4], text)


def main() -> None:
    """Write every page whose tables have changed."""
    for page in sorted(FOLDER.rglob("*.md")):
        text = page.read_text()
        if (new := current(text)) != text:
            page.write_text(new)


if __name__ == "__main__":
    main()
