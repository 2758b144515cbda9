"""A profile made from options, named as `vllm bench serve` does. `loadchaos run` without a profile and `loadchaos new` use
it. Its data are those that `profile.from_mapping` reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from loadchaos.core.dataset_names import DATASET_OPTIONS, TRACES, DatasetOptions
from loadchaos.core.errors import OptionError
from loadchaos.core.units import Range, figure, format_duration, format_rate
from loadchaos.profile import slo, trace
from loadchaos.profile.source import Yaml
from loadchaos.profile.trace_formats import FORMATS, TraceFormat

_T = TypeVar("_T")
_BUCKETS = {(256, 256, 1): 0.5, (720, 1280, 1): 0.5}
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)(?![\d.])"
_BUCKET = re.compile(r"\(?\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)?\s*['\"]?\s*:\s*" + _NUMBER)
_RATIO = re.compile(r"[\"']?(input|output)[\"']?\s*:\s*" + _NUMBER)


@dataclass(frozen=True)
class LoadOptions:
    """Load and requests that a profile is made of; None: not given. `rate` and `ramp` are requests per second, an
    infinite rate all at once; with a rate `users` are the most requests in flight. `sampling` and `extra_body` have the
    options of these payloads, `slo` limits in seconds. `exact`: answers have exactly the length; None: as the dataset does.
    `generates` and `needs` are those of the endpoint (`EndpointSpec`).
    """

    rate: float | None = None
    users: int | None = None
    requests: int | None = None
    duration_s: float | None = None
    burstiness: float | None = None
    ramp: tuple[float, float] | None = None
    warm_ups: int = 0
    dataset: str = "random"
    values: DatasetOptions = field(default_factory=DatasetOptions)
    sampling: Mapping[str, float] = field(default_factory=dict)
    extra_body: Mapping[str, Yaml] | None = None
    slo: Mapping[str, float] = field(default_factory=dict)
    exact: bool | None = None
    endpoint: str = "chat"
    path: str = ""
    generates: bool = True
    needs: str = ""
    embedded: bool = False
    name: str = ""
    expect: Sequence[str] = ()


@dataclass(frozen=True)
class MadeTraffic:
    """One kind of request. `payload` has the options of each payload, `output` its length."""

    name: str
    payload: Mapping[str, Mapping[str, Yaml]]
    output: Mapping[str, Yaml] = field(default_factory=dict)
    weight: float | None = None
    endpoint: str = "chat"

    def data(self) -> dict[str, Yaml]:
        endpoint = None if self.endpoint == "chat" else self.endpoint
        return _known(
            name=self.name, weight=self.weight, payload=self.payload, output=self.output or None, endpoint=endpoint
        )


@dataclass(frozen=True)
class MadeProfile:
    """A profile in parts, of which `data` is the whole."""

    name: str
    about: str
    traffic: Sequence[MadeTraffic]
    load: Sequence[Mapping[str, Yaml]]
    embedded: bool = False
    slo: Mapping[str, Yaml] = field(default_factory=dict)
    expect: Sequence[str] = ()

    def data(self) -> dict[str, Yaml]:
        """The plain data of the profile, with keys in the order of docs/profile.md."""
        return _known(
            name=self.name,
            about=self.about,
            target={"embedded": {}} if self.embedded else None,
            slo=self.slo or None,
            traffic=[traffic.data() for traffic in self.traffic],
            load=self.load,
            expect=self.expect or None,
        )


def _known(**values: Yaml) -> dict[str, Yaml]:
    return {name: value for name, value in values.items() if value is not None}


def _first(*values: _T | None, default: _T) -> _T:
    return next((value for value in values if value is not None), default)


def make(options: LoadOptions) -> MadeProfile:
    """Make a profile. Raises OptionError where options contradict each other or do not say how much is sent."""
    _refuse_other_datasets(options)
    return MadeProfile(
        options.name or name_of(options),
        describe(options),
        list(_traffic(options)),
        [*_warm_up(options), _phase(options)],
        options.embedded,
        slo.written(options.slo),
        list(options.expect),
    )


def phase_takes_duration(options: LoadOptions) -> bool:
    """Tell if the phase has the duration. It does not in a closed loop that ends after its requests."""
    if options.dataset in TRACES or options.ramp is not None:
        return True
    is_closed = options.rate is None or math.isinf(options.rate)
    return not is_closed or options.users is None or options.requests is None


def name_of(options: LoadOptions) -> str:
    """Name of the load: `rate-10`, `users-8`, `burstgpt`."""
    if options.dataset in TRACES:
        return options.dataset
    if options.ramp is not None:
        return "-".join(["ramp", *(figure(rate).replace(",", "") for rate in options.ramp)])
    if options.rate is not None:
        return "all-at-once" if math.isinf(options.rate) else f"rate-{figure(options.rate)}".replace(",", "")
    return f"users-{options.users}" if options.users is not None else "options"


def describe(options: LoadOptions) -> str:
    if options.dataset in TRACES:
        return f"the trace {Path(str(options.values.dataset_path)).name}"
    parts = [options.dataset.replace("_", " ")]
    if options.ramp is not None:
        parts.append(f"{figure(options.ramp[0])} to {figure(options.ramp[1])} requests/s")
    elif options.rate is not None:
        parts.append("all at once" if math.isinf(options.rate) else f"{figure(options.rate)} requests/s")
    if options.users is not None:
        parts.append(f"{options.users} users" if options.rate is None else f"at most {options.users} in flight")
    return ", ".join(parts)


def parse_range_ratio(text: str) -> tuple[float, float]:
    """Parse --random-range-ratio into those of input and output."""
    try:
        ratios = (float(text), float(text))
    except ValueError:
        found = dict(_RATIO.findall(text))
        if set(found) != {"input", "output"}:
            raise OptionError(
                f'--random-range-ratio {text}: 0.3 or {{"input": 0.3, "output": 0.5}} was expected'
            ) from None
        ratios = float(found["input"]), float(found["output"])
    if not all(0 <= ratio < 1 for ratio in ratios):
        raise OptionError(f"--random-range-ratio {text}: at least 0 and less than 1 was expected")
    return ratios


def parse_buckets(text: str) -> dict[tuple[int, int, int], float]:
    """Parse --random-mm-bucket-config: (height, width, frames) to a weight."""
    found = {(int(h), int(w), int(t)): float(p) for h, w, t, p in _BUCKET.findall(text)}
    wanted = {size: weight for size, weight in found.items() if weight > 0}
    if not wanted or len(found) != text.count("("):
        raise OptionError(
            f"--random-mm-bucket-config {text}: {{(HEIGHT, WIDTH, 1): WEIGHT}} was expected, e.g. {{(256, 256, 1): 1.0}}"
        )
    if any(frames != 1 for _, _, frames in wanted):
        raise OptionError(
            f"--random-mm-bucket-config {text}: only images (one frame) are made; write a profile with the payload video"
        )
    return wanted


def _refuse_other_datasets(options: LoadOptions) -> None:
    for name in options.values.given():
        datasets = DATASET_OPTIONS[name]
        if options.dataset not in datasets:
            raise OptionError(
                f"{flag(name)} has no effect with --dataset-name {options.dataset}: it goes with {' and '.join(datasets)}"
            )
    for names in (
        ("input_len", "random_input_len"),
        ("output_len", "random_output_len"),
        ("output_len", "prefix_repetition_output_len"),
    ):
        if len(options.values.given(*names)) > 1:
            raise OptionError(f"{' and '.join(map(flag, names))} have the same meaning: give one of them")


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


# --- traffic ------------------------------------------------------------------------------------------------------------


def _traffic(options: LoadOptions) -> Iterator[MadeTraffic]:
    makers: dict[str, Callable[[LoadOptions], Iterator[MadeTraffic]]] = {
        "random": _random,
        "random-mm": _random_images,
        "prefix_repetition": _prefixes,
        **dict.fromkeys(TRACES, _timed),
    }
    for made in makers.get(options.dataset, _from_file)(options):
        payload, output = dict(made.payload), made.output
        fields = [*options.sampling, *(("extra_body",) if options.extra_body is not None else ())]
        if fields and "requests" in payload:
            names = ", ".join(map(flag, fields))
            raise OptionError(f"{names}: the requests of {options.dataset} are sent as the file has them; leave it out")
        if options.sampling:
            payload["sampling"] = options.sampling
        if options.extra_body is not None:
            payload["extra_body"] = options.extra_body
        if (options.path or options.endpoint) != "chat" and "requests" in payload:
            raise OptionError(
                f"--endpoint {options.endpoint} or its --backend: requests of {options.dataset} are sent as the file "
                "has them, messages to chat and prompts to completions; leave it out"
            )
        if not options.generates:
            _refuse_lengths(options)
            output = {}
        yield replace(made, payload=payload, output=output, endpoint=options.path or options.endpoint)


def _refuse_lengths(options: LoadOptions) -> None:
    given = options.values.given("random_output_len", "output_len", "prefix_repetition_output_len")
    if given or options.exact:
        name = flag(given[0]) if given else "--ignore-eos"
        raise OptionError(f"{name} has no effect: the endpoint {options.endpoint} generates no text; leave it out")


def _random(options: LoadOptions) -> Iterator[MadeTraffic]:
    if options.needs:
        yield _without_text(options)
    else:
        yield MadeTraffic("random", {"text": _random_text(options)}, _random_output(options))


def _without_text(options: LoadOptions) -> MadeTraffic:
    if given := options.values.given("random_input_len", "input_len", "random_range_ratio", "random_prefix_len"):
        raise OptionError(
            f"{flag(given[0])} has no effect: the endpoint {options.endpoint} takes {options.needs} and no text; leave it "
            f"out, or write a profile with the payload {options.needs}"
        )
    if options.exact:
        raise OptionError(
            f"--ignore-eos has no effect: the endpoint {options.endpoint} cannot force a length; leave it out"
        )
    return MadeTraffic("random", {options.needs: {}}, {"max": _random_output_len(options.values)})


def _random_output_len(values: DatasetOptions) -> int:
    return _first(values.random_output_len, values.output_len, default=128)


def _random_text(options: LoadOptions) -> dict[str, Yaml]:
    values = options.values
    length, prefix = _first(values.random_input_len, values.input_len, default=1024), values.random_prefix_len or 0
    around = _around(length, (values.random_range_ratio or (0.0, 0.0))[0])
    shared = {"tokens": prefix, "groups": 1} if prefix else None
    return _known(tokens=Range(around.low + prefix, around.high + prefix).written(), shared_prefix=shared)


def _random_output(options: LoadOptions) -> dict[str, Yaml]:
    values = options.values
    around = _around(_random_output_len(values), (values.random_range_ratio or (0.0, 0.0))[1])
    return {"max" if options.exact is False else "exact": around.written()}


def _random_images(options: LoadOptions) -> Iterator[MadeTraffic]:
    values = options.values
    count, ratio = _first(values.random_mm_base_items_per_request, default=1), values.random_mm_num_mm_items_range_ratio
    ratio = ratio or 0.0
    if not 0 <= ratio <= 1:
        raise OptionError(f"--random-mm-num-mm-items-range-ratio {ratio:g}: 0 to 1 was expected")
    counts = Range(math.floor(count * (1 - ratio)), math.ceil(count * (1 + ratio)))
    buckets = _first(values.random_mm_bucket_config, default=_BUCKETS)
    several = len(buckets) > 1
    if several and counts.high > 1:
        raise OptionError(
            "--random-mm-base-items-per-request: several images of different sizes in one request cannot be made; "
            "give one size: --random-mm-bucket-config '{(256, 256, 1): 1.0}'"
        )
    for (height, width, _), weight in buckets.items():
        images: dict[str, Yaml] = {"count": counts.written(), "size": f"{width}x{height}"}
        yield MadeTraffic(
            f"images_{width}x{height}" if several else "images",
            {"images": images, "text": _random_text(options)},
            _random_output(options),
            weight if several else None,
        )


def _prefixes(options: LoadOptions) -> Iterator[MadeTraffic]:
    values = options.values
    prefix = _first(values.prefix_repetition_prefix_len, default=256)
    suffix = _first(values.prefix_repetition_suffix_len, default=256)
    groups = _first(values.prefix_repetition_num_prefixes, default=10)
    length = _first(values.prefix_repetition_output_len, values.output_len, default=128)
    text: dict[str, Yaml] = {"tokens": prefix + suffix, "shared_prefix": {"tokens": prefix, "groups": groups}}
    yield MadeTraffic("prefixes", {"text": text}, {"exact" if options.exact else "max": length})


def _from_file(options: LoadOptions) -> Iterator[MadeTraffic]:
    if options.exact:
        raise OptionError(
            f"--ignore-eos: the requests of {options.dataset} are sent as the file has them; leave it out"
        )
    length = options.values.output_len
    lengths = None if length is None else "traffic"
    requests = _known(file=_file(options), order="shuffled", turns="first", lengths=lengths)
    yield MadeTraffic(options.dataset, {"requests": requests}, _known(max=length))


def _timed(options: LoadOptions) -> Iterator[MadeTraffic]:  # noqa: ARG001 - the trace has the lengths
    yield MadeTraffic("trace", {"text": {}})


def _file(options: LoadOptions) -> str:
    path = options.values.dataset_path
    if path is None:
        raise OptionError(f"--dataset-name {options.dataset} needs --dataset-path FILE; nothing is downloaded")
    if not Path(path).is_file():
        raise OptionError(f"--dataset-path {path}: no such file; give a file on this machine, nothing is downloaded")
    return str(Path(path).absolute())


def _around(length: int, ratio: float) -> Range:
    low, high = (round(length * factor, 6) for factor in (1 - ratio, 1 + ratio))  # 50 x 1.1 is not quite 55
    return Range(max(1, math.floor(low)), math.ceil(high))


# --- load ---------------------------------------------------------------------------------------------------------------


def _warm_up(options: LoadOptions) -> list[dict[str, Yaml]]:
    if not options.warm_ups:
        return []
    if options.dataset in TRACES:
        raise OptionError(
            "--num-warmups has no effect with a trace: leave it out, or write a profile with warm_up: 30s"
        )
    return [{"users": min(options.users or 1, options.warm_ups), "requests": options.warm_ups, "warm_up": True}]


def _phase(options: LoadOptions) -> dict[str, Yaml]:
    if options.burstiness is not None and (options.rate is None or math.isinf(options.rate)):
        raise OptionError("--burstiness shapes arrivals at a rate: give --rate, too")
    if options.dataset in TRACES:
        return _trace_phase(options)
    if options.ramp is not None:
        return _ramp(options)
    if options.rate is None and options.users is None:
        raise OptionError(
            "how fast? Give --rate N (requests per second), --concurrency N (users in a closed loop), or both"
        )
    if options.requests is None and options.duration_s is None:
        raise OptionError("how long? Give --num-prompts N, --duration TIME, or both")
    if options.rate is None or (math.isinf(options.rate) and options.users is not None):
        bounds = _bounds(options)
        end = "requests" if "requests" in bounds else "for"
        return {"users": options.users, end: bounds[end]}
    if math.isinf(options.rate):
        if options.requests is None or options.duration_s is not None:
            raise OptionError(
                "--rate inf sends all requests at once: give their number (--num-prompts) and no --duration"
            )
        return {"burst": options.requests}
    phase: dict[str, Yaml] = {"rate": format_rate(options.rate), "law": "poisson"}
    if options.burstiness is not None and options.burstiness != 1:
        phase.update(law="gamma", burstiness=options.burstiness)
    return {**phase, **_bounds(options)}


def _ramp(options: LoadOptions) -> dict[str, Yaml]:
    first, last = options.ramp or (0.0, 0.0)
    if options.rate is not None:
        raise OptionError("--rate and --ramp-up-strategy exclude each other: the ramp has its own rates")
    if (options.requests is None) == (options.duration_s is None):
        raise OptionError(
            "--ramp-up-strategy: give either --num-prompts or --duration; the other follows from the rates"
        )
    length_s = options.duration_s or 2 * (options.requests or 0) / (first + last)
    ends = {**_bounds(options), "for": format_duration(math.ceil(length_s * 1000) / 1000)}
    return {"rate": format_rate(first), "law": "ramp", "to": format_rate(last), **ends}


def _trace_phase(options: LoadOptions) -> dict[str, Yaml]:
    if options.rate is not None or options.ramp is not None:
        raise OptionError("--rate: a trace has its own times; leave it out")
    file = _file(options)
    phase: dict[str, Yaml] = {"trace": file}
    if options.dataset == "timed_trace":
        seconds = _first(options.values.timed_trace_sec_multiplier, default=1.0)
        if not (math.isfinite(seconds) and seconds > 0):
            raise OptionError(f"--timed-trace-sec-multiplier {seconds:g}: seconds above 0 were expected")
        phase["unit"] = format_duration(seconds)
        phase["block_tokens"] = _first(options.values.timed_trace_chunk_hash_size, default=16)
    elif FORMATS[options.dataset] is not _shape(file):
        raise OptionError(
            f"--dataset-path {options.values.dataset_path}: {FORMATS[options.dataset].about} was expected; "
            f"--dataset-name says how to read the file: {', '.join(TRACES)}"
        )
    return {**phase, **_bounds(options)}


def _shape(file: str) -> TraceFormat:
    try:
        return trace.format_of(file)
    except ValueError as e:
        raise OptionError(f"--dataset-path {e}; give a file of that format") from None


def _bounds(options: LoadOptions) -> dict[str, Yaml]:
    length = None if options.duration_s is None else format_duration(options.duration_s)
    return _known(**{"requests": options.requests, "for": length, "max_in_flight": options.users})
