"""Context of a run: profile, options, target, record, interrupts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from loadchaos.core.ledger.recorder import create_folder
from loadchaos.core.redact import Redactor
from loadchaos.profile.profile import Profile
from loadchaos.run.interrupts import Interrupts
from loadchaos.run.options import Options, target_spec
from loadchaos.run.prompt_texts import error_passages
from loadchaos.run.run_record import RunRecord
from loadchaos.run.server_under_test import TargetSpec


@dataclass(frozen=True)
class RunContext:
    """Inputs of one run, its record and its terminal. `print_line` prints one line and never blocks."""

    profile: Profile
    options: Options
    target: TargetSpec
    record: RunRecord
    interrupts: Interrupts
    print_line: Callable[[str], None]

    @classmethod
    def create(
        cls, profile: Profile, options: Options, interrupts: Interrupts, print_line: Callable[[str], None]
    ) -> RunContext:
        """Check the options and create the run folder. Raises LoadchaosError before anything exists."""
        target = target_spec(profile, options)
        folder = create_folder(options.out, profile.name)
        redactor = _redactor(profile, target)

        def print_redacted(line: str) -> None:
            print_line(redactor.known(line))

        record = RunRecord(folder, redactor, print_redacted)
        return cls(profile, options, target, record, interrupts, print_redacted)


def _redactor(profile: Profile, target: TargetSpec) -> Redactor:
    launch = profile.target.launch
    if launch is None:
        redactor = Redactor.from_environment(os.environ)
    else:
        redactor = Redactor.of_launch(os.environ, launch.env, launch.command)
    for value in target.headers.values():
        redactor.add(value)
        redactor.add(value.split(" ")[-1])  # without `Bearer`
    redactor.add_prompts(error_passages(profile))
    return redactor
