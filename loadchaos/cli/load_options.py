"""Options of `loadchaos run` that describe a load without a profile. They have the names of `vllm bench serve`.
profile/made.py makes the profile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.common import ABOVE_ZERO, COUNT, Given, option, together
from loadchaos.cli.help import HelpInGroups, in_group
from loadchaos.core.dataset_names import DATASET_OPTIONS, DATASETS, DatasetOptions
from loadchaos.core.errors import OptionError
from loadchaos.core.foreign_json import json_value

if TYPE_CHECKING:
    from loadchaos.profile.made import LoadOptions
    from loadchaos.profile.profile import Profile

_DOWNLOADED = ("hf", "spec_bench", "speed_bench", "custom_image", "custom_audio", "random-rerank", "sonnet")
_BACKENDS = {
    "openai-chat": "chat",
    "vllm-chat": "chat",
    "openai": "completions",
    "vllm": "completions",
    "openai-embeddings": "embeddings",
    "vllm-rerank": "rerank",
    "openai-audio": "transcriptions",
}
"""Endpoint of each --backend of vllm bench."""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_INSTEAD = {
    "rate": "load.0.rate={}/s",
    "num_prompts": "load.0.requests={}",
    "burstiness": "load.0.burstiness={}",
    "random_input_len": "traffic.0.payload.text.tokens={}",
    "input_len": "traffic.0.payload.text.tokens={}",
    "random_output_len": "traffic.0.output.max={}",
    "output_len": "traffic.0.output.max={}",
    "temperature": "traffic.0.payload.sampling.temperature={}",
}
"""Change of a profile for each option that one --set replaces."""


def _rate(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    from loadchaos.core.units import rate_per_s

    if text is None or text == "inf":
        return None if text is None else math.inf
    try:
        value = float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else rate_per_s(text)
        if value <= 0:
            raise ValueError(f"a rate must be above 0 (got {text!r})")
    except ValueError:
        raise OptionError(f"--rate {text}: requests per second such as 20, 600/m or inf were expected") from None
    return value


def _json_object(_: click.Context, parameter: click.Parameter, text: str | None) -> Mapping[str, object] | None:
    if text is None:
        return None
    if not isinstance(found := json_value(text), dict):
        raise OptionError(f'{parameter.opts[0]} {text}: a JSON object such as {{"priority": 1}} was expected')
    return found


def _limits(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> Mapping[str, float]:
    if not texts:
        return {}
    from loadchaos.profile.slo import parse_bench_limits

    return parse_bench_limits(texts, "--goodput")


def _ratio(_: click.Context, __: click.Parameter, text: str | None) -> tuple[float, float] | None:
    from loadchaos.profile import made

    return None if text is None else made.parse_range_ratio(text)


def _buckets(_: click.Context, __: click.Parameter, text: str | None) -> Mapping[Any, float] | None:
    from loadchaos.profile import made

    return None if text is None else made.parse_buckets(text)


def _dataset(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    if name is None or name in DATASETS:
        return name
    more = "; nothing is downloaded: save its requests as a file and give --dataset-name custom --dataset-path FILE"
    raise OptionError(
        f"--dataset-name {name}: {', '.join(DATASETS)} were expected{more if name in _DOWNLOADED else ''}"
    )


_AS_BENCH = "Load as in vllm bench"
load_options = together(
    option("--rate --request-rate rate", "Requests per second, or inf: all at once.", "N", callback=_rate),
    option("--num-prompts", "End the load after this many requests.", "N", type=COUNT),
    option("--random-input-len", "Prompt tokens as the server counts them.", "N", type=COUNT),
    option("--random-output-len", "Output tokens.", "N", type=COUNT),
    in_group(
        _AS_BENCH,
        option("--burstiness", "Shape of gamma arrivals; 1: Poisson.", type=ABOVE_ZERO),
        option("--num-warmups", "Requests before these that no figure counts.", "N", type=COUNT),
        option("--ramp-up-strategy", "Change the rate over the load.", "linear"),
        option("--ramp-up-start-rps", "First rate.", "N", type=ABOVE_ZERO),
        option("--ramp-up-end-rps", "Last rate.", "N", type=ABOVE_ZERO),
        option("--input-len", "As --random-input-len.", "N", type=COUNT),
        option("--output-len", "Output tokens of any data set.", "N", type=COUNT),
        option("--random-range-ratio", "Lengths are from N x (1-R) to N x (1+R).", "R", callback=_ratio),
        option("--random-prefix-len", "Prompt tokens before these, equal in all.", "N", type=COUNT),
        option("--random-mm-base-items-per-request", "Images of a request.", "N", type=COUNT),
        option("--random-mm-num-mm-items-range-ratio", "As the range ratio, for images.", "R", type=float),
        option("--random-mm-bucket-config", "Sizes of images, e.g. {(256,256,1): 1.0}.", "DICT", callback=_buckets),
        option("--prefix-repetition-prefix-len", "Tokens that prompts share.", "N", type=COUNT),
        option("--prefix-repetition-suffix-len", "Tokens of their own.", "N", type=COUNT),
        option("--prefix-repetition-num-prefixes", "Number of shared prefixes.", "N", type=COUNT),
        option("--prefix-repetition-output-len", "Output tokens.", "N", type=COUNT),
        option("--ignore-eos/--no-ignore-eos", "Exact output lengths (default of random data).", default=None),
        option("--backend", "Backend of vllm bench, in place of --endpoint.", "NAME"),
    ),
    in_group(
        "Data sets and traces",
        option("--dataset-name", f"{', '.join(DATASETS)} (default: random).", "NAME", callback=_dataset),
        option("--dataset-path", "File of a data set. Nothing is downloaded.", "FILE"),
        option("--timed-trace-chunk-hash-size", "Tokens of a block of the trace.", "N", type=COUNT),
        option("--timed-trace-sec-multiplier", "Seconds of a unit of its timestamps.", "X", type=float),
    ),
    in_group(
        "Sampling",
        *(
            option(f"--{name.replace('_', '-')}", "Sampling of each request.", type=int if name == "top_k" else float)
            for name in _SAMPLING
        ),
        option("--extra-body", "More fields of each body, as JSON.", "JSON", callback=_json_object),
    ),
)

goodput_option = in_group(
    _AS_BENCH,
    option(
        "--goodput",
        "Limits of each request, e.g. ttft:2000 tpot:50 e2el:30000.",
        "NAME:MS...",
        multiple=True,
        callback=_limits,
    ),
)


_OTHER_NAMES = {
    "--rps": "--rate",
    "--qps": "--rate",
    "--requests": "--num-prompts",
    "--num-requests": "--num-prompts",
    "--users": "--concurrency",
    "--time": "--run-time",
    "--port": "--target",
    "--disable-tqdm": "--no-live",
    "--ready-check-timeout-sec": "--wait-ready",
}
"""Options of other load tools, and ours for the same."""


_SEVERAL_WORDS = {"--goodput": re.compile(r"\w+:\d[\w.]*"), "--metadata": re.compile(r"\w+=.*", re.DOTALL)}
"""Options of vllm bench that take several words, and how each further word looks."""


class LoadCommand(HelpInGroups):
    """Command for users of other load tools: some options take several words, and a hint names our option for theirs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat an option of several words before each further one."""
        found: list[str] = []
        option = ""
        for word in args:
            if option and found[-1] != option:
                if _SEVERAL_WORDS[option].fullmatch(word):
                    found.append(option)
                else:
                    option = ""
            option = word if word in _SEVERAL_WORDS else option
            found.append(word)
        _refuse_two_names(self, found)
        try:
            return super().parse_args(ctx, found)
        except click.NoSuchOption as e:
            if ours := _OTHER_NAMES.get(e.option_name):
                text = f"No such option {e.option_name!r}. Did you mean {ours!r}?"
                raise click.NoSuchOption(e.option_name, text, ctx=ctx) from None
            raise


def _refuse_two_names(command: click.Command, words: Sequence[str]) -> None:
    options = {
        name: option
        for option in command.params
        if isinstance(option, click.Option) and not option.is_flag and not option.multiple
        for name in option.opts
    }
    given: dict[click.Option, tuple[str, str]] = {}
    rest = iter(words)
    for word in rest:
        if word == "--":
            return
        name, sign, value = word.partition("=") if word.startswith("--") else (word, "", "")
        option = options.get(name)
        if option is None:
            continue
        value = value if sign else next(rest, "")
        before = given.setdefault(option, (name, value))
        if before[0] != name and before[1] != value:
            raise OptionError(
                f"{name} {value}: the option is {before[0]}, too, which was given as {before[1]}: give one of them"
            )


def load_option_names() -> list[str]:
    @load_options
    def command() -> None: ...

    return [str(p.name) for p in reversed(getattr(command, "__click_params__", []))]


def made_from(options: Given) -> LoadOptions | None:
    """The load that options of the command line describe; None: none does."""
    given = given_names(options)
    if not given and options["users"] is None:
        return None
    from loadchaos.load.endpoints import ENDPOINTS
    from loadchaos.profile.endpoint_path import name_at
    from loadchaos.profile.made import LoadOptions

    sent_to = endpoint_of(options["endpoint"], options["backend"]) or "chat"
    endpoint = name_at(sent_to, ENDPOINTS) or sent_to
    return LoadOptions(
        rate=options["rate"],
        users=options["users"],
        requests=options["num_prompts"],
        duration_s=options["duration"],
        burstiness=options["burstiness"],
        warm_ups=options["num_warmups"] or 0,
        ramp=_ramp(options),
        dataset=options["dataset_name"] or "random",
        values=DatasetOptions(**{name: options[name] for name in DATASET_OPTIONS}),
        sampling={name: options[name] for name in _SAMPLING if options[name] is not None},
        extra_body=options["extra_body"],
        slo=options["goodput"],
        exact=options["ignore_eos"],
        endpoint=endpoint,
        path=sent_to if sent_to != endpoint else "",
        generates=ENDPOINTS[endpoint].generates,
        needs=ENDPOINTS[endpoint].needs or "",
        embedded=options["embedded"],
    )


def given_names(options: Given) -> list[str]:
    return [name for name in load_option_names() if options.get(name) is not None]


def refuse_with_profile(options: Given, profile: str) -> None:
    for name in given_names(options):
        if name == "backend":
            continue
        change = _INSTEAD.get(name)
        value = options[name]
        instead = f"change it with --set {change.format(f'{value:g}')}" if change else "change the profile with --set"
        raise OptionError(
            f"--{name.replace('_', '-')} describes a load without a profile, but {profile} has its own: {instead}, or "
            "leave out the profile"
        )


def endpoint_of(endpoint: str | None, backend: str | None) -> str | None:
    """Endpoint from --endpoint or --backend: a name, or a path that is no endpoint's own."""
    from loadchaos.load.endpoints import ENDPOINTS
    from loadchaos.profile.endpoint_path import name_at, unknown_path

    by_path = {e.path: name for name, e in ENDPOINTS.items()}
    found = by_path.get(endpoint or "", endpoint)
    name = name_at(found, ENDPOINTS) if found is not None and found.startswith("/") else found
    if found is not None and name not in ENDPOINTS:
        if found.startswith("/"):
            raise OptionError(f"--endpoint: {unknown_path(found, ENDPOINTS)}")
        raise OptionError(f"--endpoint {found}: {', '.join(ENDPOINTS)} or a path such as /v1/completions were expected")
    if backend is None:
        return found
    if backend not in _BACKENDS:
        raise OptionError(f"--backend {backend}: {', '.join(_BACKENDS)} were expected; or give --endpoint NAME")
    if name is not None and name != _BACKENDS[backend]:
        raise OptionError(f"--backend {backend} sends to {_BACKENDS[backend]}, --endpoint to {name}: give one of them")
    return found or _BACKENDS[backend]


def _ramp(options: Given) -> tuple[float, float] | None:
    strategy, first, last = (options[f"ramp_up_{name}"] for name in ("strategy", "start_rps", "end_rps"))
    if strategy is None and first is None and last is None:
        return None
    if strategy != "linear":
        raise OptionError(
            f"--ramp-up-strategy {strategy or 'is missing'}: linear was expected; for other shapes write a profile "
            "(law: step, spike or day)"
        )
    if first is None or last is None:
        raise OptionError("--ramp-up-strategy needs both --ramp-up-start-rps and --ramp-up-end-rps")
    return float(first), float(last)


def made_profile(options: LoadOptions, overrides: Sequence[str]) -> Profile:
    from loadchaos.load import registry
    from loadchaos.profile.made import make
    from loadchaos.profile.profile import from_mapping

    return from_mapping(make(options).data(), registry.full_registry(), overrides, name="options")
