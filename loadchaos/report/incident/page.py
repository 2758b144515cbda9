"""Render incident.md, ready to paste into an upstream issue. Foreign text (from the server or its log) is escaped, or
in code spans and fences that it cannot leave.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadchaos.analysis.incidents.record import IncidentRecord, NearAttack, ReadingRecord, RunEnvironment
from loadchaos.analysis.verdict.model import WrongAnswerExample
from loadchaos.core.model import Facts
from loadchaos.core.typed_json import from_json
from loadchaos.report import phrases
from loadchaos.report.formatting import clean, duration, number, percent, plural

_STEP_END = re.compile(r"; |(?<=\.) (?=[A-Z-])")
"""End of one step of a remedy, which is a list of sentences or clauses."""
_MOST_FILES = 10
_MOST_REQUESTS = 200
_MOST_PROFILE = 150
_MOST_TIMES = 8
_MACHINE_UNKNOWN = (
    "- GPU and driver: not reported by this server (vLLM does in development mode); add the output of `nvidia-smi`"
)
_MOST_READINGS = 20
_NEAR_S = 10.0
_HAPPENED = {
    "death": "died", "hang": "stopped making progress", "unreachable": "became unreachable",
    "outage": "failed every request", "terminated": "was shut down cleanly", "restart": "was restarted",
}  # fmt: skip
_DISPLAY_OPTIONS = frozenset({"--no-live", "--exporter-port", "--out", "--quiet", "--ci", "--notify"})
_SEED = frozenset({"--seed"})
_OPTIONS_WITH_VALUE = frozenset({"--exporter-port", "--out", "--ci", "--notify", *_SEED})


@dataclass(frozen=True)
class IncidentView:
    """Text that the run folder adds to an incident. `log` has the decisive lines, or the text of evidence that is not
    from a log; `batch` what a dying engine dumped; `earlier` the folders of earlier incidents with the same id.
    """

    log: Sequence[str] = ()
    batch: Sequence[str] = ()
    profile: Sequence[str] = ()
    earlier: Sequence[str] = ()


def page(incident: IncidentRecord, view: IncidentView, requests: Sequence[Mapping[str, object]] = ()) -> str:
    """Render the page. `requests` says where the bodies of requests in flight are stored."""
    name = clean(incident.id, 80)
    environment = from_json(RunEnvironment, incident.environment)
    parts = [
        f"# {_plain(incident.title or name)}",
        _prose(incident, environment),
        "\n".join(_summary(incident, name)),
        *_section(*_evidence(incident, view)),
        *_section("Batch that crashed the engine", _fence(view.batch)),
        *_section("Wrong answers", _wrong_answers(incident)),
        *_section("Environment", _environment(environment)),
        *_section("Load", _sent(incident)),
        *_section("Timeline", _timeline(incident)),
        *_section("Server metrics before the failure", _figures(incident)),
        *_section("Attacks active at that time or shortly before", _attacks(incident)),
        *_section("Requests in flight", _in_flight(incident)),
        *_section("Request bodies", _bodies(requests)),
        *_section("Steps to reproduce", _replay(environment, view.profile)),
        *_section("Already observed", _tried(incident, view.earlier)),
        *_section("What to do", _next_steps(incident)),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "\n".join(lines)] if lines else []


def _evidence(incident: IncidentRecord, view: IncidentView) -> tuple[str, Sequence[str]]:
    """Heading and lines of the evidence, which is not always from a log. Wrong answers have a section of their own."""
    if incident.evidence.line is not None:
        return "Server log", _fence(view.log)
    return "Evidence", [] if incident.wrong_answers else _fence(view.log)


def _plain(text: object) -> str:
    """Escape foreign text inside a sentence: no Markdown or HTML markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|!~@])", r"\\\1", clean(text, 400))


def _span(text: object, limit: int = 400) -> str:
    """Format foreign text as a code span. Backticks become quotes, since only a backtick ends a span."""
    return "`" + clean(text, limit).replace("`", "'") + "`"


def _fence(lines: Sequence[str]) -> list[str]:
    """Put lines in a code fence longer than any run of backticks inside it."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    mark = "`" * max(3, longest + 1)
    return [mark + "text", *lines, mark] if lines else []


def _server(environment: RunEnvironment) -> str:
    facts = environment.facts or Facts("", "", "")
    return " ".join(clean(part, 60) for part in (facts.dialect, facts.version) if part)


def _prose(incident: IncidentRecord, environment: RunEnvironment) -> str:
    who = _server(environment) or "The server"
    happened = _HAPPENED.get(incident.kind)
    if happened is None:
        return ""
    flying, opened = incident.in_flight_at_death, incident.opened_at_s
    under = f" with {plural(flying, 'request')} in flight" if flying else ""
    when = f" {duration(opened)} after the load began" if opened is not None else ""
    reason = (incident.exit or {}).get("reason")
    rest = [f"Its process {clean(reason, 100)}."] if reason else []
    back = incident.recovered_after_s
    rest.append(f"It was healthy again after {duration(back)}." if back is not None else "It did not come back.")
    evidence = clean(incident.evidence.text or "", 200)
    return f"{_plain(who)} {happened}{under}{when}" + (f": {_span(evidence)}. " if evidence else ". ") + " ".join(rest)


def _summary(incident: IncidentRecord, name: str) -> list[str]:
    opened, noticed = incident.opened_at_s, incident.noticed_at_s
    replica = f" on replica {_span(incident.replica)}" if incident.replica else ""
    late = noticed - opened if noticed is not None and opened is not None else None
    rows = [
        f"- **failure**: {phrases.severity_text(incident)}, {_span(name)}{replica}",
        f"- **when**: {duration(opened)} after the load began" if opened is not None else "",
        f"- **noticed**: {duration(max(0.0, late))} later" if late else "",
        f"- **impact**: {_cost(incident)}" if _cost(incident) else "",
        f"- **cause**: {phrases.cause_text(incident)}",
    ]
    known = [phrases.known_text(k) for k in incident.known]
    rows += [f"- **known issue**: {k}" for k in known] or ["- **known issue**: none known to loadchaos"]
    rows += [f"- **unexplained log line**: {_span(phrases.evidence_text(c))}" for c in incident.candidates]
    rows += [f"- **observed**: {_span(s)}" for s in incident.signs[:10]]
    return [r for r in rows if r]


def _cost(incident: IncidentRecord) -> str:
    lost, flying = incident.lost_requests, incident.in_flight_at_death
    by_outcome = ", ".join(phrases.outcome_count_text(o, n) for o, n in incident.lost.items())
    parts = [
        f"{plural(lost, 'request')} lost ({by_outcome})" if lost else "",
        f"{number(flying)} in flight at that time" if flying else "",
    ]
    back = incident.recovered_after_s
    parts.append(f"healthy again after {duration(back)}" if back is not None else "")
    return "; ".join(p for p in parts if p)


def _wrong_answers(incident: IncidentRecord) -> list[str]:
    rows: list[str] = []
    for wrong in incident.wrong_answers:
        traffic = f" of {_span(wrong.traffic)}" if wrong.traffic else ""
        rows += [f"- {_span(wrong.subject)}{traffic}: {_plain(wrong.summary)}"]
        texts = (("prompt", wrong.prompt), ("expected", wrong.expected), ("got", wrong.got))
        rows += [f"  - {label}: {_span(text)}" for label, text in texts if text]
        if wrong.first_difference is not None:
            rows.append(f"  - first difference: character {number(wrong.first_difference)}{_differing(wrong)}")
        rows += [f"  - {_plain(k.replace('_', ' '))}: {_span(v)}" for k, v in wrong.facts.items()]
    return rows


def _differing(wrong: WrongAnswerExample) -> str:
    if wrong.difference is None:
        return ""
    expected, got = (_span(t) if t else "the end" for t in (wrong.difference.expected, wrong.difference.got))
    return f": expected {expected}, got {got}"


def _environment(environment: RunEnvironment) -> list[str]:
    facts, kind = environment.facts or Facts("", "", ""), environment.target.kind if environment.target else None
    server = _server(environment) or "unknown server"
    blocks, size, tokens = facts.kv_blocks, facts.kv_block_size, facts.capacity_tokens
    cache = f"{number(blocks)} blocks of {number(size)} tokens" if blocks and size else ""
    cache += (": " if cache else "") + f"{number(tokens)} tokens in total" if tokens else ""
    context = f", context {number(facts.max_model_len)} tokens" if facts.max_model_len else ""
    limit = f", prompts of at most {number(facts.input_limit)}" if facts.input_limit else ""
    settings = ", ".join(f"{k} {v}" for k, v in environment.settings.items())
    features = (
        ("images", facts.images),
        ("videos", facts.videos),
        ("speculative decoding", facts.speculative_decoding),
        ("development endpoints", facts.development_endpoints),
        ("metrics", facts.metrics),
    )
    ours = f"profile {_span(environment.profile)}, seed {_span(environment.seed)}"
    rows = [
        f"- server: {_plain(server)}, {phrases.TARGET.get(kind or '', _span(kind))}",
        f"- model: {_span(facts.model)}{context}{limit}" if facts.model else "",
        f"- command: {_span(shlex.join(environment.command))}" if environment.command else "",
        f"- flags (from its log): {_span(environment.flags, 2000)}" if environment.flags else "",
        f"- settings: {_span(settings)}" if settings else "",
        f"- KV cache: {cache}" if cache else "",
        *(f"- {_plain(k)}: {_span(v)}" for k, v in environment.system.items()),
        _MACHINE_UNKNOWN if kind != "embedded" and not environment.system else "",
        "- features: " + ", ".join(name for name, on in features if on) if environment.facts else "",
        f"- loadchaos {_span(environment.version)}, {ours}" if environment.version else "",
    ]
    return [r for r in rows if r]


def _sent(incident: IncidentRecord) -> list[str]:
    flying, before = incident.in_flight, incident.sent_before
    rows = []
    if before:
        mix = [f"{number(n.begun)} x {_span(t)} ({number(n.ok)} ok)" for t, n in before.items()]
        rows += [
            f"Sent before the failure: {', '.join(mix)}. In flight at that time: {plural(len(flying), 'request')}.",
            "",
        ]
    if not flying:
        return rows[:1]
    rows += ["In flight at that time:", ""]
    for traffic in dict.fromkeys(r.traffic for r in flying):
        group = [r for r in flying if r.traffic == traffic]
        tokens = [r.tokens for r in group if r.tokens is not None]
        images = sum(r.images for r in group)
        longest = f" to {number(max(tokens))}" if tokens and max(tokens) > min(tokens) else ""
        size = f", prompts of {number(min(tokens))}{longest} tokens" if tokens else ""
        files = list(dict.fromkeys(r.image_file for r in group if r.image_file))
        named = f" ({', '.join(_span(file) for file in files[:_MOST_FILES])})" if files else ""
        rows.append(
            f"- {number(len(group))} x {_span(traffic)}{size}"
            + (f", {plural(images, 'image')}{named}" if images else "")
        )
    return rows


def _timeline(incident: IncidentRecord) -> list[str]:
    return [f"- {_at(entry.at_s)} {_span(entry.text)}" for entry in incident.timeline]


def _figures(incident: IncidentRecord) -> list[str]:
    opened = incident.opened_at_s or 0.0
    rows = [
        "| time | engine | running | waiting | KV cache | tokens/s | preemptions |",
        "|---|---|---|---|---|---|---|",
    ]
    last: dict[str, ReadingRecord] = {}
    table = []
    for f in incident.figures:
        if f.is_of_engine:
            before, last[f.whose] = last.get(f.whose), f
            table.append(f"| {_at(f.at_s)} | {_plain(f.whose)} | " + " | ".join(_reading(f, before)) + " |")
    rows = [*rows, *table[-_MOST_READINGS:]] if table else []
    devices = {f.whose: f for f in incident.figures if not f.is_of_engine and f.at_s <= opened + _NEAR_S}
    return [*rows, *([""] if rows and devices else []), *(_device(f) for f in devices.values())]


def _reading(f: ReadingRecord, before: ReadingRecord | None) -> list[str]:
    total, last = f.generation_tokens_total, before.generation_tokens_total if before is not None else None
    speed = ""
    if before is not None and total is not None and last is not None and total >= last:
        speed = number(round((total - last) / max(f.at_s - before.at_s, 0.1)))
    kv = "" if f.kv_usage_ratio is None else percent(f.kv_usage_ratio)
    return [_count(f.requests_running), _count(f.requests_waiting), kv, speed, _count(f.preemptions_total)]


def _count(value: float | None) -> str:
    return "" if value is None else number(value)


def _device(f: ReadingRecord) -> str:
    gib = 2**30
    parts = []
    if (used := f.gpu_memory_used_bytes) is not None:
        free = f.gpu_memory_free_bytes
        whole = f" of {(used + free) / gib:.1f}" if free is not None else ""
        parts.append(f"{used / gib:.1f}{whole} GiB in use")
    parts += [f"{percent(f.gpu_utilisation_ratio)} busy"] if f.gpu_utilisation_ratio is not None else []
    parts += [f"{f.gpu_temperature_c:.0f} C"] if f.gpu_temperature_c is not None else []
    parts += [f"Xid {f.gpu_xid_last:.0f} last reported"] if f.gpu_xid_last else []
    if f.host_memory_available_bytes is not None:
        parts.append(f"{f.host_memory_available_bytes / gib:.1f} GiB of memory available")
    parts += [f"{f.disk_free_bytes / gib:.1f} GiB free"] if f.disk_free_bytes is not None else []
    return f"- {_plain(f.whose)}: {', '.join(parts) or 'no reading'}"


def _at(at_s: float | None) -> str:
    return "?" if at_s is None else f"{at_s:+.3f} s"


def _attacks(incident: IncidentRecord) -> list[str]:
    by_name: dict[str, list[NearAttack]] = {}
    for a in incident.attacks:
        by_name.setdefault(a.attack, []).append(a)
    rows = []
    for name, ran in by_name.items():
        effects = ", ".join(_span(e) for e in dict.fromkeys(e for a in ran for e in a.effects))
        before = [a.began_before_s for a in ran if a.began_before_s is not None]
        times = f" {number(len(ran))} times" if len(ran) > 1 else ""
        when = f", the last one {duration(min(before))} before the failure" if before else ""
        others = [duration(s) for s in sorted(before)[1:_MOST_TIMES]]
        when += f" (others: {', '.join(others)})" if others else ""
        anything = "anything" if effects == "`*`" else effects
        rows.append(f"- {_span(name)}{times}{when}" + (f"; it may cause {anything}" if effects else ""))
    return rows


def _in_flight(incident: IncidentRecord) -> list[str]:
    flying = incident.in_flight
    if not flying:
        return []
    rows = [f"<details><summary>{plural(len(flying), 'request')}</summary>", ""]
    rows += ["| id | step | traffic | prompt tokens | images | in flight for |", "|---|---|---|---|---|---|"]
    rows += [
        f"| {_span(r.id)} | {r.step} | {_span(r.traffic)} | {number(r.tokens)} "
        f"| {number(r.images)}{f' {_span(r.image_file)}' if r.image_file else ''} | {duration(r.age_s)} |"
        for r in flying[:_MOST_REQUESTS]
    ]
    if len(flying) > _MOST_REQUESTS:
        rows += ["", f"{number(len(flying) - _MOST_REQUESTS)} more are in incident.json."]
    return [*rows, "", "</details>"]


def _bodies(requests: Sequence[Mapping[str, object]]) -> list[str]:
    kept = [r for r in requests if r.get("body")]
    if not requests:
        return []
    flying = sum(1 for r in kept if r.get("in_flight"))
    rows = [f"- stored: {number(len(kept))} of {plural(len(requests), 'request')} ({number(flying)} in flight)"]
    rows[0] += ", with images; requests.jsonl names the file of each"
    if kept:
        send = f"curl -H 'Content-Type: application/json' --data-binary @../{kept[0]['body']} $SERVER{kept[0]['path']}"
        rows.append(f"- send the first one again, from this folder: {_span(send)}")
    left = Counter(str(r.get("why")) for r in requests if not r.get("body"))
    rows += [f"- not stored: {number(n)}, {_plain(why)}" for why, n in left.most_common(5)]
    return rows


def replay_command(run: RunEnvironment, *, other_prompts: bool = False) -> str:
    """Format the command that sends the requests of a run again, or with `other_prompts` such as no run has sent yet."""
    argv = _without_options(run.argv or ("loadchaos", "run", run.profile or "PROFILE"), _DISPLAY_OPTIONS)
    argv[0] = "loadchaos"  # however it was started: `python -m loadchaos` is the same program
    if other_prompts:
        argv = _without_options(argv, _SEED)
    if run.seed is not None and not any(a == "--seed" or a.startswith("--seed=") for a in argv):
        argv += ["--seed", str(run.seed + other_prompts)]
    return clean(shlex.join(argv), 2000)


def _without_options(argv: Sequence[str], dropped: frozenset[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for n, word in enumerate(argv):
        if word == "--":  # what follows is the command of a watch
            return [*kept, *argv[n:]]
        name = word.split("=", 1)[0]
        if not skip and name not in dropped:
            kept.append(word)
        skip = not skip and name in dropped & _OPTIONS_WITH_VALUE and "=" not in word
    return kept


def _replay(run: RunEnvironment, profile: Sequence[str]) -> list[str]:
    rows = _fence([replay_command(run)])
    if run.seed is not None:
        rows += ["", "The same profile and seed send the same requests in the same order."]
    if 0 < len(profile) <= _MOST_PROFILE:
        rows += ["", "<details><summary>resolved profile</summary>", "", *_fence(profile), "", "</details>"]
    return rows


def _tried(incident: IncidentRecord, earlier: Sequence[str]) -> list[str]:
    back = incident.recovered_after_s
    rows = [f"- it happened before in this run, after a restart of the same server ({', '.join(earlier)})"]
    rows = rows if earlier else []
    rows += [f"- it was healthy again after {duration(back)} without help"] if back is not None else []
    return [*rows, "- none of the remedies below was tried"] if incident.remedy else rows


def _next_steps(incident: IncidentRecord) -> list[str]:
    remedy = phrases.remedy_text(incident.remedy)
    rows = [f"- {_plain(part)}" for part in _STEP_END.split(remedy) if part.strip()] if remedy else []
    if not phrases.is_server_fault(incident):
        return rows or ["- Nothing to report upstream: an attack of loadchaos caused it."]
    report = "Add this page to the known issue above" if incident.known else "Open an issue upstream with this page"
    return [*rows, f"- {report}. Attach server.log.excerpt from the same folder: it has the log around the failure."]
