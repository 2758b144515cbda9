"""A profile in plain words: what will be sent, how much of it, what is done to the server, and what would be a pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from loadchaos.core.model import DEFAULT_EXPECT
from loadchaos.core.units import format_duration
from loadchaos.profile import expectation, trace
from loadchaos.profile.attack import AttackPlan
from loadchaos.profile.load import Phase
from loadchaos.profile.pacing import phase_requests, planned_requests, replayed
from loadchaos.profile.profile import Profile
from loadchaos.profile.steps import steps
from loadchaos.profile.target import OnDeath
from loadchaos.profile.traffic import OutputOptions, Traffic

_GUESSED_SECONDS_A_TOKEN = 0.02
_FIRST_TOKEN_S = 0.5
_TIMETABLE_STEPS = 5
_LONGEST_CYCLE = 20


def explain(profile: Profile, seed: int = 0) -> str:
    """Several lines, wrapped by nobody: for a terminal."""
    planned = planned_requests(profile.load, seed)
    lines = [f"{profile.name}: {profile.about}".rstrip(": "), "", *_target(profile), "", "It sends"]
    lines += [f"  {_traffic(profile, t, planned)}" for t in profile.traffic]
    lines += ["", "like this"]
    lines += [f"  {line}" for line in _phases([_phase(p) for p in profile.load])]
    lines += [f"  note: {told}" for told in profile.warnings()]
    lines += ["", *_cost(profile, planned, seed), *_attacks(profile), *_expectations(profile), *_first(profile, seed)]
    return "\n".join(lines)


def _target(profile: Profile) -> Iterator[str]:
    embedded, launch = profile.target.embedded, profile.target.launch
    yield "Against the server given by --target; without one,"
    if launch is not None:
        yield f"  it starts: {' '.join(launch.command)}"
    elif embedded is not None:
        planted = f"with planted: {', '.join(embedded.defects)}" if embedded.defects else "with nothing planted"
        era = f" {embedded.era}" if embedded.era else ""
        yield f"  against the embedded server, a model of {embedded.dialect}{era}, {planted}"
    else:
        yield "  it does not run: the profile brings no server"
    if profile.requires:
        yield f"  The server must have: {', '.join(profile.requires)} (else a pass proves nothing, or the run is refused)"
    yield f"  If it dies, {_on_death(profile.target.on_death)}"


def _on_death(on_death: OnDeath) -> str:
    if on_death.restart is not None:
        return f"it is started again, at most {on_death.restart.at_most} times"
    if on_death.wait is None:
        return "the run ends"
    most = f", {format_duration(on_death.wait.at_most)} at most" if on_death.wait.at_most is not None else ""
    deaths = f"; after {on_death.wait.deaths} deaths the run ends" if on_death.wait.deaths else ""
    return f"the load waits for its return{most}{deaths}"


def _traffic(profile: Profile, traffic: Traffic, planned: int | None) -> str:
    part = traffic.weight / sum(t.weight for t in profile.traffic)
    share = f"{part:.0%} of requests" + (f" (about {round(part * planned):,})" if planned is not None else "")
    what = " and ".join(_words(name, options) for name, options in traffic.payload_options.items())
    behaviours = "".join(f"; {b.share * 100:g}% {b.name}" for b in traffic.behaviours)
    expect = "" if tuple(traffic.expect) == ("ok",) else f"; right is {' or '.join(traffic.expect)}"
    stream = "" if traffic.stream else ", not streamed"
    return f"{traffic.name}: {share}: {what}, {_output(traffic)}{_lengths(profile)}{stream}{behaviours}{expect}"


def _lengths(profile: Profile) -> str:
    """Lengths of a profile do not hold where a trace has its own."""
    traces = [phase.trace is not None for phase in profile.load]
    if all(traces):
        return " (in place of these lengths those of the trace)"
    return " (where a trace is replayed, its lengths in place of these)" if any(traces) else ""


def _words(name: str, options: object) -> str:
    describe = getattr(options, "describe", None)
    return str(describe()) if describe is not None else name


def _output(traffic: Traffic) -> str:
    asked, output = _asked(traffic), traffic.output
    several = " in each answer" if _answers(traffic) > 1 else ""
    if asked is None:
        return (
            f"exactly {output.exact} tokens out{several}"
            if output.exact
            else f"at most {output.max} tokens out{several}"
        )
    bounds = [n for n in asked if n is not None]
    if len(bounds) < len(asked):
        share = f" in {len(asked) - len(bounds)} of {len(asked)}" if bounds else ""
        return f"output not bounded by the profile{share}"
    return f"at most {max(bounds):g} tokens out{several}"


def _asked(traffic: Traffic) -> Sequence[float | None] | None:
    """The most tokens of output each request asks for, in turn, where a payload says so itself; None: not bounded."""
    given = [options for options in traffic.payload_options.values() if hasattr(options, "outputs")]
    return given[0].outputs(_mean(traffic.output)) if given else None


def _mean(output: OutputOptions) -> float:
    wanted = output.exact or output.max
    return (wanted.low + wanted.high) / 2 if wanted else 0.0


def _answers(traffic: Traffic) -> float:
    """How many answers a request asks for."""
    given = [options.answers() for options in traffic.payload_options.values() if hasattr(options, "answers")]
    return float(given[0]) if given else 1.0


def _tokens_out(traffic: Traffic, counts: Sequence[float] | None) -> float:
    """The most tokens of output that so many requests in each phase ask for, as far as bounded; None: one on average."""
    asked = [n or 0.0 for n in _asked(traffic) or (_mean(traffic.output),)]
    if counts is None:
        return sum(asked) / len(asked) * _answers(traffic)
    turns = [divmod(round(n), len(asked)) for n in counts]  # each phase begins with the first
    return sum(times * sum(asked) + sum(asked[:more]) for times, more in turns) * _answers(traffic)


def _phases(told: Sequence[str]) -> Iterator[str]:
    """Phase by phase; those that come again and again are told once."""
    number = 0
    while number < len(told):
        lengths = range(1, min(_LONGEST_CYCLE, (len(told) - number) // 2) + 1)
        found = [(length * times, -length) for length in lengths if (times := _times(told, number, length)) > 1]
        covered, shortest = max(found, default=(1, -1))
        length, times = -shortest, covered // -shortest
        if times > 1:
            yield f"{number + 1} to {number + covered}. {times} times:"
            yield from (f"     {line}" for line in told[number : number + length])
        else:
            yield f"{number + 1}. {told[number]}"
        number += covered


def _times(told: Sequence[str], number: int, length: int) -> int:
    """How often the next `length` phases come one after the other."""
    block, times = told[number : number + length], 1
    while told[number + times * length : number + (times + 1) * length] == block:
        times += 1
    return times


def _phase(phase: Phase) -> str:
    if phase.burst is not None:
        again = f", {phase.repeat} times, every {format_duration(phase.every or 0)}" if phase.repeat > 1 else ""
        return f"{phase.burst} requests at once{again}"
    if phase.trace is not None:
        pace = "" if phase.speed == 1 else f" at {phase.speed:g} times its pace"
        return f"the requests of {Path(phase.trace).name} as they were recorded{pace}, at most {phase.slots} in flight"
    if phase.rate is not None:
        to = f" to {phase.to:g}/s" if phase.to else ""
        return (
            f"{phase.rate:g} requests a second{to} ({_law(phase)}) for {format_duration(phase.for_ or 0)}, "
            f"at most {phase.slots} in flight"
        )
    users = (
        f"{phase.slots} user{'s' if phase.slots > 1 else ''}, each with its next request as soon as the last is done"
    )
    if phase.for_ is not None:
        return f"{users}, for {format_duration(phase.for_)}"
    if phase.rounds == 1:
        return f"{users}: {phase.requests} requests in all"
    drain = "; every round begins with an idle server" if phase.between == "drain" else ""
    return f"{users}: {phase.rounds} rounds of {phase.requests} requests{drain}"


def _law(phase: Phase) -> str:
    if phase.law == "gamma":
        return f"gamma with burstiness {phase.burstiness:g}"
    if phase.law == "step":
        return f"step, {phase.steps} levels"
    if phase.law == "spike":
        return f"spike after {format_duration(phase.at or 0)} for {format_duration(phase.width or 0)}"
    if phase.law == "day":
        return f"day of {format_duration(phase.period)}, its peak after {format_duration(phase.at or 0)}"
    return phase.law


def _cost(profile: Profile, planned: int | None, seed: int) -> Iterator[str]:
    played = [arrival for phase in profile.load if phase.trace is not None for _, arrival in replayed(phase)]
    counts = None
    if planned is not None:
        counts = [0 if p.trace is not None else phase_requests(p, seed, i) or 0 for i, p in enumerate(profile.load)]
    sums: dict[str, float] = {}
    output = 0.0
    weights = sum(t.weight for t in profile.traffic)
    for traffic in profile.traffic:
        part = traffic.weight / weights
        for options in traffic.payload_options.values():
            for name, value in getattr(options, "per_request", dict)().items():
                sums[name] = sums.get(name, 0.0) + part * value
        output += (
            part * _tokens_out(traffic, None) if counts is None else _tokens_out(traffic, [part * c for c in counts])
        )
        if counts is not None:
            output += part * _answers(traffic) * sum(a.output_tokens for a in played)
    n = 1 if planned is None else planned
    yield f"That is {planned:,} requests, and about" if planned is not None else "A request has on average about"
    sent = []
    if "tokens" in sums:
        ours = (
            sums["tokens"] * n if counts is None else sums["tokens"] * sum(counts) + sum(a.input_tokens for a in played)
        )
        sent.append(f"{_amount(ours)} tokens of text")
    if "whole_contexts" in sums:
        sent.append(f"{_amount(sums['whole_contexts'] * n)} times the whole context of the model")
    if "images" in sums:
        sent.append(f"{_amount(sums['images'] * n)} images{_image_tokens(sums, n)}")
    if "bodies" in sums:
        sent.append(f"{_amount(sums['bodies'] * n)} requests of a file, whose tokens are not counted beforehand")
    unbounded = [t.name for t in profile.traffic if None in (_asked(t) or ())]
    if len(unbounded) < len(profile.traffic):
        sent.append(f"at most {_amount(output)} tokens of output")
    if unbounded:
        sent.append(f"the output of {' and '.join(unbounded)}, which the profile does not bound")
    yield f"  {', '.join(sent)}"
    yield f"  {_duration(profile, output / n, bounded=not unbounded)}"


def _image_tokens(sums: Mapping[str, float], n: int) -> str:
    counted = sums["images"] - sums.get("uncounted_images", 0.0)
    if counted <= 0:
        return ""
    which = f"{_amount(counted * n)} of them " if "uncounted_images" in sums else ""
    return f" ({which}{_amount(sums['image_tokens'] * n)} tokens)"


def _amount(value: float) -> str:
    """Whole numbers, but a share of one as such: 0.2 images a request are not 0."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _duration(profile: Profile, output: float, *, bounded: bool) -> str:
    if not bounded and any(phase.for_ is None and phase.trace is None for phase in profile.load):
        return (
            "How long it takes is not known: what the profile does not bound, the server may make as long as it likes"
        )
    each = _FIRST_TOKEN_S + output * _GUESSED_SECONDS_A_TOKEN
    seconds = 0.0
    for phase in profile.load:
        if phase.trace is not None:
            whole = trace.read(phase.trace)[-1].at * phase.unit / phase.speed
            seconds += min(whole, phase.for_ or whole) + each
        elif phase.for_ is not None:
            seconds += phase.for_
        elif phase.burst is not None:
            seconds += (phase.repeat - 1) * (phase.every or 0) + each
        else:
            seconds += phase.rounds * -(-(phase.requests or 0) // phase.slots) * each
    return f"It takes about {format_duration(max(1.0, round(seconds)))}, if a token takes 20 ms"


def _attacks(profile: Profile) -> Iterator[str]:
    yield ""
    if not profile.attacks:
        yield "Nothing is done to the server beside the load"
    for attack in profile.attacks:
        held = f" for {format_duration(attack.for_)}" if attack.for_ is not None else ""
        state = "".join(f", once {name} {text.strip()}" for name, text in attack.when.items())
        yield f"Attack: {attack.operation}{held} {_when(attack)}{state}, on {attack.on}"
    harms = profile.dangers()
    if harms:
        yield f"Against a server loadchaos did not start this needs --authorize HOST:PORT, for {'; '.join(harms)}"


def _when(attack: AttackPlan) -> str:
    times = f", {attack.times} times" if attack.times else ""
    if attack.trigger is not None:
        key, act = attack.trigger
        return f"each time {act} {'is done' if key == 'after' else 'takes hold'}{times}"
    if isinstance(attack.during, tuple):
        begin, end = map(format_duration, attack.during)
        window = f" from {begin} to {end}"
    else:
        window = f" from {format_duration(attack.after)} on" if isinstance(attack.after, float) and attack.after else ""
    if attack.every is not None:
        return f"every {format_duration(attack.every)}{window}{times}"
    if isinstance(attack.during, tuple):
        return f"once, {format_duration(attack.during[0])} after the load begins"
    after = attack.after if isinstance(attack.after, float) else 0.0
    return f"once, {format_duration(attack.at if attack.at is not None else after)} after the load begins"


def _expectations(profile: Profile) -> Iterator[str]:
    yield ""
    yield "It passes if" if profile.expect else "It passes if (the profile says nothing, so the usual)"
    for text in profile.expect or DEFAULT_EXPECT:
        yield f"  {text:28} {expectation.parse(text, profile.traffic_names()).meaning()}"
    if profile.exposure is not None:
        yield f"and the mechanism was met: {profile.exposure.count} at least {profile.exposure.at_least}"
    for accepted in profile.accept:
        most = f", at most {accepted.at_most} times" if accepted.at_most else ""
        yield f"Accepted until {accepted.until}{most}: {accepted.id}, because {accepted.because}"


def _first(profile: Profile, seed: int) -> Iterator[str]:
    yield ""
    yield f"The first steps with seed {seed}"
    for step in islice(steps(profile, seed), _TIMETABLE_STEPS):
        due = "when a user is free" if step.due_s is None else f"at {step.due_s:.3f} s"
        yield f"  {step.index}: {step.traffic}, {due}, {step.behaviour}"
