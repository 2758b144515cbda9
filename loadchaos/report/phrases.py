"""The entries of verdict.json in words: terminal, report page, JUnit and incidents say the same sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadchaos.report.words import SEVERITY, TARGET, WORST_FIRST, clean, number, plural, seconds, since_load

_NOT_THE_LOAD = (2, 4)
"""Exit codes of a run that sent nothing: what stopped it stands first, whatever else was seen."""


def worst_first(failure: Mapping[str, Any]) -> tuple[int, int]:
    """Sort key: what is the server's fault and worst comes first."""
    severity = str(failure.get("severity"))
    blame = 0 if failure.get("attribution", "server") == "server" else 1
    return blame, WORST_FIRST.index(severity) if severity in WORST_FIRST else len(WORST_FIRST)


def target_in_words(verdict: Mapping[str, Any]) -> str:
    """`the embedded server (a simulation inside loadchaos): vllm 0.18`; says loudly when nothing real was tested."""
    target = verdict.get("target") or {}
    kind = str(target.get("kind") or "")
    what = TARGET.get(kind, "a server")
    model = " ".join(clean(target[k], 80) for k in ("dialect", "version", "model") if target.get(k))
    url = clean(target.get("url") or target.get("base_url") or "", 120) if kind == "external" else ""
    return what + (f" {url}" if url else "") + (f": {model}" if model else "")


def one_line(verdict: Mapping[str, Any]) -> str:
    """What broke, in one line; for a pass, what was sent."""
    ended_early: Mapping[str, Any] = next((c for c in verdict.get("checks") or [] if c.get("name") == "run"), {})
    if verdict.get("exit_code") in _NOT_THE_LOAD and ended_early.get("verdict") != "pass":
        return clean(ended_early.get("actual") or "it ended before any load", 400)
    failures = [f for f in verdict.get("failures") or [] if not f.get("accepted")]
    blamed = [f for f in failures if f.get("attribution", "server") == "server"] or failures
    worst = sorted(blamed, key=worst_first)
    if worst and verdict.get("verdict") == "fail":
        first = worst[0]
        severity = SEVERITY.get(str(first.get("severity")), clean(first.get("severity"), 30))
        more = f", and {plural(len(worst) - 1, 'more failure')}" if len(worst) > 1 else ""
        return f"{severity}: {clean(first.get('id'), 80)}{more}"
    rules = [*(verdict.get("expectations") or []), *(verdict.get("checks") or [])]
    missed = [r for r in rules if r.get("verdict") == verdict.get("verdict") != "pass"]
    if missed:
        more = f", and {number(len(missed) - 1)} more" if len(missed) > 1 else ""
        return f"{rule_text(missed[0])}{more}"
    sent = sum(verdict.get("outcomes", {}).values()) - verdict.get("outcomes", {}).get("missed", 0)
    return plural(sent, "request")


def when_text(verdict: Mapping[str, Any], failure: Mapping[str, Any]) -> str:
    """When a failure was first seen, and how long that took."""
    first = since_load(verdict, failure.get("first_seen"), failure.get("first_seen_s"))
    noticed = failure.get("noticed_after_s")
    return first + (f"; noticed {seconds(noticed)} later" if noticed and noticed >= 0.001 else "")


def count_text(failure: Mapping[str, Any], *keys: str) -> str:
    """`76 requests` of the first of these keys that is there, a number or a list; nothing where none is."""
    for key in keys:
        value = failure.get(key)
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = len(value)
        if isinstance(value, int):
            return plural(value, "request")
    return ""


def lost_text(failure: Mapping[str, Any]) -> str:
    """How many requests a death cost, and how long it took until the server was back."""
    lost = count_text(failure, "lost_requests", "lost")
    back = failure.get("recovered_after_s")
    if back is None:
        return lost
    return f"{lost}; healthy again after {seconds(back)}" if lost else f"healthy again after {seconds(back)}"


def incident_paths(failure: Mapping[str, Any]) -> list[str]:
    """Folders of its incidents, relative to the run folder; a path that would lead out of `incidents/` is left out."""
    names = [str(n) for n in [failure.get("incident"), *(failure.get("incidents") or [])] if n]
    inside = [n.removeprefix("incidents/") for n in names]
    return [f"incidents/{n}" for n in dict.fromkeys(inside) if "/" not in n and ".." not in n]


def evidence_text(evidence: Any) -> str:
    """`server.log:1234  AssertionError: ...`: the line that proves it."""
    if isinstance(evidence, list):
        evidence = evidence[0] if evidence else None
    if not isinstance(evidence, Mapping):
        return clean(evidence, 300) if evidence else ""
    where = clean(evidence.get("source") or "", 80)
    if where and evidence.get("line") is not None:
        where += f":{evidence['line']}"
    return f"{where}  {clean(evidence.get('text') or '', 400)}".strip()


_OF_ISSUES = {"state": "now", "seen": "seen in"}


def known_text(known: Any) -> str:
    """An issue as an address that can be clicked: `vllm-project/vllm#38551` becomes its URL."""
    if isinstance(known, Mapping):
        told = [known_text(known.get("url") or known.get("issue") or ""), clean(known.get("title") or "", 160)]
        fixed = clean(known.get("fixed") or "", 120)
        told.append(f"fixed {'in' if fixed[0].isdigit() else 'by'} {fixed}" if fixed else "")
        told += [f"{words} {clean(known[k], 120)}" for k, words in _OF_ISSUES.items() if known.get(k)]
        told.append(clean(known.get("standing") or "", 200))
        return ", ".join(t for t in told if t)
    text = clean(known, 200)
    repo, mark, issue = text.partition("#")
    if mark and "/" in repo and " " not in repo and "://" not in repo and issue.isdigit():
        return f"https://github.com/{repo}/issues/{issue}"
    return text


def remedy_text(remedy: Any) -> str:
    """What to do about it, with what stands against it."""
    if isinstance(remedy, Mapping):
        remedy = [remedy.get("text") or "", *(f"but: {c}" for c in remedy.get("conflicts") or [])]
    if isinstance(remedy, list):
        return "; ".join(clean(r, 600) for r in remedy if r)
    return clean(remedy or "", 1200)


def accepted_text(failure: Mapping[str, Any]) -> str:
    """Why the profile accepts this failure, or why its acceptance did not hold; empty where it says nothing of it."""
    why = clean(failure.get("acceptance") or "", 300)
    if failure.get("accepted"):
        return why or "by the profile"
    return f"no: {why}" if why else ""


# What to do about a condition of the verdict that was not met, by the check's name or its first word.
_TO_DO = {
    "run": "run it again, or go on where it broke off: loadchaos run --resume RUN",
    "requests_sent": "look for why in the run's own words and in locust.log",
    "load_delivered": "fewer users or a lower rate, more time, or a server that stays up",
    "shed": "fewer users or a lower rate: the server refuses some of what it is asked",
    "load_process": "locust.log in the run folder has its last words; run it again",
    "watching": "see that /health and the logs can be reached from here, and that this machine has time to look",
    "server_log": "give --server-log the file, container or unit that this very server writes to",
    "ledger": "free disk space, or choose another place with --out, and run it again",
    "workers": "start as many as were waited for, or wait longer: --wait-workers (docs/how-to/many-machines.md)",
    "exposure": "run longer or with more users, until the mechanism was at work often enough",
    "requires": "start the server with what the profile is about; loadchaos probe URL says which profiles fit it",
    "preflight": "mend it and run again; loadchaos probe URL says what this server is and can",
    "attack": "events.jsonl has the server's answers; docs/attacks.md says what each attack needs",
    "fit": "our own mistake: please report it, with the run folder",
    "canary": "run longer: too few answers to learn from",
    "near_limit": "see which rungs were answered in requests-*.jsonl; a longer first_byte limit may help",
    "image_dial": "run it against a server that nobody else uses, without attacks that reset its caches",
}


# What to do where requests of the load were not sent, by why they were missed.
_MISSED = {
    "no_slot": "a larger max_in_flight or a lower rate: every slot was taken",
    "server_down": "a server that stays up, or more time",
    "stopped": "more time, or fewer requests",
    "worker_lost": "see why a load process was lost: locust.log in the run folder",
}


def to_do_text(check: Mapping[str, Any]) -> str:
    """What to do about a check that left the verdict unknown; empty for others."""
    name = str(check.get("name") or "")
    if name == "load_delivered" and check.get("verdict") == "unknown":
        told = [todo for why, todo in _MISSED.items() if f"missed: {why}" in str(check.get("actual"))]
        return "; ".join(told) or _TO_DO[name]
    return "" if check.get("verdict") != "unknown" else _TO_DO.get(name, _TO_DO.get(name.partition(" ")[0], ""))


def value_text(value: Any) -> str:
    """What a rule found, as people read it."""
    if value is None:
        return "not known"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return clean(value, 300)


def outcome_counts(entry: Any) -> dict[str, int]:
    """Counts of one entry of by_traffic, whether it lies flat or under `outcomes`."""
    if not isinstance(entry, Mapping):
        return {}
    inner = entry.get("outcomes", entry)
    return {k: v for k, v in inner.items() if isinstance(v, int)} if isinstance(inner, Mapping) else {}


def generator_text(verdict: Mapping[str, Any]) -> str:
    """How far the load generator itself may be trusted; empty where nothing is known of it."""
    generator = verdict.get("generator") or {}
    if not generator:
        return ""
    lag = generator.get("send_lag_p99_s", generator.get("lag_p99_s"))
    text = f"requests left {seconds(lag)} late at the 99th percentile" if lag is not None else "lateness not known"
    if stale := generator.get("stale_connections"):
        text += f"; {stale:,} kept connections had been closed by the server, and were replaced"
    if not generator.get("limited"):
        return text
    why = "; ".join(clean(w, 200) for w in generator.get("why") or []) or "see verdict.json"
    return f"loadchaos itself was the limit ({why}): latencies and throughput say nothing about the server; {text}"


def rule_text(rule: Mapping[str, Any]) -> str:
    """What was asked for and what was found: `hangs == 0: 0`, `watching: never probed (wanted: probed throughout)`."""
    name, expected = clean(rule.get("name"), 160), clean(rule.get("expected") or "", 160)
    found = value_text(rule.get("actual"))
    if not expected or expected in name or expected[0] in "=<>!":
        asked = name if expected in name else f"{name} {expected}"
        return f"{asked}: {found}"
    return f"{name}: {found}" if rule.get("verdict") == "pass" else f"{name}: {found} (wanted: {expected})"


def lower_bounds_text(verdict: Mapping[str, Any]) -> str:
    """A sentence where requests that timed out stand in the latencies with what they took at least."""
    n = sum(int(kinds.get("lower_bounds") or 0) for kinds in (verdict.get("latency") or {}).values())
    return f"{plural(n, 'request')} that timed out stand in it with the time they took at least." if n else ""
