"""Group matches into failures: one per death, named by its root cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from loadchaos.analysis.classify.last_words import writer_distance
from loadchaos.analysis.classify.match import EVIDENCE_CHARS, Match, near
from loadchaos.analysis.classify.signature_file import UNCAUGHT, UNEXPLAINED_END
from loadchaos.analysis.failure import DEADLY, Failure
from loadchaos.core.model import Severity

_ONE_DEATH_S = 60.0  # a dying server logs for less than this; a restart takes longer or logs its start
PASSING_ON = ("CancelledError", "ExceptionGroup", "BaseExceptionGroup")
"""Exceptions that only pass another one on."""
_SAME_LINES = 2  # a panic is a line with its place and one with its text
_ENGINES = ("EngineCore", "Worker")  # who writes, as vLLM puts it before a line


def group(
    matches: Iterable[Match],
    *,
    quiet: bool = True,
    context: Sequence[Match] = (),
    leftover: list[Match] | None = None,
) -> list[Failure]:
    """Failures in the order of their evidence.

    Args:
        matches: new matches.
        quiet: leave out client errors that ended in no 500.
        context: earlier matches that were grouped already (300 s of them are enough). They may explain new ones, and an
            echo of a death among them is not reported again.
        leftover: takes new exceptions that no signature knows and that no death followed.
    """
    old = {id(m) for m in context}
    by_source: dict[str, list[Match]] = {}
    for match in (*context, *matches):
        by_source.setdefault(str(match.evidence.source), []).append(match)
    found: list[Failure] = []
    for of_source in by_source.values():
        for life in _lives(of_source):
            found += _life(life, old, quiet=quiet, leftover=leftover)
    found.sort(key=lambda f: (f.at_ns, f.evidence.line))
    return _merged(found)


def _lives(matches: Sequence[Match]) -> list[list[Match]]:
    """Split matches into lives of the server. The cause of one death is not used for the next death."""
    lives: list[list[Match]] = [[]]
    for match in matches:
        if match.role == "start":
            lives.append([])
        else:
            lives[-1].append(match)
    return [life for life in lives if life]


def _life(life: Sequence[Match], old: set[int], *, quiet: bool, leftover: list[Match] | None) -> list[Failure]:
    used = set(old)
    explained: set[int] = set()  # by an earlier death: one cause kills once
    loading = {m.chain for m in life if m.loading and m.chain}
    for match in life if loading else ():
        match.loading |= match.chain in loading
    failures = []
    survived = {m.id for m in life if m.survived}
    for match in life:  # the last one of a kind that killed nobody before has no answer after it
        doubted = match.survived or (match.logged and match.role == "cause" and match.id in survived)
        if doubted and not any(_shows_death(m) and near(m, match, _ONE_DEATH_S) for m in life):
            match.severity = "request"
    life = _without_refusals(_without_torn_echoes(_without_explained_end(life)))
    deaths = _deaths(life)
    for cluster in deaths:
        failure, by = _death(cluster, life, used, explained)
        # Reported before, unless only its envelope was and this is the cause, which came late.
        if not any(id(m) in old for m in cluster) or (by.role == "cause" and id(by) not in old):
            failures.append(failure)
    rest = _without_refined([m for m in life if (id(m) not in used or id(m) in old) and not m.unknown], life)
    unknown = _unknown_roots(life)
    echoed = {m.chain for m in rest if m.role == "echo" and m.chain}
    named = {m.chain for m in life if m.role == "cause" and not m.unknown and m.chain}
    if leftover is not None:
        for match in unknown.values():
            reported = match.chain in echoed | named or id(match) in used or match.warned
            if not reported and not any(near(match, m, _ONE_DEATH_S) for cluster in deaths for m in cluster):
                leftover.append(match)
    # A cause that no echo followed does not count where a client made it, or where a logger only warned of it.
    clients = _of_clients(life) if quiet else set()
    unechoed = (m for m in rest if m.role == "cause" and m.chain not in echoed)
    silent = {id(m) for m in unechoed if id(m) in clients or _is_doubted(m)}
    return failures + _of_requests(rest, old | silent, unknown, named)


def _shows_death(match: Match) -> bool:
    return match.role == "echo" and match.severity in DEADLY and not match.signature.weak


def _unknown_roots(life: Sequence[Match]) -> dict[int, Match]:
    """The root of each traceback that no signature knows, by chain. It is the first of the chain that passes none on."""
    roots: dict[int, Match] = {}
    wraps: dict[int, Match] = {}  # the last of each chain whose message says more
    for match in life:
        if match.unknown and match.chain:
            first = roots.setdefault(match.chain, match)
            if first is not match and (first.id, first.line) == (match.id, match.line):
                first.repeats += match.repeats + 1  # those that the classifier left out
            elif match.values.get("message") and match.values["message"] not in (first.evidence.text or ""):
                wraps[match.chain] = match
            if first.values.get("exception") in PASSING_ON and match.values.get("exception") not in PASSING_ON:
                roots[match.chain] = match
    for chain, match in wraps.items():
        root, said = roots[chain], f" -> {match.evidence.text}"
        if root is not match and said not in (root.evidence.text or ""):
            root.evidence = replace(root.evidence, text=f"{root.evidence.text}{said}"[:EVIDENCE_CHARS])
    return roots


def _is_doubted(match: Match) -> bool:
    return match.warned and (match.severity in DEADLY or match.signature.where == "traceback")


def _of_requests(
    matches: Sequence[Match], left_out: set[int], unknown: dict[int, Match], named: set[int]
) -> list[Failure]:
    """Failures of matches that belong to no death. `named` are the chains with a known cause."""
    failures = []
    own: dict[str, tuple[Match, Failure]] = {}  # the newest failed request of each program that a line named
    echoed: set[int] = set()
    last_echo: Match | None = None  # the last echo with a known exception
    engine_cause: Match | None = None  # the engine's own last line on a request: the API server's echo adds nothing
    for match in matches:
        if match.role == "cause" and (match.engine_side or (match.process or "").startswith(_ENGINES)):
            engine_cause = match
        if id(match) in left_out:
            continue
        if match.role == "cause":
            failures.append(
                _failure(match, severity="startup" if match.loading and match.severity == "request" else None)
            )
            if match.severity == "request":
                own[match.signature.file] = match, failures[-1]
            continue
        if match.role != "echo":
            continue
        if not match.chain:
            known = own.get(match.signature.file)
            if known is not None and match.severity == "request" and near(known[0], match, match.signature.within_s):
                cause, failure = known
                if id(cause) in echoed:  # the first one in the access log is the request itself
                    failure.repeats += 1
                echoed.add(id(cause))
                continue
            if engine_cause is not None and near(engine_cause, match, match.signature.within_s):
                continue
        if match.chain and match.chain in named:
            continue
        exception, weak = unknown.get(match.chain), match.signature.weak
        if weak and last_echo is not None and exception is None and near(last_echo, match, 1.0):
            continue  # it only quotes another line
        last_echo = last_echo if exception is None else match
        failures.append(_failure(match, severity="degraded" if weak else match.severity, exception=exception))
    return failures


def _without_torn_echoes(life: Sequence[Match]) -> Sequence[Match]:
    """Drop echoes without traceback and process near a named cause. Two processes that write at once tear prefix and
    text apart, and the echo no longer belongs to its traceback.
    """
    torn = [m for m in life if m.role == "echo" and not m.chain and not m.process]
    causes = [m for m in life if m.role == "cause" and not m.unknown and m.process] if torn else []
    lost = {id(m) for m in torn if any(near(m, c, m.signature.within_s) for c in causes)}
    return [m for m in life if id(m) not in lost] if lost else life


def _without_refusals(life: Sequence[Match]) -> Sequence[Match]:
    """Drop echoes of a request whose traceback has only harmless exceptions. vLLM logs `Error in chat completion stream
    generator` for a 400 inside a stream, too.
    """
    harmless = {m.chain for m in life if m.harmless and m.chain}
    harmless -= {m.chain for m in life if m.role == "cause" and not m.harmless}
    return [m for m in life if m.chain not in harmless or m.role != "echo" or m.severity != "request"]


def _of_clients(life: Sequence[Match]) -> set[int]:
    """Matches that a client caused. These are the quiet ones, and those that a quiet one refines in the same traceback."""
    refined = {(of, m.chain) for m in life if m.signature.quiet and m.chain for of in m.signature.refines}
    return {id(m) for m in life if m.signature.quiet or (m.id, m.chain) in refined}


def _without_explained_end(life: Sequence[Match]) -> Sequence[Match]:
    ends = [m for m in life if m.id == UNEXPLAINED_END.id]
    if not ends:
        return life
    others = [m for m in life if m.role in ("cause", "echo") and not m.unknown and m.id != UNEXPLAINED_END.id]
    return [m for m in life if m not in ends or not any(near(m, other, _ONE_DEATH_S) for other in others)]


def _deaths(life: Sequence[Match]) -> list[list[Match]]:
    """Clusters of deadly matches, one per death. After an envelope the server is dead: later echoes are of that death."""
    clusters: list[list[Match]] = []
    for match in life:
        if match.role not in ("cause", "echo") or match.severity not in DEADLY or match.unknown:
            continue
        if match.warned and match.role == "cause":
            continue
        if match.signature.weak or match.signature.quiet:  # a failed call or import: other lines show a death
            continue
        if clusters and near(clusters[-1][-1], match, max(_ONE_DEATH_S, match.signature.within_s)):
            clusters[-1].append(match)
        else:
            clusters.append([match])
    explained = {m.chain for m in life if m.unknown and m.chain}
    deaths: list[list[Match]] = []
    for cluster in clusters:
        only_echoes = all(m.role == "echo" and m.chain not in explained for m in cluster)
        if only_echoes and deaths and any(m.role == "echo" for m in deaths[-1]):
            deaths[-1] += cluster
        else:
            deaths.append(cluster)
    return deaths


def _death(
    cluster: Sequence[Match], life: Sequence[Match], used: set[int], explained: set[int]
) -> tuple[Failure, Match]:
    echoes = [m for m in cluster if m.role == "echo"]
    chains = {m.chain for m in echoes if m.chain}
    in_cluster = {id(m) for m in cluster}
    causes = [
        m
        for m in life
        if m.role == "cause"
        and id(m) not in explained
        and (
            id(m) in in_cluster
            or (m.chain and m.chain in chains)
            or (
                (m.engine_side or m.severity in ("hang", "node") or _is_of_engine(m))
                and any(near(m, e, e.signature.within_s) for e in echoes)
            )
        )
    ]
    order = {id(m): n for n, m in enumerate(life)}
    causes.sort(key=lambda m: (m.unknown, m.severity not in DEADLY, writer_distance(m.process), order[id(m)]))
    chosen = causes[0] if causes else min(echoes, key=lambda m: (m.signature.vague, order[id(m)]))
    refined = _refined(chosen, life)
    also = list(dict.fromkeys(m.id for m in causes if m.id not in (chosen.id, refined.id) and not m.unknown))
    if refined is not chosen:
        also.insert(0, chosen.id)
    repeats = sum(1 + m.repeats for m in causes if m.id == chosen.id) - 1 if causes else 0
    gone = {m.chain for m in (*cluster, *causes) if m.chain}
    begin = min((order[id(m)] for m in cluster), default=0)
    chosen_ones = {id(m) for m in causes}
    for match in life:
        late_echo = match.role == "echo" and order[id(match)] >= begin and bool(echoes)
        if id(match) in in_cluster or match.chain in gone or late_echo or id(match) in chosen_ones:
            used.add(id(match))
    used.add(id(refined))
    explained.update(chosen_ones)
    severity: Severity = chosen.severity if chosen.severity in (*DEADLY, "node") else "engine_death"
    of_start = any(m.severity == "startup" or m.loading for m in cluster) or any(m.loading for m in causes)
    if chosen.severity == "hang" and all(m.id == UNCAUGHT.id for m in echoes):
        severity = "hang"  # the thread that printed its exception ended, and its process went on
    elif of_start or all(m.starting for m in cluster):
        severity = "startup"
    failure = _failure(refined, severity=severity, repeats=repeats, also=tuple(also), frames=chosen.frames)
    handlers = (m for m in life if m.role == "echo" and m.severity == "request" and m.chain)
    told = (m for m in handlers if m.chain == chosen.chain or m.line == chosen.line)
    of_request = next((_failure(m, exception=refined) for m in told), None)
    above = next((m for m in echoes if m.line == refined.line - 1 and m.process == refined.process), None)
    if above is not None and above is not refined:  # `terminate called ...`, and what() in the line below
        text = f"{above.evidence.text} {(failure.evidence.text or '').strip()}"
        failure = replace(failure, evidence=replace(failure.evidence, text=text))
    return replace(failure, gone=bool(echoes), of_request=of_request), refined


def _is_of_engine(match: Match) -> bool:
    return match.severity != "degraded" and (match.process or "").startswith(_ENGINES)


def _refined(chosen: Match, life: Sequence[Match]) -> Match:
    for _ in range(4):  # a refinement of a refinement of ...
        better = next(
            (
                m
                for m in life
                if chosen.id in m.signature.refines
                and m.id != chosen.id
                and ((m.chain and m.chain == chosen.chain) or near(m, chosen, m.signature.within_s))
            ),
            None,
        )
        if better is None:
            break
        chosen = better
    return chosen


def _without_refined(rest: Sequence[Match], life: Sequence[Match]) -> list[Match]:
    """Drop matches of request failures that a more specific one of the same lines refines."""
    finer = [m for m in life if m.role == "cause" and m.signature.refines and not m.unknown]
    if not finer:
        return list(rest)

    def is_refined(match: Match) -> bool:
        same = (f for f in finer if match.id in f.signature.refines and f is not match)
        return any((f.chain and f.chain == match.chain) or 0 <= f.line - match.line <= _SAME_LINES for f in same)

    return [m for m in rest if m.role != "cause" or m.severity != "request" or not is_refined(m)]


def _failure(
    match: Match,
    *,
    severity: Severity | None = None,
    repeats: int | None = None,
    also: tuple[str, ...] = (),
    frames: tuple[str, ...] = (),
    exception: Match | None = None,
) -> Failure:
    title = f"{match.title}: {exception.title}" if exception is not None else match.title
    return Failure(
        id=match.id,
        severity=severity or match.severity,
        title=title,
        role="echo" if match.role == "echo" else "cause",
        evidence=(exception or match).evidence,
        process=match.process,
        at_ns=match.at_ns or 0,
        frames=match.frames or frames or (exception.frames if exception else ()),
        known=match.known,
        remedy=match.remedy,
        alt=match.alt,
        layer=match.signature.layer,
        why=match.why,
        facts=match.facts,
        repeats=match.repeats if repeats is None else repeats,
        also=also,
        clock_s=match.when_s,
        frame=match.frame or (exception.frame if exception else ""),
    )


def _merged(found: Sequence[Failure]) -> list[Failure]:
    merged: list[Failure] = []
    firsts: dict[tuple[str, str, str], Failure] = {}
    for failure in found:
        first = firsts.setdefault((str(failure.evidence.source), failure.id, failure.title), failure)
        if failure.severity in DEADLY or first is failure:
            merged.append(failure)
        else:
            first.repeats += failure.repeats + 1
            first.last_ns = max(first.last_ns, first.at_ns, failure.at_ns)
    return merged
