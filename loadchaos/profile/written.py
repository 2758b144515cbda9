"""Text of a new profile, with comments that explain its keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loadchaos.profile.made import MadeProfile, MadeTraffic
from loadchaos.profile.source import Yaml, yaml_text

_HEAD = """\
# A profile of loadchaos. All keys: docs/profile.md and docs/traffic.md.
#
#   loadchaos check {file}      lists mistakes with file and line
#   loadchaos explain {file}    describes it in words
#   loadchaos run {file} --target http://127.0.0.1:8000
"""
_COMMENTS = {
    "name": "The name of run folders and reports.",
    "target": "Without --target, the server that is built into loadchaos answers (a simulation).",
    "slo": "Limits of each request. `goodput` is the share of requests within all of them.",
    "traffic": "Kinds of request. Several kinds share the load by their `weight`.",
    "load": "Phases, one after the other.",
    "expect": "The verdict: the run fails (exit code 1) if one of these is not met.",
}
_PAYLOADS = {
    "text": "Prompt tokens as the server counts them, chat template included; 100..200 draws a length.",
    "images": "New images in each request; `unique: 80%` repeats some of them.",
    "requests": "The requests of a file, unchanged except for the name of the model.",
    "sampling": "Fields of each request that decide how tokens are drawn.",
}
_OUTPUT = {
    "exact": "Tokens of each answer, if the server can be asked for exactly as many.",
    "max": "Most tokens of an answer.",
}
_LOADS = {
    "rate": "Requests are sent when they are due, whatever the server does. At most `max_in_flight` (256) are under way.",
    "users": "Each user sends the next request when its answer is there.",
    "burst": "All requests at once.",
    "trace": "The arrivals and lengths of a recorded trace.",
}
_MORE = """
# More that a profile can have:
# abort_when: error_rate > 50% for 10s      # ends the load early
# correctness: {replicas: {}}               # questions beside the load whose answers are checked (docs/correctness.md)
# attacks: [{admin: reset_mm_cache, every: 5s}]   # needs --authorize HOST:PORT (docs/attacks.md)
"""


def commented(made: MadeProfile, file: str) -> str:
    """Write a profile as YAML with comments. `file` is its name in the commands of the first comment."""
    return "\n".join([*_HEAD.format(file=file).splitlines(), *_sections(made)]) + "\n" + _MORE


def _sections(made: MadeProfile) -> Iterator[str]:
    lists = {
        "traffic": (line for traffic in made.traffic for line in _entry(traffic)),
        "load": (line for phase in made.load for line in _phase(phase)),
        "expect": (f'  - "{text}"' for text in made.expect),
    }
    for key, value in made.data().items():
        if key != "about":
            yield ""
        if key in _COMMENTS:
            yield f"# {_COMMENTS[key]}"
        if key in lists:
            yield f"{key}:"
            yield from lists[key]
        else:
            yield f"{key}: {_flow(value)}"


def _entry(traffic: MadeTraffic) -> Iterator[str]:
    for key, value in traffic.data().items():
        if key == "output":
            yield from (f"    # {text}" for name, text in _OUTPUT.items() if name in traffic.output)
        if key != "payload":
            yield f"  {'-' if key == 'name' else ' '} {key}: {_flow(value)}"
            continue
        yield "    payload:"
        for name, options in traffic.payload.items():
            yield f"      # {_PAYLOADS[name]}"
            yield f"      {name}: {_flow(options)}"


def _phase(phase: Mapping[str, Yaml]) -> Iterator[str]:
    yield f"  # {next(text for name, text in _LOADS.items() if name in phase)}"
    yield f"  - {_flow(phase)}"


def _flow(value: Yaml) -> str:
    return yaml_text(value, flow=True, width=10_000).removesuffix("...\n").strip()
