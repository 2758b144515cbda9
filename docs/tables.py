"""Write the tables of docs/*.md that follow from the code: `python -m docs.tables`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. `make docs` runs this.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from loadchaos.analysis.classify import signature_file
from loadchaos.analysis.state import limits as of_state
from loadchaos.chaos.toxics import TOXICS
from loadchaos.core import limits
from loadchaos.core.attack_names import ATTACK_KINDS
from loadchaos.core.expectation_names import NAMES
from loadchaos.core.latency_percentiles import FEWEST_ITL_ANSWERS, FEWEST_SAMPLES, all_names
from loadchaos.core.model import Facts
from loadchaos.core.redact import Redactor
from loadchaos.core.units import NS_PER_S as S
from loadchaos.core.units import describe_duration, figure
from loadchaos.load.endpoints import ENDPOINTS
from loadchaos.load.payloads import PAYLOADS
from loadchaos.load.registry import full_registry
from loadchaos.profile.correctness import CorrectnessOptions
from loadchaos.profile.profile import load
from loadchaos.profile.slo import Slo
from loadchaos.report.export.tables import EVENTS, METRICS, REQUESTS, Column
from loadchaos.report.export.vllm_bench import DETAILED, KEYS
from loadchaos.run import answer_baseline
from loadchaos.run.run_probes import PartSetup
from loadchaos.server.answer import Asker
from loadchaos.server.dialects import DIALECTS, UNKNOWN
from loadchaos.server.dialects.detect import probed_paths
from loadchaos.server.probes.ask import RecordedAsker
from loadchaos.server.probes.parts.base import ProbePart

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


LIMITS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "starts and ends": {
        "core.limits": (
            "READY_WITHIN_S",
            "BACK_WITHIN_S",
            "DEATH_SHOWS_S",
            "LAST_LINES_S",
            "SIGKILL_GRACE_OF_RUN_S",
            "SIGKILL_GRACE_INTERRUPTED_S",
            "SIGKILL_GRACE_OF_LAUNCH_COMMAND_S",
            "LEFTOVERS_GRACE_S",
        )
    },
    "load": {
        "core.limits": ("HEARTBEAT_S", "MOST_IMAGE_PIXELS"),
        "load.worker.dispatcher": ("STOP_GRACE_S", "SIGNAL_GRACE_S"),
        "load.wire.sse": ("MAX_EVENT_BYTES",),
        "load.wire.answer_reader": ("MAX_BODY_BYTES",),
        "load.wire.http1": ("MAX_DECODED_BYTES",),
        "load.cluster.master": ("LOST_AFTER_S",),
        "load.cluster.worker_link": ("MASTER_SILENCE_S",),
        "run.error_rate_watch": ("FEWEST_REQUESTS",),
    },
    "watching": {
        "server.monitor.health_probe": ("TCP_EVERY_S", "HEALTH_EVERY_S", "CALM_EVERY_S", "DOWN_EVERY_S"),
        "server.monitor.identity": ("IDENTITY_EVERY_S",),
        "core.limits": ("SCRAPE_EVERY_S", "MOST_ANSWER_BYTES"),
        "server.monitor.exposition": ("MOST_SERIES",),
        "server.monitor.processes": ("POLL_S",),
        "server.monitor.orchestrators": ("EVERY_S",),
        "server.monitor.device_exporters": ("DEVICE_SCRAPE_EVERY_S",),
    },
    "states": {
        "core.limits": ("OUTAGE_S", "SILENT_STREAMS"),
        "analysis.state.limits": (
            "TEXT_BESIDE_NS",
            "TEXT_ALONE_NS",
            "LAST_WORD_NS",
            "BALANCER_NS",
            "STREAMED_S",
            "GAPS",
            "FIRST_GAPS",
            "MOST_PREFILL_NS",
            "COUNTERS_FRESH_NS",
        ),
    },
    "verdict": {
        "core.limits": ("TOLD_STALL_S",),
        "core.latency_percentiles": ("FEWEST_STEADY_S",),
        "analysis.detectors.end_of_load": ("SILENT_NS",),
        "analysis.detectors.saturation": ("THROTTLED_S",),
        "analysis.detectors.memory_leak": ("SPAN_S",),
    },
    "record": {"campaigns.recorder.freeze": ("WINDOW_S", "FEWEST")},
}
"""Constants by what they limit and by module; each has its meaning in a docstring."""


def _limits() -> str:
    rows = [
        (about, _meaning(module, name), _value(module, name), f"`{name}` of {module.replace('.', '/')}.py")
        for about, modules in LIMITS.items()
        for module, names in modules.items()
        for name in names
    ]
    return _table(("of", "limit", "value", "in the code"), rows)


def _meaning(module: str, name: str) -> str:
    """Docstring of a constant.

    Raises ValueError where it has none.
    """
    source = inspect.getsource(importlib.import_module(f"loadchaos.{module}"))
    body = ast.parse(source).body
    for statement, doc in pairwise(body):
        if isinstance(statement, ast.Assign) and name in ast.unparse(statement.targets[0]).strip("()").split(", "):
            if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                return " ".join(str(doc.value.value).split())
            break
    raise ValueError(f"loadchaos.{module}.{name} has no docstring")


def _value(module: str, name: str) -> str:
    value = getattr(importlib.import_module(f"loadchaos.{module}"), name)
    if name.endswith("_BYTES"):
        return f"{value >> 20} MiB"
    if name.endswith("_NS"):
        return describe_duration(value / S)
    return describe_duration(value) if name.endswith("_S") else figure(value)


def _limits_of_states() -> str:
    """Limits of silence, each with what else is seen."""
    hung = f"max({_s(of_state.HUNG_AT_LATEST_NS)}, {of_state.GAPS} x the longest healthy gap of the run)"
    stall, fast = _s(of_state.HUNG_SILENT_STREAMS_NS), _s(of_state.HUNG_FAST_STREAMS_NS)
    streamed, long_streamed = describe_duration(of_state.STREAMED_S), describe_duration(of_state.FAST_S)
    gaps = f"{of_state.GAPS} x the longest gap since it has streamed for {streamed}, or {of_state.FIRST_GAPS:g} x"
    one_engine = f"{_s(of_state.COUNTERS_STUCK_NS)}, {_s(of_state.HUNG_AT_LATEST_NS)}"
    rows = [
        (_s(of_state.DEGRADED_NS), "requests are in flight", "`degraded`"),
        (_s(of_state.HUNG_STOPPED_NS), "a serving process is stopped", "`hung`"),
        (_s(of_state.HUNG_IDLE_ENGINE_NS), "the engine has work, and nothing behind the API server uses CPU", "`hung`"),
        (
            _s(of_state.HUNG_IDLE_API_NS),
            "it is not known whether the engine has work, and the API server is idle as well (it may wait for an image)",
            "`hung`",
        ),
        (_s(of_state.HUNG_SAYS_SO_NS), "`/health` says that the engine does not answer", "`hung`"),
        (
            f"{stall}, {gaps} the longest before",
            f"{limits.SILENT_STREAMS} or more streams are silent; neither engine nor metrics are seen, nor a good `/health`",
            "`hung`",
        ),
        (
            f"{fast} in place of these {stall}",
            f"the same, and it has streamed for {long_streamed} without a gap over {_s(of_state.FAST_GAP_NS)}",
            "`hung`",
        ),
        (hung, "otherwise: an engine that uses CPU, or whose server answers, may be compiling", "`hung`"),
        (one_engine, "one engine of several, seen by counters alone", "`degraded`, `hung`"),
    ]
    return _table(("no progress for", "and", "state"), rows)


def _s(ns: int) -> str:
    return describe_duration(ns / S)


def _pages_of_discovery() -> str:
    """Paths that identify a server, each with the servers that it tells apart or whose version it tells."""
    rows = []
    for path in probed_paths():
        signs = [d.title for d in DIALECTS.values() if path in {s.path for s in d.signs}]
        versions = [
            d.title
            for d in DIALECTS.values()
            if d != UNKNOWN and d.version_page is not None and d.version_page[0] == path
        ]
        rows.append((f"`{path}`", ", ".join(dict.fromkeys(signs)) or "any server", ", ".join(versions) or "none"))
    return _table(("GET", "sign of", "version of"), rows)


def _idle_parts(options: CorrectnessOptions, *, images: bool = True) -> list[ProbePart]:
    facts = Facts(base_url="", admin_url="", dialect="vllm", model="")
    asker = RecordedAsker(cast("Asker", None), "", "", lambda _: None, Redactor())  # nothing is asked
    return PartSetup(options, asker, random.Random(0), lambda: 0, images, facts).parts()


def _questions_of_parts() -> str:
    every: Mapping[str, Any] = {name: {} for name in CorrectnessOptions.model_fields}
    parts = _idle_parts(CorrectnessOptions.model_validate(every))
    names = {"reference": "any part (its name in the ledger: `reference`)"}
    return _table(("part", "questions"), [(names.get(p.part, f"`{p.part}`"), str(p.idle_questions)) for p in parts])


def _questions_of_profiles() -> str:
    rows = []
    for path in sorted((FOLDER.parent / "profiles").glob("*.yaml")):
        profile = load(path, full_registry())
        images = any("images" in traffic.payload for traffic in profile.traffic)
        asked = bool(profile.correctness.model_fields_set)
        judged = sum(p.idle_questions for p in _idle_parts(profile.correctness, images=images)) if asked else 0
        like_load = answer_baseline.most_questions(profile)
        if judged or like_load:
            rows.append((f"`{profile.name}`", str(judged), str(like_load)))
    return _table(("profile", "questions with judged answers", "requests like those of the load"), rows)


def _columns(columns: Sequence[Column[Any]]) -> str:
    return _table(("column", "type", "meaning"), [(f"`{c.name}`", c.type, c.meaning) for c in columns])


def _keys(columns: Sequence[Column[Any]]) -> str:
    return _table(("key", "value"), [(f"`{c.name}`", c.meaning) for c in columns])


TABLES: Mapping[str, Callable[[], str]] = {
    "attack kinds": _attack_kinds,
    "network faults": _network_faults,
    "failures without a line": _failures_without_a_line,
    "expectations": _expectations,
    "fewest samples": _fewest_samples,
    "limits of slo": _limits_of_slo,
    "endpoints": _endpoints,
    "limits": _limits,
    "limits of states": _limits_of_states,
    "pages of discovery": _pages_of_discovery,
    "questions of parts": _questions_of_parts,
    "questions of profiles": _questions_of_profiles,
    "columns of requests": lambda: _columns(REQUESTS),
    "columns of metrics": lambda: _columns(METRICS),
    "columns of events": lambda: _columns(EVENTS),
    "keys of a result": lambda: _keys(KEYS),
    "lists of a result": lambda: _keys(DETAILED),
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
