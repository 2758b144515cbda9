"""Profile data made from options, named as `vllm bench serve` does. `loadchaos run` without a profile and `loadchaos
new` use it. The result is plain data that `profile.from_mapping` reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadchaos.core.dataset_names import DATASET_OPTIONS, TRACES
from loadchaos.core.errors import OptionError
from loadchaos.core.units import Range, figure, format_duration, format_rate
from loadchaos.profile import slo, trace
from loadchaos.profile.trace_formats import FORMATS, TraceFormat

_BUCKETS = {(256, 256, 1): 0.5, (720, 1280, 1): 0.5}
_Maker = Callable[["LoadOptions"], Iterator[dict[str, Any]]]
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)(?![\d.])"
_BUCKET = re.compile(r"\(?\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)?\s*['\"]?\s*:\s*" + _NUMBER)
_RATIO = re.compile(r"[\"']?(input|output)[\"']?\s*:\s*" + _NUMBER)


@dataclass(frozen=True)
class LoadOptions:
    """Load and requests that a profile is made of; None: not given. `rate` and `ramp` are requests per second, an
    infinite rate all at once; with a rate `users` are the most requests in flight. `values` has the options of the
    dataset (`DATASET_OPTIONS`), `sampling` those of that payload, `slo` limits in seconds. `exact`: answers have
    exactly the length; None: as the dataset does. `generates` and `needs` are those of the endpoint (`EndpointSpec`).
    """

    rate: float | None = None
    users: int | None = None
    requests: int | None = None
    duration_s: float | None = None
    burstiness: float | None = None
    ramp: tuple[float, float] | None = None
    warm_ups: int = 0
    dataset: str = "random"
    values: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    slo: Mapping[str, float] = field(default_factory=dict)
    exact: bool | None = None
    endpoint: str = "chat"
    generates: bool = True
    needs: str = ""
    embedded: bool = False
    name: str = ""
    expect: Sequence[str] = ()


def profile_data(options: LoadOptions) -> dict[str, Any]:
    """Make the data of a profile. Raises OptionError where options contradict each other or do not say how much is
    sent.
    """
    _refuse_other_datasets(options)
    data: dict[str, Any] = {"name": options.name or name_of(options), "about": describe(options)}
    if options.embedded:
        data["target"] = {"embedded": {}}
    if options.slo:
        data["slo"] = slo.written(options.slo)
    data["traffic"] = list(_traffic(options))
    data["load"] = [*_warm_up(options), _phase(options)]
    if options.expect:
        data["expect"] = list(options.expect)
    return data


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
        return f"the trace {Path(str(options.values.get('dataset_path'))).name}"
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
    for name, datasets in DATASET_OPTIONS.items():
        if options.values.get(name) is not None and options.dataset not in datasets:
            raise OptionError(
                f"{flag(name)} has no effect with --dataset-name {options.dataset}: it goes with {' and '.join(datasets)}"
            )
    short = [("input_len", "random_input_len"), ("output_len", "random_output_len")]
    short.append(("output_len", "prefix_repetition_output_len"))
    for one, other in short:
        if options.values.get(one) is not None and options.values.get(other) is not None:
            raise OptionError(f"{flag(one)} and {flag(other)} have the same meaning: give one of them")


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _value(options: LoadOptions, names: Sequence[str], default: Any) -> Any:
    return next((v for n in names if (v := options.values.get(n)) is not None), default)


# --- traffic ------------------------------------------------------------------------------------------------------------


def _traffic(options: LoadOptions) -> Iterator[dict[str, Any]]:
    makers: dict[str, _Maker] = {"random": _random, "random-mm": _random_images, "prefix_repetition": _prefixes}
    makers |= dict.fromkeys(TRACES, _timed)
    for entry in makers.get(options.dataset, _from_file)(options):
        if options.sampling:
            if "requests" in entry["payload"]:
                names = ", ".join(flag(n) for n in options.sampling)
                raise OptionError(
                    f"{names}: the requests of {options.dataset} are sent as the file has them; leave it out"
                )
            entry["payload"]["sampling"] = dict(options.sampling)
        if options.endpoint != "chat":
            if "requests" in entry["payload"]:
                raise OptionError(
                    f"--endpoint {options.endpoint} or its --backend: requests of {options.dataset} are sent as the file "
                    "has them, messages to chat and prompts to completions; leave it out"
                )
            entry["endpoint"] = options.endpoint
        if not options.generates:
            _refuse_lengths(options)
            entry.pop("output", None)
        yield entry


def _refuse_lengths(options: LoadOptions) -> None:
    given = [n for n in ("random_output_len", "output_len", "prefix_repetition_output_len") if options.values.get(n)]
    if given or options.exact:
        name = flag(given[0]) if given else "--ignore-eos"
        raise OptionError(f"{name} has no effect: the endpoint {options.endpoint} generates no text; leave it out")


def _random(options: LoadOptions) -> Iterator[dict[str, Any]]:
    if options.needs:
        yield _without_text(options)
        return
    yield {"name": "random", "payload": {"text": _random_text(options)}, "output": _random_output(options)}


def _without_text(options: LoadOptions) -> dict[str, Any]:
    lengths = ("random_input_len", "input_len", "random_range_ratio", "random_prefix_len")
    if given := [name for name in lengths if options.values.get(name) is not None]:
        raise OptionError(
            f"{flag(given[0])} has no effect: the endpoint {options.endpoint} takes {options.needs} and no text; leave it "
            f"out, or write a profile with the payload {options.needs}"
        )
    if options.exact:
        raise OptionError(
            f"--ignore-eos has no effect: the endpoint {options.endpoint} cannot force a length; leave it out"
        )
    return {
        "name": "random",
        "payload": {options.needs: {}},
        "output": {"max": _value(options, ("random_output_len", "output_len"), 128)},
    }


def _random_text(options: LoadOptions) -> dict[str, Any]:
    length = _value(options, ("random_input_len", "input_len"), 1024)
    prefix = _value(options, ("random_prefix_len",), 0)
    around = _around(length, _value(options, ("random_range_ratio",), (0.0, 0.0))[0])
    text: dict[str, Any] = {"tokens": Range(around.low + prefix, around.high + prefix).written()}
    if prefix:
        text["shared_prefix"] = {"tokens": prefix, "groups": 1}
    return text


def _random_output(options: LoadOptions) -> dict[str, Any]:
    length = _value(options, ("random_output_len", "output_len"), 128)
    around = _around(length, _value(options, ("random_range_ratio",), (0.0, 0.0))[1])
    return {"max" if options.exact is False else "exact": around.written()}


def _random_images(options: LoadOptions) -> Iterator[dict[str, Any]]:
    count = _value(options, ("random_mm_base_items_per_request",), 1)
    ratio = _value(options, ("random_mm_num_mm_items_range_ratio",), 0.0)
    if not 0 <= ratio <= 1:
        raise OptionError(f"--random-mm-num-mm-items-range-ratio {ratio:g}: 0 to 1 was expected")
    counts = Range(math.floor(count * (1 - ratio)), math.ceil(count * (1 + ratio)))
    buckets = _value(options, ("random_mm_bucket_config",), _BUCKETS)
    if len(buckets) > 1 and counts.high > 1:
        raise OptionError(
            "--random-mm-base-items-per-request: several images of different sizes in one request cannot be made; "
            "give one size: --random-mm-bucket-config '{(256, 256, 1): 1.0}'"
        )
    for (height, width, _), weight in buckets.items():
        entry: dict[str, Any] = {"name": f"images_{width}x{height}" if len(buckets) > 1 else "images"}
        if len(buckets) > 1:
            entry["weight"] = weight
        images = {"count": counts.written(), "size": f"{width}x{height}"}
        yield {
            **entry,
            "payload": {"images": images, "text": _random_text(options)},
            "output": _random_output(options),
        }


def _prefixes(options: LoadOptions) -> Iterator[dict[str, Any]]:
    prefix = _value(options, ("prefix_repetition_prefix_len",), 256)
    suffix = _value(options, ("prefix_repetition_suffix_len",), 256)
    groups = _value(options, ("prefix_repetition_num_prefixes",), 10)
    length = _value(options, ("prefix_repetition_output_len", "output_len"), 128)
    text = {"tokens": prefix + suffix, "shared_prefix": {"tokens": prefix, "groups": groups}}
    yield {"name": "prefixes", "payload": {"text": text}, "output": {"exact" if options.exact else "max": length}}


def _from_file(options: LoadOptions) -> Iterator[dict[str, Any]]:
    length = _value(options, ("output_len",), None)
    if options.exact:
        raise OptionError(
            f"--ignore-eos: the requests of {options.dataset} are sent as the file has them; leave it out"
        )
    requests = {"file": _file(options), "order": "sampled", "turns": "first"}
    output = {} if length is None else {"output": {"max": length}}
    yield {"name": options.dataset, "payload": {"requests": requests}, **output}


def _timed(options: LoadOptions) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - the trace has the lengths
    yield {"name": "trace", "payload": {"text": {}}}


def _file(options: LoadOptions) -> str:
    path = options.values.get("dataset_path")
    if path is None:
        raise OptionError(f"--dataset-name {options.dataset} needs --dataset-path FILE; nothing is downloaded")
    if not Path(path).is_file():
        raise OptionError(f"--dataset-path {path}: no such file; give a file on this machine, nothing is downloaded")
    return str(Path(path).absolute())


def _around(length: int, ratio: float) -> Range:
    low, high = (round(length * factor, 6) for factor in (1 - ratio, 1 + ratio))  # 50 x 1.1 is not quite 55
    return Range(max(1, math.floor(low)), math.ceil(high))


# --- load ---------------------------------------------------------------------------------------------------------------


def _warm_up(options: LoadOptions) -> list[dict[str, Any]]:
    if not options.warm_ups:
        return []
    if options.dataset in TRACES:
        raise OptionError(
            "--num-warmups has no effect with a trace: leave it out, or write a profile with warm_up: 30s"
        )
    return [{"users": min(options.users or 1, options.warm_ups), "requests": options.warm_ups, "warm_up": True}]


def _phase(options: LoadOptions) -> dict[str, Any]:
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
    phase: dict[str, Any] = {"rate": format_rate(options.rate), "law": "poisson"}
    if options.burstiness is not None and options.burstiness != 1:
        phase.update(law="gamma", burstiness=options.burstiness)
    return {**phase, **_bounds(options)}


def _ramp(options: LoadOptions) -> dict[str, Any]:
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


def _trace_phase(options: LoadOptions) -> dict[str, Any]:
    if options.rate is not None or options.ramp is not None:
        raise OptionError("--rate: a trace has its own times; leave it out")
    phase: dict[str, Any] = {"trace": _file(options)}
    if options.dataset == "timed_trace":
        seconds = _value(options, ("timed_trace_sec_multiplier",), 1.0)
        if not (math.isfinite(seconds) and seconds > 0):
            raise OptionError(f"--timed-trace-sec-multiplier {seconds:g}: seconds above 0 were expected")
        phase["unit"] = format_duration(seconds)
        phase["block_tokens"] = _value(options, ("timed_trace_chunk_hash_size",), 16)
    elif FORMATS[options.dataset] is not _shape(phase["trace"]):
        raise OptionError(
            f"--dataset-path {options.values['dataset_path']}: {FORMATS[options.dataset].about} was expected; "
            f"--dataset-name says how to read the file: {', '.join(TRACES)}"
        )
    return {**phase, **_bounds(options)}


def _shape(file: str) -> TraceFormat:
    try:
        return trace.format_of(file)
    except ValueError as e:
        raise OptionError(f"--dataset-path {e}; give a file of that format") from None


def _bounds(options: LoadOptions) -> dict[str, Any]:
    length = None if options.duration_s is None else format_duration(options.duration_s)
    bounds = {"requests": options.requests, "for": length, "max_in_flight": options.users}
    return {name: value for name, value in bounds.items() if value is not None}
