"""`loadchaos explain`: description of a profile in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from loadchaos.core import expectation_names
from loadchaos.core.model import DEFAULT_EXPECT, EXPOSURES
from loadchaos.core.units import describe_duration, figure
from loadchaos.profile import request_trace, trace
from loadchaos.profile.arrivals import phase_requests, planned_requests, replayed
from loadchaos.profile.attack import AttackPlan
from loadchaos.profile.correctness import AloneVsLoad
from loadchaos.profile.load import Phase
from loadchaos.profile.profile import AcceptedFailure, Profile
from loadchaos.profile.request_options import RequestContent, SessionContent
from loadchaos.profile.steps import steps
from loadchaos.profile.target import OnDeath
from loadchaos.profile.traffic import Traffic

ASSUMED_SECONDS_PER_TOKEN = 0.02
ASSUMED_FIRST_TOKEN_S = 0.5
_LISTED_STEPS = 5
_LONGEST_CYCLE = 20
_MOST_PHASES = 3


def explain(
    profile: Profile, seed: int = 0, *, target: str | None = None, ends_s: float | None = None, questions: bool = True
) -> str:
    """Describe a profile in several lines of unlimited width. `target` is the server of the run, where it is not the
    profile's; the load ends after `ends_s`, where that is not left to the profile; `questions` are asked before it.
    """
    planned = planned_requests(profile.load, seed)
    lines = [f"{profile.name}: {profile.about}".rstrip(": "), "", *_server(profile, target), "", "Traffic"]
    for traffic in profile.traffic:
        lines += _traffic(profile, traffic, planned)
    lines += ["", "Load"]
    noun = _noun(profile)
    lines += [
        f"  {line}" for line in _numbered([f"{_phase(p, noun)}{_of_traffic(p)}{_warm_up(p)}" for p in profile.load])
    ]
    if any(phase.kind == "open" for phase in profile.load):
        lines.append("  a request that is due while the most are in flight is not sent, and counts as missed")
    if profile.warm_up:
        lines.append(f"  figures leave out the first {describe_duration(profile.warm_up)}, a warm-up")
    if ends_s is not None:
        lines.append(
            f"  the load ends after {describe_duration(ends_s)}, finished or not; the figures below are for all of it"
        )
    lines += [f"  note: {warning}" for warning in profile.warnings()]
    lines += ["", *_cost(profile, planned, seed), "", *_questions(profile, asked=questions), "", *_attacks(profile)]
    lines += ["", *_expectations(profile), "", *_first_requests(profile, seed)]
    return "\n".join(lines)


def load_text(profile: Profile, ends_s: float | None = None) -> str:
    """The load in one sentence: its phases and what is sent; `ends_s` as for `explain`."""
    noun = _noun(profile)
    phases = [f"{_phase(phase, noun)}{_of_traffic(phase)}{_warm_up(phase)}" for phase in profile.load]
    more = f"; and {_count(len(phases) - _MOST_PHASES, 'more phase')}" if len(phases) > _MOST_PHASES else ""
    text = "; then ".join(phases[:_MOST_PHASES]) + more
    if ends_s is not None:
        text += f"; ended after {describe_duration(ends_s)}"
    if len(profile.traffic) > 1:
        return f"{text}; traffic: {', '.join(traffic.name for traffic in profile.traffic)}"
    traffic = profile.traffic[0]
    prompt = " and ".join(options.describe() or name for name, options in traffic.payload_options.items())
    return f"{text}; prompt: {prompt}" + (f"; output: {_output(traffic)}" if traffic.generates else "")


def _server(profile: Profile, target: str | None) -> Iterator[str]:
    embedded, launch = profile.target.embedded, profile.target.launch
    yield "Server"
    if target is not None:
        yield f"  {target}"
    elif launch is not None:
        yield f"  default: loadchaos starts it with: {' '.join(launch.command)}"
    elif embedded is not None:
        version = f" {embedded.era}" if embedded.era else ""
        bugs = f"with the planted bug {' and '.join(embedded.defects)}" if embedded.defects else "without planted bugs"
        yield f"  default: the embedded server, which simulates {embedded.dialect}{version} {bugs}"
    else:
        yield "  default: none, so --target URL is required"
    if target is None and (launch is not None or embedded is not None):
        yield "  your own: --target URL"
    if profile.requires:
        yield f"  it must have: {', '.join(profile.requires)}"
    yield f"  if it dies: {_on_death(profile.target.on_death)}"


def _on_death(on_death: OnDeath) -> str:
    if on_death.restart is not None:
        return f"loadchaos starts it again, at most {_times(on_death.restart.at_most)}"
    if on_death.wait is None:
        return "the run ends"
    most = f", at most {describe_duration(on_death.wait.at_most)}" if on_death.wait.at_most is not None else ""
    deaths = f". After {_count(on_death.wait.deaths, 'death')} the run ends" if on_death.wait.deaths else ""
    return f"the load waits until it is healthy again{most}{deaths}"


def _traffic(profile: Profile, traffic: Traffic, planned: int | None) -> Iterator[str]:
    part = next(part for t, part in traffic_parts(profile) if t is traffic)
    number = f" (about {round(part * planned):,})" if planned is not None else ""
    yield f"  {traffic.name}: {part:.0%} of the {_noun(profile)}s{number}"
    for i, (name, options) in enumerate(traffic.payload_options.items()):
        yield f"    {'prompt:' if i == 0 else '       '} {options.describe() or name}"
    if traffic.sent_to.path != "chat":
        yield f"    endpoint: {traffic.sent_to.sent or traffic.endpoint}"
    if traffic.generates:
        yield f"    output: {_output(traffic)}{_lengths(profile)}{'' if traffic.streams else ', not streamed'}"
    if traffic.behaviours:
        yield f"    clients: {', '.join(f'{b.share * 100:g}% {b.name}' for b in traffic.behaviours)}"
    if tuple(traffic.expect) != ("ok",):
        yield f"    accepted outcomes: {' or '.join(traffic.expect)}"


def _lengths(profile: Profile) -> str:
    traces = [phase.trace is not None for phase in profile.load]
    if all(traces):
        return " (the lengths of the trace replace these)"
    return " (in a phase with a trace, the lengths of the trace replace these)" if any(traces) else ""


def _output(traffic: Traffic) -> str:
    bounds, output = _output_bounds(traffic), traffic.output
    several = " per answer" if _answers(traffic) > 1 else ""
    if bounds is None:
        if output.exact:
            return f"exactly {_tokens(output.exact)}{several}"
        return f"at most {_tokens(output.max)}{several}"
    known = [n for n in bounds if n is not None]
    if len(known) < len(bounds):
        share = f" for {len(bounds) - len(known)} of {len(bounds)} requests" if known else ""
        return f"no limit in the profile{share}"
    return f"at most {_tokens(max(known))}{several}"


def _output_bounds(traffic: Traffic) -> Sequence[float | None] | None:
    """Most output tokens of each request in order, if a payload sets them. An entry is None without a limit."""
    found = (options.outputs(traffic.output.bounds.mean) for options in traffic.payload_options.values())
    return next((bounds for bounds in found if bounds is not None), None)


def _answers(traffic: Traffic) -> float:
    return math.prod(options.answers_per_request() for options in traffic.payload_options.values())


def output_tokens(traffic: Traffic, counts: Sequence[float] | None) -> float:
    """Most output tokens of `counts` requests, one count for each phase. Without counts, the tokens of an average
    request. A request without a limit counts 0.
    """
    bounds = [n or 0.0 for n in _output_bounds(traffic) or (traffic.output.bounds.mean,)]
    if counts is None:
        return sum(bounds) / len(bounds) * _answers(traffic)
    cycles = [divmod(round(n), len(bounds)) for n in counts]  # each phase begins with the first variant
    return sum(whole * sum(bounds) + sum(bounds[:rest]) for whole, rest in cycles) * _answers(traffic)


def _numbered(phases: Sequence[str]) -> Iterator[str]:
    number = 0
    while number < len(phases):
        lengths = range(1, min(_LONGEST_CYCLE, (len(phases) - number) // 2) + 1)
        found = [(length * n, -length) for length in lengths if (n := _repeats(phases, number, length)) > 1]
        covered, shortest = max(found, default=(1, -1))
        length, repeats = -shortest, covered // -shortest
        if repeats > 1:
            yield f"{number + 1} to {number + covered}. {_times(repeats)}:"
            yield from (f"     {line}" for line in phases[number : number + length])
        else:
            yield f"{number + 1}. {phases[number]}"
        number += covered


def _repeats(phases: Sequence[str], number: int, length: int) -> int:
    block, repeats = phases[number : number + length], 1
    while phases[number + repeats * length : number + (repeats + 1) * length] == block:
        repeats += 1
    return repeats


def _of_traffic(phase: Phase) -> str:
    return f", of {' and '.join(phase.traffic)} only" if phase.traffic else ""


def _warm_up(phase: Phase) -> str:
    return " (warm-up: left out of figures)" if phase.warm_up else ""


def _noun(profile: Profile) -> str:
    kinds = {traffic.session is not None for traffic in profile.traffic}
    return "session" if kinds == {True} else "step" if True in kinds else "request"


def _phase(phase: Phase, noun: str) -> str:
    if phase.burst is not None:
        size = f"1 {noun}" if phase.burst == 1 else f"{phase.burst} {noun}s at once"
        again = f", {_times(phase.repeat)}, {describe_duration(phase.every or 0)} apart" if phase.repeat > 1 else ""
        return f"{size}{again}"
    if phase.replay is not None:
        n = len(request_trace.read(Path(phase.replay)).sends)
        again = f", {_times(phase.rounds)}" if phase.rounds > 1 else ""
        return f"the {_count(n, 'recorded request')} of {Path(phase.replay).name} in order of cause{again}"
    if phase.trace is not None:
        pace = "at its own pace" if phase.speed == 1 else f"at {phase.speed:g} times its pace"
        return f"the recorded requests of {Path(phase.trace).name} {pace}, at most {phase.slots} in flight"
    if phase.rate is not None:
        to = f" to {figure(phase.to)}" if phase.to else ""
        ends = [f"for {describe_duration(phase.for_)}"] if phase.for_ else []
        ends += [f"until {_count(phase.requests, noun)}"] if phase.requests is not None else []
        return (
            f"{figure(phase.rate)}{to} {noun}s/s ({_law(phase)}) {' or '.join(ends)}, at most {phase.slots} in flight"
        )
    users = f"{_count(phase.slots, 'user')} in a closed loop"
    if phase.for_ is not None:
        return f"{users} for {describe_duration(phase.for_)}"
    if phase.rounds == 1:
        return f"{users}, {_count(phase.requests or 0, noun)} in total"
    drain = ", each round starts on an idle server" if phase.between == "drain" else ""
    return f"{users}, {phase.rounds} rounds of {_count(phase.requests or 0, noun)}{drain}"


def _law(phase: Phase) -> str:
    at, width, period = map(describe_duration, (phase.at or 0, phase.width or 0, phase.period))
    return {
        "constant": "evenly spaced",
        "poisson": "Poisson arrivals",
        "gamma": f"gamma arrivals with burstiness {phase.burstiness:g}",
        "ramp": "ramp",
        "step": f"{phase.steps} steps",
        "spike": f"spike after {at} for {width}",
        "day": f"daily curve of {period}, peak after {at}",
    }[phase.law]


def _cost(profile: Profile, planned: int | None, seed: int) -> Iterator[str]:
    played = [arrival for phase in profile.load if phase.trace is not None for _, arrival in replayed(phase)]
    counts = None
    if planned is not None:
        counts = [0 if p.trace is not None else phase_requests(p, seed, i) or 0 for i, p in enumerate(profile.load)]
    content = request_means(profile)
    n = 1 if planned is None else planned
    output = takes_s = requests = 0.0
    for traffic, part in traffic_parts(profile):
        if counts is None:
            tokens = part * output_tokens(traffic, None)
        else:
            tokens = output_tokens(traffic, [part * c for c in counts])
            tokens += part * _answers(traffic) * sum(a.output_tokens for a in played)
        session = traffic.session or SessionContent()
        output += tokens * session.requests
        requests += n * part * session.requests
        each_s = part * ASSUMED_FIRST_TOKEN_S + tokens / n * ASSUMED_SECONDS_PER_TOKEN
        takes_s += part * session.think_s + session.in_a_row * each_s
    noun = _noun(profile)
    in_all = "" if noun == "request" else f", at most about {_amount(requests)} requests"
    yield f"Total: {_count(planned, noun)}{in_all}" if planned is not None else f"Average {noun}{in_all}"
    if content.tokens:
        text = content.tokens * n
        if counts is not None:
            text = content.tokens * sum(counts) + sum(a.input_tokens for a in played)
        yield f"  about {_amount(text)} tokens of text"
    if noun != "request":
        yield "  tokens of the prompts of sessions are not known before: they hold the answers"
    in_run = content * n
    for number, what in (
        (in_run.whole_contexts, "prompts as long as the context of the model"),
        (in_run.images, f"images{_image_tokens(content, n)}"),
        (in_run.audio_files, f"audio files, {_amount(in_run.audio_s)} s in all"),
        (in_run.videos, f"videos of {_amount(content.frames / (content.videos or 1))} frames"),
        (in_run.bodies, "requests from a file, with unknown numbers of tokens"),
    ):
        if number:
            yield f"  about {_amount(number)} {what}"
    unbounded = [t.name for t in profile.traffic if None in (_output_bounds(t) or ())]
    if len(unbounded) < len(profile.traffic):
        yield f"  at most {_amount(output)} output tokens"
    if unbounded:
        yield f"  output of {' and '.join(unbounded)}: no limit in the profile"
    yield f"  {_run_time(profile, takes_s, bounded=not unbounded)}"


def traffic_parts(profile: Profile) -> list[tuple[Traffic, float]]:
    """Each traffic with its share of the requests. Where phases send different traffic, a phase without a known number
    of requests counts as much as all others together.
    """
    if not any(phase.traffic for phase in profile.load):
        weights = sum(t.weight for t in profile.traffic)
        return [(traffic, traffic.weight / weights) for traffic in profile.traffic]
    counts = [phase_requests(phase, 0, number) for number, phase in enumerate(profile.load)]
    known = sum(n for n in counts if n is not None) or 1
    parts = dict.fromkeys((t.name for t in profile.traffic), 0.0)
    for phase, count in zip(profile.load, counts, strict=True):
        sent = profile.traffic_of(phase)
        weights = sum(t.weight for t in sent)
        for traffic in sent:
            parts[traffic.name] += traffic.weight / weights * (known if count is None else count)
    whole = sum(parts.values())
    return [(traffic, parts[traffic.name] / whole) for traffic in profile.traffic]


def request_means(profile: Profile) -> RequestContent:
    found = (
        (part, options) for traffic, part in traffic_parts(profile) for options in traffic.payload_options.values()
    )
    return sum((options.per_request() * part for part, options in found), RequestContent())


def _image_tokens(content: RequestContent, n: int) -> str:
    counted = content.images - content.uncounted_images
    if counted <= 0:
        return ""
    which = f"{_amount(counted * n)} of them have " if content.uncounted_images else ""
    return f" ({which}{_amount(content.image_tokens * n)} tokens)"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _run_time(profile: Profile, each: float, *, bounded: bool) -> str:
    if not bounded and any(not phase.timed_s and phase.trace is None for phase in profile.load):
        return "run time: unknown, because the profile does not limit the output"
    seconds = 0.0
    for phase in profile.load:
        if phase.trace is not None:
            whole = trace.read(phase.trace)[-1].at * phase.unit / phase.speed
            seconds += min(whole, phase.for_ or whole) + each
        elif phase.replay is not None:
            seconds += phase.rounds * request_trace.read(Path(phase.replay)).sends[-1].at_s / phase.speed + each
        elif phase.timed_s:
            seconds += phase.timed_s
        elif phase.burst is not None:
            seconds += (phase.repeat - 1) * (phase.every or 0) + each
        else:
            seconds += phase.rounds * -(-(phase.requests or 0) // phase.slots) * each
    return f"run time: about {describe_duration(max(1.0, round(seconds)))} (assuming 20 ms per output token)"


def _attacks(profile: Profile) -> Iterator[str]:
    yield "Attacks" if profile.attacks else "Attacks: none"
    for attack in profile.attacks:
        held = f" for {describe_duration(attack.for_)}" if attack.for_ is not None else ""
        state = "".join(f", when {name} {text.strip()}" for name, text in attack.when.items())
        where = "each replica" if attack.on == "each" else attack.on
        yield f"  {attack.operation}{held}: {_when(attack)}{state}, on {where}"
    dangers = profile.dangers()
    if dangers:
        yield f"Needs --authorize HOST:PORT for a server that is no local engine, because of: {'; '.join(dangers)}"


def _when(attack: AttackPlan) -> str:
    times = f", {_times(attack.times)}" if attack.times else ""
    if attack.trigger is not None:
        key, act = attack.trigger
        return f"{key} each {act}{times}"
    after_s = attack.after if isinstance(attack.after, float) else 0.0
    begin_s = after_s if attack.at is None else attack.at
    window = f", starting {describe_duration(begin_s)} after the load begins" if begin_s else ""
    if isinstance(attack.during, tuple):
        begin_s, end_s = attack.during
        window = f" from {describe_duration(begin_s)} to {describe_duration(end_s)}"
    if attack.every is not None:
        return f"every {describe_duration(attack.every)}{window}{times}"
    return f"once, {describe_duration(begin_s)} after the load begins"


def _questions(profile: Profile, *, asked: bool) -> Iterator[str]:
    yield "Questions"
    if not asked:
        yield "  none: --no-questions"
        return
    parts = [(name, options) for name, options in profile.correctness if options is not None]
    if not parts:
        yield "  none beside the load; before a long one, a few requests like its own to the idle server"
        return
    yield "  before the load, to the idle server: what answers are right and repeatable (--no-questions leaves them out)"
    yield f"  beside the load: {', '.join(f'{name} {_how_often(options)}' for name, options in parts)}"


def _how_often(options: Any) -> str:
    if isinstance(options, AloneVsLoad):
        return f"{options.share:.0%} as many as requests"
    return f"every {describe_duration(options.every)}"


def _expectations(profile: Profile) -> Iterator[str]:
    yield "The run passes if" if profile.expect else "The run passes if (default expectations)"
    for text in profile.expect or DEFAULT_EXPECT:
        yield f"  {text:28} {expectation_names.parse(text, profile.expect_prefixes()).meaning()}"
    if profile.exposure is not None:
        exposure = profile.exposure
        yield f"  {EXPOSURES[exposure.count]}: at least {exposure.at_least} (else the verdict is unknown)"
    for accepted in profile.accept:
        most = f", at most {_times(accepted.at_most)}" if accepted.at_most else ""
        yield f"  accepted until {accepted.until}{most}: {accepted.id}{_which(accepted)}, because {accepted.because}"


def _first_requests(profile: Profile, seed: int) -> Iterator[str]:
    yield f"First {_noun(profile)}s with seed {seed}"
    for step in islice(steps(profile, seed), _LISTED_STEPS):
        due = "when a user is free" if step.due_s is None else f"at {step.due_s:.3f} s"
        behaviour = "" if step.behaviour == "plain" else f", behaviour {step.behaviour}"
        yield f"  {step.index}: {step.traffic}, {due}{behaviour}"


def _tokens(n: object) -> str:
    text = f"{n:g}" if isinstance(n, float) else str(n)
    return f"{text} token{'' if text == '1' else 's'}"


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _which(accepted: AcceptedFailure) -> str:
    words = f" with the text {accepted.text!r}" if accepted.text else ""
    return words + (f" in the frame {accepted.frame}" if accepted.frame else "")
