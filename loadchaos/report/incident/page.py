"""Render incident.md, ready to paste into an upstream issue.

Foreign text (from the server or its log) is escaped, or in code spans and fences that it cannot leave.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadchaos.report.formatting import clean, duration, number, percent, plural
from loadchaos.report.phrases import (
    TARGET,
    candidate_texts,
    cause_text,
    is_server_fault,
    known_text,
    outcome_count_text,
    remedy_text,
    severity_text,
)

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
_PARTS = (("prompt", "prompt"), ("expected", "expected"), ("got", "got"))
_NEAR_S = 10.0
_HAPPENED = {
    "death": "died", "hang": "stopped making progress", "unreachable": "became unreachable",
    "outage": "failed every request", "terminated": "was shut down cleanly", "restart": "was restarted",
}  # fmt: skip
_FEATURES = {
    "images": "images", "videos": "videos", "speculative_decoding": "speculative decoding",
    "development_endpoints": "development endpoints", "metrics": "metrics",
}  # fmt: skip
_DISPLAY_OPTIONS = frozenset({"--no-live", "--exporter-port", "--out", "--quiet", "--ci", "--notify", "--otlp"})
_OPTIONS_WITH_VALUE = frozenset({"--exporter-port", "--out", "--ci", "--notify", "--otlp"})


@dataclass(frozen=True)
class IncidentView:
    """Text that the run folder adds to an incident.

    Attributes:
        log: The decisive lines of the log, or the text of evidence that is not from a log.
        batch: The batch that a dying engine dumped.
        profile: The profile as resolved.
        earlier: Folders of earlier incidents with the same id.
    """

    log: Sequence[str] = ()
    batch: Sequence[str] = ()
    profile: Sequence[str] = ()
    earlier: Sequence[str] = ()


def page(incident: Mapping[str, Any], view: IncidentView, requests: Sequence[Mapping[str, Any]] = ()) -> str:
    """Render the page of an incident.

    `requests` says where the bodies of requests in flight are stored.
    """
    name = clean(incident.get("id"), 80)
    environment = incident.get("environment") or {}
    parts = [
        f"# {_plain(incident.get('title') or name)}",
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


def _evidence(incident: Mapping[str, Any], view: IncidentView) -> tuple[str, Sequence[str]]:
    """Heading and lines of the evidence, which is not always from a log.

    Wrong answers have a section of their own.
    """
    if isinstance((incident.get("evidence") or {}).get("line"), int):
        return "Server log", _fence(view.log)
    return "Evidence", [] if incident.get("wrong_answers") else _fence(view.log)


def _plain(text: object) -> str:
    """Escape foreign text inside a sentence: no Markdown or HTML markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|!~@])", r"\\\1", clean(text, 400))


def _span(text: object, limit: int = 400) -> str:
    """Format foreign text as a code span.

    Backticks become quotes, since only a backtick ends a span.
    """
    return "`" + clean(text, limit).replace("`", "'") + "`"


def _fence(lines: Sequence[str]) -> list[str]:
    """Put lines in a code fence longer than any run of backticks inside it."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    mark = "`" * max(3, longest + 1)
    return [mark + "text", *lines, mark] if lines else []


def _prose(incident: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """Describe the incident in a sentence or two."""
    facts = environment.get("facts") or {}
    who = " ".join(clean(facts[k], 60) for k in ("dialect", "version") if facts.get(k)) or "The server"
    happened = _HAPPENED.get(str(incident.get("kind")))
    if happened is None:
        return ""
    flying, opened = incident.get("in_flight_at_death"), incident.get("opened_at_s")
    under = f" with {plural(flying, 'request')} in flight" if flying else ""
    when = f" {duration(opened)} after the load began" if isinstance(opened, int | float) else ""
    ended = incident.get("exit") or {}
    rest = [f"Its process {clean(ended.get('reason'), 100)}."] if ended.get("reason") else []
    back = incident.get("recovered_after_s")
    rest.append(f"It was healthy again after {duration(back)}." if back is not None else "It did not come back.")
    evidence = clean((incident.get("evidence") or {}).get("text") or "", 200)
    return f"{_plain(who)} {happened}{under}{when}" + (f": {_span(evidence)}. " if evidence else ". ") + " ".join(rest)


def _summary(incident: Mapping[str, Any], name: str) -> list[str]:
    opened, noticed = incident.get("opened_at_s"), incident.get("noticed_at_s")
    replica = f" on replica {_span(incident['replica'])}" if incident.get("replica") else ""
    late = noticed - opened if isinstance(noticed, int | float) and isinstance(opened, int | float) else None
    rows = [
        f"- **failure**: {severity_text(incident)}, {_span(name)}{replica}",
        f"- **when**: {duration(opened)} after the load began" if isinstance(opened, int | float) else "",
        f"- **noticed**: {duration(max(0.0, late))} later" if late else "",
        f"- **impact**: {_cost(incident)}" if _cost(incident) else "",
        f"- **cause**: {cause_text(incident)}",
    ]
    known = [known_text(k) for k in incident.get("known") or []]
    rows += [f"- **known issue**: {k}" for k in known] or ["- **known issue**: none known to loadchaos"]
    rows += [f"- **unexplained log line**: {_span(t, 400)}" for t in candidate_texts(incident)]
    rows += [f"- **observed**: {_span(s)}" for s in (incident.get("signs") or [])[:10]]
    return [r for r in rows if r]


def _cost(incident: Mapping[str, Any]) -> str:
    lost, flying = incident.get("lost_requests"), incident.get("in_flight_at_death")
    by_outcome = ", ".join(outcome_count_text(o, n) for o, n in (incident.get("lost") or {}).items())
    parts = [
        f"{plural(lost, 'request')} lost ({by_outcome})" if lost else "",
        f"{number(flying)} in flight at that time" if flying else "",
    ]
    back = incident.get("recovered_after_s")
    parts.append(f"healthy again after {duration(back)}" if back is not None else "")
    return "; ".join(p for p in parts if p)


def _wrong_answers(incident: Mapping[str, Any]) -> list[str]:
    """List wrong answers: prompt, expected, got, first difference."""
    rows: list[str] = []
    for wrong in incident.get("wrong_answers") or []:
        traffic = f" of {_span(wrong['traffic'])}" if wrong.get("traffic") else ""
        rows += [f"- {_span(wrong.get('subject'))}{traffic}: {_plain(wrong.get('summary'))}"]
        rows += [f"  - {label}: {_span(wrong[key])}" for key, label in _PARTS if wrong.get(key)]
        if wrong.get("first_difference") is not None:
            rows.append(f"  - first difference: character {number(wrong['first_difference'])}{_differing(wrong)}")
        rows += [f"  - {_plain(k.replace('_', ' '))}: {_span(v)}" for k, v in (wrong.get("facts") or {}).items()]
    return rows


def _differing(wrong: Mapping[str, Any]) -> str:
    """Both texts from their first difference on."""
    found = wrong.get("difference") or {}
    texts = [_span(found[key]) if found.get(key) else "the end" for key in ("expected", "got")]
    return f": expected {texts[0]}, got {texts[1]}" if found else ""


def _environment(environment: Mapping[str, Any]) -> list[str]:
    """List version, flags and machine: what upstream asks for first."""
    facts, target = environment.get("facts") or {}, environment.get("target") or {}
    server = " ".join(clean(facts[k], 60) for k in ("dialect", "version") if facts.get(k)) or "unknown server"
    blocks, size, tokens = facts.get("kv_blocks"), facts.get("kv_block_size"), facts.get("capacity_tokens")
    cache = f"{number(blocks)} blocks of {number(size)} tokens" if blocks and size else ""
    cache += (": " if cache else "") + f"{number(tokens)} tokens in total" if tokens else ""
    context = f", context {number(facts['max_model_len'])} tokens" if facts.get("max_model_len") else ""
    limit = f", prompts of at most {number(facts['input_limit'])}" if facts.get("input_limit") else ""
    settings = ", ".join(f"{k} {v}" for k, v in (environment.get("settings") or {}).items())
    command = environment.get("command")
    ours = f"profile {_span(environment.get('profile'))}, seed {_span(environment.get('seed'))}"
    rows = [
        f"- server: {_plain(server)}, {TARGET.get(str(target.get('kind')), _span(target.get('kind')))}",
        f"- model: {_span(facts['model'])}{context}{limit}" if facts.get("model") else "",
        f"- command: {_span(shlex.join(str(c) for c in command))}" if command else "",
        f"- flags (from its log): {_span(environment['flags'], 2000)}" if environment.get("flags") else "",
        f"- settings: {_span(settings)}" if settings else "",
        f"- KV cache: {cache}" if cache else "",
        *(f"- {_plain(k)}: {_span(v)}" for k, v in (environment.get("system") or {}).items()),
        _MACHINE_UNKNOWN if target.get("kind") != "embedded" and not environment.get("system") else "",
        "- features: " + ", ".join(w for k, w in _FEATURES.items() if facts.get(k)) if facts else "",
        f"- loadchaos {_span(environment['version'])}, {ours}" if environment.get("version") else "",
    ]
    return [r for r in rows if r]


def _sent(incident: Mapping[str, Any]) -> list[str]:
    flying = [r for r in incident.get("in_flight") or [] if isinstance(r, Mapping)]
    before = incident.get("sent_before") or {}
    rows = []
    if before:
        mix = [f"{number(n['begun'])} x {_span(t)} ({number(n['ok'])} ok)" for t, n in before.items()]
        rows += [
            f"Sent before the failure: {', '.join(mix)}. In flight at that time: {plural(len(flying), 'request')}.",
            "",
        ]
    if not flying:
        return rows[:1]
    rows += ["In flight at that time:", ""]
    for traffic in dict.fromkeys(str(r.get("traffic")) for r in flying):
        group = [r for r in flying if str(r.get("traffic")) == traffic]
        tokens = [r["tokens"] for r in group if isinstance(r.get("tokens"), int)]
        images = sum(int(r.get("images") or 0) for r in group)
        longest = f" to {number(max(tokens))}" if tokens and max(tokens) > min(tokens) else ""
        size = f", prompts of {number(min(tokens))}{longest} tokens" if tokens else ""
        files = list(dict.fromkeys(str(r["image_file"]) for r in group if r.get("image_file")))
        named = f" ({', '.join(_span(file) for file in files[:_MOST_FILES])})" if files else ""
        rows.append(
            f"- {number(len(group))} x {_span(traffic)}{size}"
            + (f", {plural(images, 'image')}{named}" if images else "")
        )
    return rows


def _timeline(incident: Mapping[str, Any]) -> list[str]:
    rows = incident.get("timeline") or []
    return [f"- {_at(r.get('at_s'))} {_span(r.get('text'))}" for r in rows if isinstance(r, Mapping)]


def _figures(incident: Mapping[str, Any]) -> list[str]:
    """Table of the newest engine metrics, and a list of devices."""
    opened = incident.get("opened_at_s") or 0.0
    every = [f for f in incident.get("figures") or [] if isinstance(f, Mapping)]
    engines = [f for f in every if "requests_running" in f or "kv_usage_ratio" in f]
    rows = [
        "| time | engine | running | waiting | KV cache | tokens/s | preemptions |",
        "|---|---|---|---|---|---|---|",
    ]
    last: dict[str, Mapping[str, Any]] = {}
    table = []
    for f in engines:
        before, last[f["whose"]] = last.get(f["whose"]), f
        table.append(f"| {_at(f['at_s'])} | {_plain(f['whose'])} | " + " | ".join(_reading(f, before)) + " |")
    rows = [*rows, *table[-_MOST_READINGS:]] if table else []
    devices = {f["whose"]: f for f in every if f not in engines and f["at_s"] <= opened + _NEAR_S}
    return [*rows, *([""] if rows and devices else []), *(_device(f) for f in devices.values())]


def _reading(f: Mapping[str, Any], before: Mapping[str, Any] | None) -> list[str]:
    kv, total = f.get("kv_usage_ratio"), f.get("generation_tokens_total")
    speed = ""
    if before is not None and total is not None and total >= before.get("generation_tokens_total", total + 1):
        speed = number(round((total - before["generation_tokens_total"]) / max(f["at_s"] - before["at_s"], 0.1)))
    counts = [number(f[name]) if name in f else "" for name in ("requests_running", "requests_waiting")]
    preempted = number(f["preemptions_total"]) if "preemptions_total" in f else ""
    return [*counts, percent(kv) if kv is not None else "", speed, preempted]


def _device(f: Mapping[str, Any]) -> str:
    gib = 2**30
    parts = []
    if "gpu_memory_used_bytes" in f:
        free = f.get("gpu_memory_free_bytes")
        whole = f" of {(f['gpu_memory_used_bytes'] + free) / gib:.1f}" if free is not None else ""
        parts.append(f"{f['gpu_memory_used_bytes'] / gib:.1f}{whole} GiB in use")
    parts += [f"{percent(f['gpu_utilisation_ratio'])} busy"] if "gpu_utilisation_ratio" in f else []
    parts += [f"{f['gpu_temperature_c']:.0f} C"] if "gpu_temperature_c" in f else []
    parts += [f"Xid {f['gpu_xid_last']:.0f} last reported"] if f.get("gpu_xid_last") else []
    if "host_memory_available_bytes" in f:
        parts.append(f"{f['host_memory_available_bytes'] / gib:.1f} GiB of memory available")
    parts += [f"{f['disk_free_bytes'] / gib:.1f} GiB free"] if "disk_free_bytes" in f else []
    return f"- {_plain(f['whose'])}: {', '.join(parts) or 'no reading'}"


def _at(at_s: object) -> str:
    return f"{at_s:+.3f} s" if isinstance(at_s, int | float) else "?"


def _attacks(incident: Mapping[str, Any]) -> list[str]:
    """One line per attack, however often it ran."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for a in incident.get("attacks") or []:
        by_name.setdefault(str(a.get("attack")), []).append(a)
    rows = []
    for name, ran in by_name.items():
        effects = ", ".join(_span(e) for e in dict.fromkeys(e for a in ran for e in a.get("effects") or []))
        before = [a["began_before_s"] for a in ran if isinstance(a.get("began_before_s"), int | float)]
        times = f" {number(len(ran))} times" if len(ran) > 1 else ""
        when = f", the last one {duration(min(before))} before the failure" if before else ""
        others = [duration(s) for s in sorted(before)[1:_MOST_TIMES]]
        when += f" (others: {', '.join(others)})" if others else ""
        anything = "anything" if effects == "`*`" else effects
        rows.append(f"- {_span(name)}{times}{when}" + (f"; it may cause {anything}" if effects else ""))
    return rows


def _file(request: Mapping[str, Any]) -> str:
    """Name of the image's file, after the number of images."""
    return f" {_span(request['image_file'])}" if request.get("image_file") else ""


def _in_flight(incident: Mapping[str, Any]) -> list[str]:
    flying = [r for r in incident.get("in_flight") or [] if isinstance(r, Mapping)]
    if not flying:
        return []
    rows = [f"<details><summary>{plural(len(flying), 'request')}</summary>", ""]
    rows += ["| id | step | traffic | prompt tokens | images | in flight for |", "|---|---|---|---|---|---|"]
    rows += [
        f"| {_span(r.get('id'))} | {r.get('step', '')} | {_span(r.get('traffic'))} | {number(r.get('tokens'))} "
        f"| {number(r.get('images') or 0)}{_file(r)} | {duration(r.get('age_s'))} |"
        for r in flying[:_MOST_REQUESTS]
    ]
    if len(flying) > _MOST_REQUESTS:
        rows += ["", f"{number(len(flying) - _MOST_REQUESTS)} more are in incident.json."]
    return [*rows, "", "</details>"]


def _bodies(requests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say how many bodies are stored and how to send one again."""
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


def replay_command(run: Mapping[str, Any]) -> str:
    """Build the command that sends the same steps again."""
    argv = [str(a) for a in run.get("argv") or []]
    seed = run.get("seed")
    if not argv:
        argv = ["loadchaos", "run", str(run.get("profile") or "PROFILE")]
    argv = _without_display_options(argv)
    argv[0] = "loadchaos"  # however it was started: `python -m loadchaos` is the same program
    if seed is not None and not any(a == "--seed" or a.startswith("--seed=") for a in argv):
        argv += ["--seed", str(seed)]
    return clean(shlex.join(argv), 2000)


def _without_display_options(argv: Sequence[str]) -> list[str]:
    """Remove options that only change the display and output places."""
    kept: list[str] = []
    skip = False
    for word in argv:
        name = word.split("=", 1)[0]
        if not skip and name not in _DISPLAY_OPTIONS:
            kept.append(word)
        skip = not skip and name in _OPTIONS_WITH_VALUE and "=" not in word
    return kept


def _replay(run: Mapping[str, Any], profile: Sequence[str]) -> list[str]:
    rows = [*_fence([replay_command(run)]), "", "The same profile and seed send the same requests in the same order."]
    if 0 < len(profile) <= _MOST_PROFILE:
        rows += ["", "<details><summary>resolved profile</summary>", "", *_fence(profile), "", "</details>"]
    return rows


def _tried(incident: Mapping[str, Any], earlier: Sequence[str]) -> list[str]:
    back = incident.get("recovered_after_s")
    rows = [f"- it happened before in this run, after a restart of the same server ({', '.join(earlier)})"]
    rows = rows if earlier else []
    rows += [f"- it was healthy again after {duration(back)} without help"] if back is not None else []
    return [*rows, "- none of the remedies below was tried"] if incident.get("remedy") else rows


def _next_steps(incident: Mapping[str, Any]) -> list[str]:
    remedy = remedy_text(incident.get("remedy"))
    rows = [f"- {_plain(part)}" for part in _STEP_END.split(remedy) if part.strip()] if remedy else []
    if not is_server_fault(incident):
        return rows or ["- Nothing to report upstream: an attack of loadchaos caused it."]
    report = (
        "Add this page to the known issue above" if incident.get("known") else "Open an issue upstream with this page"
    )
    return [*rows, f"- {report}. Attach server.log.excerpt from the same folder: it has the log around the failure."]
