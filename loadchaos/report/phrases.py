"""Display text of checks, states, outcomes, causes and sections, for every report. The ids in verdict.json
(`checks[].name`, outcomes, states) do not change. A new check, state or outcome is one entry in a table below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from loadchaos.analysis.figures.refusals import QUOTA_SPENT
from loadchaos.analysis.incidents.record import IncidentRecord
from loadchaos.analysis.verdict.cause import Who, cause_of
from loadchaos.analysis.verdict.model import (
    NOT_ASKED,
    NOT_JUDGED,
    CandidateLine,
    CheckResult,
    Evidence,
    FailureResult,
    KnownIssue,
    Verdict,
)
from loadchaos.core import exit_codes, model
from loadchaos.core.model import severity_rank
from loadchaos.core.outcome_rules import SHED_STATUSES, UNAVAILABLE_STATUS
from loadchaos.report.formatting import clean, duration, number, plural, since_load, unify_units

_BEFORE_LOAD = exit_codes.BEFORE_LOAD
"""Exit codes of a run that sent no load: the reason it stopped comes first, whatever else was seen."""

SECTIONS = {
    "failures": "Failures",
    "expectations": "Expectations",
    "checks": "Validity checks",
    "outcomes": "Requests by outcome",
    "reported": "What the command reported, and what was on the wire",
    "labels": "Answers by label, as the server gave it",
    "latency": "Latency of answered requests",
    "endpoints": "By endpoint",
    "states": "Server states",
    "attacks": "Attacks",
    "lengths": "Requested vs reported tokens",
    "timeline": "Timeline",
    "reproduce": "Reproduce this run",
    "before_load": "Before the load: requests that identified the server (not counted)",
    "facts": "Server as measured before the load",
}
"""Title of each section of a verdict."""

SEVERITY = {
    "engine_death": "engine death",
    "startup": "startup failure",
    "hang": "hang",
    "node": "node failure",
    "request": "request failure",
    "degraded": "degraded",
}
"""Severities of failures after which the server answers nobody."""

CAUSE: dict[Who, str] = {
    "server": "server bug",
    "start": "the server's command, files, environment or code",
    "load": "more load than the server can bear within the limits of the client, not a server bug",
    "request": "our request, which the server refuses",
    "policy": "a policy that somebody set, such as a filter, a quota or a budget",
    "gateway": "the gateway, or the server behind it",
    "outside": "the machine, its network or limits, or a kill from outside (no server bug is known)",
    "attack": "our own attack, not a server bug",
    "unknown": "not known",
}
"""Text of each cause; cause_text adds its reason."""

TARGET = {
    "embedded": "embedded server (a simulation inside loadchaos)",
    "launched": "server launched by loadchaos",
    "external": "external target",
}
"""Text of `target.kind`."""

SHED = f"shed ({', '.join(map(str, sorted({*SHED_STATUSES, UNAVAILABLE_STATUS})))})"

STATES: dict[str, str] = {state: state for state in model.STATES} | {"dying": "failing", "terminated": "stopped"}

OUTCOMES = {
    "ok": "ok",
    "rejected": "rejected (4xx)",
    "shed": SHED,
    "http_error": "HTTP error",
    "stream_error": "error in stream",
    "finish_error": "finish_reason error",
    "finish_abort": "finish_reason abort",
    "truncated": "truncated stream",
    "empty": "empty answer",
    "protocol_error": "protocol error",
    "wrong_output": "wrong output",
    "connect_error": "connection failed",
    "reset": "connection reset",
    "stalled": "stalled stream",
    "timeout": "timeout",
    "aborted": "aborted by loadchaos",
    "missed": "not sent",
    "unfinished": "unfinished",
}

_WITH_S = (
    "http_error", "finish_error", "finish_abort", "truncated", "empty", "protocol_error", "wrong_output", "reset",
    "stalled", "timeout",
)  # fmt: skip
_OUTCOMES_PLURAL = {name: f"{OUTCOMES[name]}s" for name in _WITH_S} | {
    "stream_error": "errors in stream",
    "connect_error": "failed connections",
}

MISSED = {
    "no_slot": "no free slot",
    "server_down": "the server was down",
    "stopped": "the run was stopped",
    "worker_lost": "a load process was lost",
}
"""Reasons for requests of the plan that were not sent."""

_MISSED_ADVICE = {
    "no_slot": "use a larger max_in_flight (--max-concurrency) or a lower rate: every slot was taken",
    "server_down": "use a server that stays up, or run longer",
    "stopped": "run longer, or plan fewer requests",
    "worker_lost": "look in locust.log for the reason why a load process was lost",
}

MECHANISMS = {
    "images": "images",
    "speculative_decoding": "speculative decoding",
    "development_endpoints": "development endpoints",
    "prefix_caching": "prefix caching",
    "prefix_cache_hits": "hits in the prefix cache",
    "preemption": "preemption",
    "queueing": "queueing",
    "replicas": "several replicas",
    "mm_cache": "multimodal cache",
    "lora_adapters": "LoRA adapters",
    "metrics": "metrics",
}
"""Text of what a profile may require."""


@dataclass(frozen=True)
class CheckText:
    """Display text of one check. `{}` of `label` stands for what follows the first word of its id; `passed` follows the
    label when it passed and its value holds no figure (`run` + `completed`); `advice` is the next step when it is unknown.
    """

    label: str
    advice: str = ""
    passed: str = ""


_LOGPROBS = "use a server that gives logprobs"
_ACCEPTED = f"{{id: {NOT_JUDGED}, because: random weights, until: 2099-01-01}}"
_RANDOM_WEIGHTS = f"for a model with random weights: --set 'accept=[{_ACCEPTED}]'"
_LOGPROBS_DECIDE = f"{_LOGPROBS}: without them near ties count"
CHECKS = {
    "run": CheckText("run", "run it again, or continue it: loadchaos run --resume RUN", "completed"),
    "traffic": CheckText("traffic of others", "watch while the server has something to do"),
    "requests_seen": CheckText(
        "requests through the proxy", "give the command {url} as its server, or let it read OPENAI_BASE_URL"
    ),
    "requests_read": CheckText("connections to the proxy", "let the client speak HTTP/1.1"),
    "command": CheckText("command", "its output is in command.log of the run folder"),
    "requests_sent": CheckText("requests sent", "look in the output of the run and in locust.log for the reason"),
    "load_delivered": CheckText(
        "load delivered", "use fewer users or a lower rate, run longer, or use a server that stays up"
    ),
    "turns_fit": CheckText(
        "room for the turns of sessions",
        "plan fewer turns, shorter questions, tool results or answers, or use a server with a longer context",
    ),
    "tools_called": CheckText(
        "tool calls",
        "look at an answer in the ledger (row answer): give calls more room (output: {max: 512}), or see that the server's "
        "tool parser fits the model",
    ),
    "shed": CheckText(f"requests {SHED}", "use fewer users or a lower rate: the server refuses part of the load"),
    "same_server": CheckText(
        "server under test",
        "run again while nobody replaces the server; for a rollout on purpose, accept same_server in the profile",
    ),
    "longest_stall": CheckText(
        "longest time without a token",
        "find out what the server or the path to it did meanwhile, or set an expectation on it",
    ),
    "retries": CheckText(
        "requests sent again", "see which connections the server or a gateway closes while they are idle"
    ),
    "load_process": CheckText(
        "load process", "look at the last lines of locust.log in the run folder; run it again", "ran to the end"
    ),
    "watching": CheckText(
        "monitoring",
        "see that /health and the logs can be reached from here, and that this machine is not overloaded",
        "complete",
    ),
    "server_log": CheckText(
        "server log", "name the file, container or unit that this server writes to with --server-log", "read"
    ),
    "ledger": CheckText("record", "free disk space, or choose another place with --out, and run it again", "complete"),
    "workers": CheckText(
        "worker machines",
        "start all workers, or wait longer for them: --wait-workers (docs/how-to/many-machines.md)",
        "complete",
    ),
    "exposure": CheckText("exposure", "run longer or with more users, until the mechanism was used often enough"),
    "requires": CheckText(
        "{} in use", "start the server with the features of the profile; loadchaos probe URL says which profiles fit it"
    ),
    "preflight": CheckText(
        "preflight {}", "correct this and run again; loadchaos probe URL shows what the server offers"
    ),
    "attack": CheckText(
        "attack {}", "see the server's answers in events.jsonl, and in docs/attacks.md what it needs", "took effect"
    ),
    "fitted": CheckText(
        "requests of traffic {} adjusted to the server",
        "ask for what the server takes (loadchaos probe URL shows its limits), or raise its limits",
    ),
    "fit": CheckText("requests within the server's limits", "report this fault of loadchaos, and add the run folder"),
    "canary": CheckText("canary answers", "run longer: too few answers to learn from"),
    "questions": CheckText(
        "questions with one right answer",
        f"use a model that answers simple questions, or a server that gives logprobs; {_RANDOM_WEIGHTS}",
        "as right as when idle",
    ),
    "schemas": CheckText(
        "answers under a schema", "give the answers more tokens (output: {max: 512}), so that they end"
    ),
    "secret_words": CheckText(
        "answers that repeat their secret word", "look at one answer with curl: use a model that can repeat words"
    ),
    "degeneration": CheckText("readable answers", f"look at one answer with curl; {_RANDOM_WEIGHTS}"),
    "identical_requests": CheckText("identical requests at once", _LOGPROBS_DECIDE, "equal answers"),
    "cold_and_warm": CheckText("answers with a cold and a warm prefix cache", _LOGPROBS, "equal answers"),
    "alone_vs_load": CheckText(
        "answers under load", "run longer: too few answers before the load are equal", "answers as when idle"
    ),
    "image_answers": CheckText("answers about images", _LOGPROBS_DECIDE, "answers as when idle"),
    "adapter_answers": CheckText(
        "answers of LoRA adapters",
        "use adapters that change answers, and a server with logprobs",
        "answers as when idle",
    ),
    "exact_prompts": CheckText("prompts of exact lengths, cold and from the prefix cache", _LOGPROBS, "equal answers"),
    "streamed_and_whole": CheckText("streamed and whole answers", _LOGPROBS_DECIDE, "equal answers"),
    "near_limit": CheckText(
        "prompts near the context limit",
        "see which lengths were answered in requests-*.jsonl; a longer first_byte limit may help",
    ),
    "image_dial": CheckText(
        "image cache hits", "run it against a server that no other client uses, without attacks that reset its caches"
    ),
    "open_restart": CheckText(
        "restarts at the end", "run longer: a server that restarts in the last seconds is not recognised in time"
    ),
    "end_of_load": CheckText(
        "tokens to the end of the load",
        "run longer: a server that stops answering in the last seconds is not recognised",
    ),
    "unaccepted_failures": CheckText("failures that are neither accepted nor within an error budget"),
    "exact_lengths": CheckText("prompt lengths as planned"),
    "asked_lengths": CheckText(
        "prompt lengths as asked",
        "give --tokenizer DIR with the tokenizer.json of the model, so that the prompts have the length that was asked",
    ),
    "image_usage": CheckText("image tokens in the usage of answers"),
    "substance": CheckText(
        "requests with the payload of the profile",
        "use a server that takes what the profile sends, or leave that traffic out with --set traffic.N.weight=0",
    ),
    "exact_outputs": CheckText(
        "output lengths as planned", "use a server that reports usage in its streams (stream_options.include_usage)"
    ),
    "answer_text": CheckText(
        "text of the answers", "look at one answer with curl: reasoning or text may be removed on the way"
    ),
    "answer_sizes": CheckText(
        "text of the answers for their tokens", "look at one stream with curl: tokens may be lost on the way"
    ),
    "answer_chunks": CheckText(
        "chunks of the answers", "look at one stream with curl: tokens may be repeated, or usage may be wrong"
    ),
    "idle after the load": CheckText("server idle after the load"),
    "memory": CheckText("server memory"),
}
"""Text of `checks[].name`: by the whole id, else by its first word."""


def check_text(name: str) -> CheckText | None:
    if name in CHECKS:
        return CHECKS[name]
    first, _, rest = name.partition(" ")
    found = CHECKS.get(first)
    if found is None or not rest:
        return None
    shown = MECHANISMS.get(rest, rest) if first == "requires" else rest
    return replace(found, label=found.label.replace("{}", clean(shown, 100)))


def outcome_order(found: Mapping[str, float]) -> list[str]:
    """Outcomes that occurred in the order of the tables, unknown ones last."""
    seen = {outcome for outcome, n in found.items() if n}
    return [o for o in model.OUTCOMES if o in seen] + sorted(seen - set(model.OUTCOMES))


def outcome_text(outcome: str) -> str:
    return OUTCOMES.get(outcome, clean(outcome, 40))


def outcome_count_text(outcome: str, n: int) -> str:
    """Format a count of an outcome: `1 HTTP error`, `80 HTTP errors`, `17 ok`."""
    text = outcome_text(outcome) if n == 1 else _OUTCOMES_PLURAL.get(outcome, outcome_text(outcome))
    return f"{number(n)} {text}"


def state_text(state: object) -> str:
    return STATES.get(str(state), clean(state, 20))


Blamed = FailureResult | IncidentRecord


def severity_text(failure: Blamed) -> str:
    text = SEVERITY.get(failure.severity, clean(failure.severity, 30))
    return f"{text} before the load, not counted" if failure.before_load else text


def cause_text(failure: Blamed) -> str:
    cause = cause_of(failure)
    own = "" if cause.who == "attack" else " (not caused by our attacks)"
    return f"{CAUSE[cause.who]}; {clean(cause.why, 160)}{own}"


def is_server_fault(failure: Blamed) -> bool:
    """True for a failure during the load that no attack of ours caused."""
    return failure.attribution == "server" and not failure.before_load


def worst_first(failure: Blamed) -> tuple[int, int]:
    """Sort key of failures: the server's own first, then by severity."""
    return 2 if failure.before_load else 0 if is_server_fault(failure) else 1, severity_rank(failure.severity)


# -- rules: expectations and checks --------------------------------------------------------------------------------


@dataclass(frozen=True)
class RuleText:
    """Label, found and expected value of an expectation or a check."""

    label: str
    found: str
    expected: str
    sentence: str


_SHARE_OF = re.compile(r"(?P<share>[\d.]+ ?%) \((?P<part>\d+) of (?P<whole>\d+)(?:; (?P<missed>.*))?\)")
_SHORTER = re.compile(r"(?P<whole>[\d,]+) of (?P=whole) outputs; (?P<n>[\d,]+) shorter: (?P<why>.*)")
_MISSED_PART = re.compile(r"(\d+) missed: (\w+|why is not known)")
_OPERATORS = "=<>!"


def rule_text(rule: CheckResult) -> RuleText:
    """Describe an expectation or a check of verdict.json. Examples: `hangs: 0 (expected == 0)`, `run completed`."""
    name = rule.name
    expected, found = unify_units(clean(rule.expected, 160)), unify_units(clean(rule.actual, 300))
    passed = rule.verdict == "pass"
    text = check_text(name)
    if text is None:
        label = unify_units(clean(name, 160))
        if expected and label.endswith(expected):  # the whole expression stands in the name
            label = label.removesuffix(expected).rstrip(" =<>!")
            expected = unify_units(clean(name, 160)).removeprefix(label).strip()
        return RuleText(label, found, expected, f"{label}: {_with_expected(found, expected)}")
    if passed and (shorter := _SHORTER.fullmatch(found)):
        found = f"{shorter['n']} of {shorter['whole']} answers are shorter than asked: {shorter['why']}"
        text = replace(text, label="output lengths")
    if rule.accepted:  # it proved nothing
        return RuleText(text.label, found, "", f"{text.label}: {found}")
    if passed and text.passed and not any(c.isdigit() for c in found):
        return RuleText(text.label, text.passed, "", f"{text.label} {text.passed}")
    if name == "load_delivered" and (share := _SHARE_OF.fullmatch(rule.actual)):
        return _delivered(text.label, share, expected)
    if name == "exposure" and found.replace(",", "").isdigit():
        counted, _, least = expected.partition(" >= ")
        found, expected = f"{found} {counted.replace('_', ' ')}", f">= {least}"
    if passed and expected[:1] not in _OPERATORS:
        return RuleText(text.label, found, "", f"{text.label}: {found}")
    return RuleText(text.label, found, expected, f"{text.label}: {_with_expected(found, expected)}")


def _with_expected(found: str, expected: str) -> str:
    if not expected:
        return found
    return f"{found} (expected {expected})" if expected[0] in _OPERATORS else f"{found} (expected: {expected})"


def _delivered(label: str, share: re.Match[str], expected: str) -> RuleText:
    part, whole = int(share["part"]), int(share["whole"])
    percent = unify_units(share["share"])
    missed = [f"{n} ({MISSED.get(why, 'unknown reason')})" for n, why in _MISSED_PART.findall(share["missed"] or "")]
    rest = f"; not sent: {', '.join(missed)}" if missed else ""
    found = f"{number(part)} of {plural(whole, 'request')}"
    return RuleText(
        label, f"{found} ({percent}){rest}", expected, f"{label}: {found} ({percent}, expected {expected}){rest}"
    )


def is_normal(rule: CheckResult) -> bool:
    """True for a rule that passed and says nothing that a reader should know."""
    remarkable = rule.name in ("asked_lengths", "image_usage") or _SHORTER.fullmatch(rule.actual)
    return rule.verdict == "pass" and not remarkable


def advice_text(check: CheckResult) -> str:
    """Next step for a check that is unknown; empty for other checks."""
    name = check.name
    if check.verdict != "unknown":
        return ""
    if name == "load_delivered":
        known = [advice for why, advice in _MISSED_ADVICE.items() if f"missed: {why}" in check.actual]
        return "; ".join(known) or CHECKS[name].advice
    if name == "shed" and QUOTA_SPENT in check.actual:
        return "raise the quota or the budget of the API key; a lower rate does not help"
    if NOT_ASKED in check.actual:
        return "run without --no-questions, or longer"
    text = check_text(name) or CHECKS.get(name.partition(" ")[0])
    return text.advice if text else ""


# -- the verdict as a whole ----------------------------------------------------------------------------------------


def target_text(verdict: Verdict) -> str:
    """Describe the target of a run. Example: `embedded server (a simulation inside loadchaos): vllm 0.18.0 sim`."""
    target = verdict.target
    model = " ".join(clean(part, 80) for part in (target.dialect, target.version, target.model) if part)
    url = clean(target.url or "", 120) if target.kind == "external" else ""
    return TARGET.get(target.kind, "unknown target") + (f" {url}" if url else "") + (f": {model}" if model else "")


def one_line(verdict: Verdict) -> str:
    """Summarise a verdict: the worst failure, else the first rule not met, else the number of requests."""
    run = next((check for check in verdict.checks if check.name == "run"), None)
    if verdict.exit_code in _BEFORE_LOAD and (run is None or run.verdict != "pass"):
        return clean((run.actual if run else "") or "the run ended before any load", 400)
    failures = [f for f in verdict.failures if not (f.accepted or f.before_load)]
    worst = sorted([f for f in failures if is_server_fault(f)] or failures, key=worst_first)
    if worst and verdict.verdict == "fail":
        others = f", and {plural(len(worst) - 1, 'more failure')}" if len(worst) > 1 else ""
        return f"{severity_text(worst[0])}: {clean(worst[0].id, 80)}{others}"
    rules = [*verdict.expectations, *verdict.checks]
    stopped = verdict.exit_code in exit_codes.BY_SIGNAL
    decisive = "run" if stopped else "requests_seen"  # nothing else was judged then
    rules.sort(key=lambda rule: rule.name != decisive)
    missed = [r for r in rules if r.verdict == verdict.verdict != "pass"]
    if missed:
        others = f", and {number(len(missed) - 1)} more" if len(missed) > 1 else ""
        return f"{rule_text(missed[0]).sentence}{others}"
    if traffic := [check.actual for check in verdict.checks if check.name == "traffic"]:  # of others: no requests
        logs = [check.actual for check in verdict.checks if check.name in ("watching", "server_log")]
        return f"no death, no hang, no failure seen: {clean('; '.join([*traffic, *logs]), 400)}"
    ok = verdict.outcomes.get("ok", 0)
    if ok == verdict.sent:
        return f"{plural(ok, 'request')} ok"
    shown = {outcome: n for outcome, n in verdict.outcomes.items() if outcome != "missed"}
    counts = ", ".join(outcome_count_text(o, shown[o]) for o in outcome_order(shown))
    return f"{plural(verdict.sent, 'request')}: {counts}"


def worst_cause(verdict: Verdict) -> str:
    """Title and cause of the worst failure that counts; empty without one."""
    failures = [f for f in verdict.failures if not (f.accepted or f.before_load)]
    if verdict.verdict != "fail" or not failures:
        return ""
    worst = min(failures, key=worst_first)
    return f"{clean(worst.title, 400)}: {cause_text(worst)}"


def passed_text(verdict: Verdict) -> str:
    """Count the expectations that were met, the checks that passed, and those that are accepted without a proof; empty
    without any, and without a load.
    """
    met = sum(r.verdict == "pass" for r in verdict.expectations)
    passed = sum(r.verdict == "pass" and not r.accepted for r in verdict.checks)
    accepted = [r.accepted for r in verdict.checks if r.accepted]
    why = clean("; ".join(dict.fromkeys(accepted)), 200)
    texts = (
        (met, f"{plural(met, 'expectation')} met{_limits_met(verdict)}"),
        (passed, f"{plural(passed, 'check')} passed"),
        (len(accepted), f"{plural(len(accepted), 'check')} accepted without a proof: {why}"),
    )
    return ", ".join(text for n, text in texts if n and verdict.sent)


_FIGURE_END = re.compile(r" \(|, |: ")
_MOST_LIMITS = 6


def _is_limit(expected: str) -> bool:
    return expected[:1] in _OPERATORS and expected != "== 0"


def _limits_met(verdict: Verdict) -> str:
    """The figure of each limit that was asked for and met, in parentheses; not of counts that are 0."""
    asked = [rule for rule in verdict.expectations if rule.verdict == "pass" and _is_limit(rule.expected)]
    shown = [
        f"{clean(rule.name, 60)} {rule.expected}: {unify_units(_FIGURE_END.split(clean(rule.actual, 200), maxsplit=1)[0])}"
        for rule in asked
        if f"{rule.name} {rule.expected}" not in model.DEFAULT_EXPECT
    ]
    return f" ({'; '.join(shown[:_MOST_LIMITS])}{'; ...' if len(shown) > _MOST_LIMITS else ''})" if shown else ""


def generator_text(verdict: Verdict) -> str:
    generator = verdict.generator
    lag = generator.send_lag_p99_s
    text = f"generator delay p99 {duration(lag)}" if lag is not None else "generator delay unknown"
    if stale := generator.stale_connections:
        closed = "that the server had closed was" if stale == 1 else "that the server had closed were"
        text += f"; {plural(stale, 'idle connection')} {closed} replaced"
    if resent := generator.retries:
        text += f"; {plural(resent, 'request')} sent again after an idle connection was closed without an answer"
    if pauses := generator.backed_off:
        text += f"; {plural(pauses, 'pause')} of users after instant errors (limits: backoff)"
    if slots := generator.slots:
        text += f"; {'; '.join(clean(s, 200) for s in slots)}. The load was lighter than planned"
    if generator.reader is not None:
        text += f"; streams read {'natively' if generator.reader == 'native' else 'in Python alone'}"
    if host := generator.host:
        text += f"; on the machine of loadchaos {clean(' and '.join(host), 300)}"
    if generator.governor not in ("", "performance"):
        text += f"; the frequency governor of its CPUs is {clean(generator.governor, 60)}"
    if not generator.limited:
        return text
    why = "; ".join(clean(w, 200) for w in generator.why) or "see verdict.json"
    return f"loadchaos itself was the limit ({why}): its latencies and throughput say nothing about the server; {text}"


def lower_bounds_text(verdict: Verdict) -> str:
    n = sum(kinds.lower_bounds for kinds in verdict.latency.values())
    if not n:
        return ""
    return f"{plural(n, 'request')} timed out and {'counts' if n == 1 else 'count'} with the time until the timeout."


# -- failures ------------------------------------------------------------------------------------------------------


def when_text(verdict: Verdict, failure: FailureResult) -> str:
    first = since_load(verdict, failure.first_seen, failure.first_seen_s)
    noticed = failure.noticed_after_s
    return first + (f"; noticed {duration(noticed)} later" if noticed and noticed >= 0.001 else "")


def requests_text(n: int | None) -> str:
    return "" if n is None else plural(n, "request")


def lost_text(failure: FailureResult) -> str:
    lost = requests_text(failure.lost_requests)
    back = failure.recovered_after_s
    if back is None:
        return lost
    return f"{lost}; healthy again after {duration(back)}" if lost else f"healthy again after {duration(back)}"


def incident_paths(failure: FailureResult) -> list[str]:
    """Folders of a failure's incidents, relative to the run folder. A path that leaves `incidents/` is left out."""
    names = [n for n in (failure.incident, *(failure.incidents or ())) if n]
    inside = [n.removeprefix("incidents/") for n in names]
    return [f"incidents/{n}" for n in dict.fromkeys(inside) if "/" not in n and ".." not in n]


def failure_evidence(failure: FailureResult) -> str:
    return "" if failure.wrong_answers else evidence_text(failure.evidence)


def evidence_text(evidence: Evidence | CandidateLine) -> str:
    """Format the proving line: `server.log:1234  AssertionError: ...`."""
    where = clean(evidence.source or "", 80)
    if where and evidence.line is not None:
        where += f":{evidence.line}"
    return f"{where}  {clean(evidence.text or '', 400)}".strip()


def wrong_answer_texts(failure: FailureResult) -> list[str]:
    found = []
    for wrong in (failure.wrong_answers or ())[:_MOST_WRONG]:
        at = wrong.first_difference
        both = (("expected", wrong.expected), ("got", wrong.got))
        texts = [f"{label} {clean(text, 160)!r}" for label, text in both if text]
        shown = ", ".join(texts) + (f" (they differ from character {number(at)} on)" if at else "")
        parts = [shown, clean(wrong.summary, 300)]
        parts += [f"rule {clean(rule, 160)}"] if (rule := wrong.facts.get("rule")) else []
        parts += [f"found by {clean(wrong.found_by, 40)}"] if wrong.found_by else []
        found.append(f"{clean(wrong.subject, 80)}: {'; '.join(p for p in parts if p)}")
    return found


_MOST_WRONG = 3


def known_text(known: KnownIssue) -> str:
    """Format a known issue; `vllm-project/vllm#38551` becomes its URL."""
    path = issue_path(known.issue)
    parts = [f"https://github.com/{path}" if path else clean(known.issue, 200), clean(known.title or "", 160)]
    fixed = clean(known.fixed or "", 120)
    parts.append(f"fixed {'in' if fixed[0].isdigit() else 'by'} {fixed}" if fixed else "")
    parts += [
        f"{label} {clean(text, 120)}" for label, text in (("state", known.state), ("seen in", known.seen)) if text
    ]
    parts.append(clean(known.standing or "", 200))
    return ", ".join(p for p in parts if p)


def issue_path(issue: str) -> str:
    """Path on GitHub of an issue such as `vllm-project/vllm#38551`; empty for any other text."""
    found = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", issue)
    return f"{found[1]}/issues/{found[2]}" if found else ""


def remedy_text(remedy: str) -> str:
    return clean(remedy, 1200)


def accepted_text(failure: FailureResult) -> str:
    """Say why a failure is accepted, or why its acceptance does not hold; empty if the profile does not name it."""
    why = clean(failure.acceptance, 300)
    if failure.accepted:
        return why or "by the profile"
    return f"no: {why}" if why else ""
