"""`loadchaos new`: write a commented profile from options or answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.common import ABOVE_ZERO, COUNT, expect_option, flag, option, time_option, writing
from loadchaos.cli.load_options import ManyGoodputWords, goodput_option, load_options, made_from, made_profile
from loadchaos.core.dataset_names import DatasetOptions
from loadchaos.core.errors import OptionError
from loadchaos.core.model import DEFAULT_EXPECT, DEFAULT_OUTPUT_TOKENS

if TYPE_CHECKING:
    from loadchaos.profile.made import LoadOptions

_KINDS = {"text": "random", "images": "random-mm", "shared prefixes": "prefix_repetition", "file": "custom"}


@click.command(cls=ManyGoodputWords)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@load_options
@goodput_option
@option("-u --users --concurrency --max-concurrency users", "Users.", type=COUNT)
@time_option("-t --duration duration", "Length of the load.")
@option("--endpoint", "Endpoint of the requests: chat, completions and others.", "NAME")
@expect_option("Expectation such as 'ttft_p99 <= 2s'. Repeatable.")
@flag("--ask", "Ask for the load, also where the input is no terminal.")
def new(file: Path, expect: tuple[str, ...], ask: bool, **options: Any) -> None:
    """Write a new profile with comments to FILE ("-": print it).

    The options are those of `loadchaos run` without a profile. Without any of them a few questions are asked on a terminal.
    """
    if str(file) != "-" and file.exists():
        raise OptionError(f"{file} exists already; choose another name, or remove it")
    made = made_from({**options, "embedded": True})
    if ask or (made is None and sys.stdin.isatty()):
        if made is not None:
            raise OptionError("--ask and options of the load exclude each other: leave one of them out")
        made = _answers()
    if made is None:
        raise OptionError("what load? Give options such as --rate 5 --num-prompts 200, or --ask")
    text = _written(made, file, expect)
    if str(file) == "-":
        click.echo(text, nl=False)
        return
    with writing(file, "name a file that can be written"):
        file.write_text(text, encoding="utf-8")
    click.echo(f"{file}: written. Try it: loadchaos run {file} --embedded")


def _written(made: LoadOptions, file: Path, expect: tuple[str, ...]) -> str:
    from dataclasses import replace

    from loadchaos.profile.made import make, phase_takes_duration
    from loadchaos.profile.written import commented

    if made.duration_s is not None and not phase_takes_duration(made):
        raise OptionError(
            "--duration: users in a closed loop end after --num-prompts or after --duration in a profile: give one of them"
        )
    name = "new" if str(file) == "-" else "".join(c if c.isalnum() or c in "._-" else "_" for c in file.stem)
    rules = [*DEFAULT_EXPECT, *(["goodput >= 95%"] if made.slo and not expect else []), *expect]
    made = replace(made, name=name.lstrip("._-") or "new", expect=rules)
    made_profile(made, ())
    return commented(make(made), str(file) if str(file) != "-" else "new.yaml")


def _answers() -> LoadOptions:
    from loadchaos.profile.made import LoadOptions

    kind = click.prompt("Requests", type=click.Choice(list(_KINDS)), default="text")
    values = _dataset_answers(kind)
    pace = click.prompt("Load: a rate, or users who wait for their answers", type=click.Choice(["rate", "users"]))
    rate = click.prompt("Requests per second", type=ABOVE_ZERO, default=5.0) if pace == "rate" else None
    users = click.prompt("Users", type=COUNT, default=16) if pace == "users" else None
    requests = click.prompt("Requests in all", type=COUNT, default=200)
    limits = click.prompt("Limits of a request, e.g. ttft:2s tpot:50ms e2e:30s", default="none", value_proc=_limits)
    return LoadOptions(
        rate=rate, users=users, requests=requests, dataset=_KINDS[kind], values=values, slo=limits, embedded=True
    )


def _dataset_answers(kind: str) -> DatasetOptions:
    if kind == "file":
        path = click.prompt("File with requests (JSON Lines, ShareGPT)", type=click.Path(exists=True, dir_okay=False))
        return DatasetOptions(dataset_path=str(path))
    tokens = click.prompt("Prompt tokens", type=COUNT, default=512)
    output = click.prompt("Output tokens", type=COUNT, default=DEFAULT_OUTPUT_TOKENS)
    if kind != "shared prefixes":
        return DatasetOptions(random_input_len=tokens, random_output_len=output)
    shared = click.prompt(
        "Prompt tokens that requests share", type=click.IntRange(1, max(1, tokens - 1)), default=tokens // 2
    )
    groups = click.prompt("Number of different prefixes", type=COUNT, default=10)
    return DatasetOptions(
        prefix_repetition_prefix_len=shared,
        prefix_repetition_suffix_len=max(1, tokens - shared),
        prefix_repetition_num_prefixes=groups,
        prefix_repetition_output_len=output,
    )


def _limits(text: str) -> Mapping[str, float]:
    from loadchaos.profile.slo import parse_bench_limits

    try:
        return {} if text.strip() in ("", "none") else parse_bench_limits(text.split(), "limits")
    except OptionError as e:
        raise click.UsageError(str(e)) from None
