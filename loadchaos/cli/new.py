"""`loadchaos new`: write a commented profile from options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.common import COUNT, expect_option, option, time_option, writing
from loadchaos.cli.load_options import LoadCommand, goodput_option, load_options, made_from, made_profile
from loadchaos.core.errors import OptionError
from loadchaos.core.model import DEFAULT_EXPECT

if TYPE_CHECKING:
    from loadchaos.profile.made import LoadOptions


@click.command(cls=LoadCommand)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@load_options
@goodput_option
@option("-u --users --concurrency --max-concurrency users", "Users.", type=COUNT)
@time_option("-t --duration duration", "Length of the load.")
@option("--endpoint", "Endpoint of the requests: chat, completions and others.", "NAME")
@expect_option("Expectation such as 'ttft_p99 <= 2s'. Repeatable.")
def new(file: Path, expect: tuple[str, ...], **options: Any) -> None:
    """Write a new profile with comments to FILE ("-": print it).

    The options are those of `loadchaos run` without a profile.
    """
    if str(file) != "-" and file.exists():
        raise OptionError(f"{file} exists already; choose another name, or remove it")
    made = made_from({**options, "embedded": True})
    if made is None:
        raise OptionError("what load? Give options such as --rate 5 --num-prompts 200")
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
