"""Find the reproducers of advisories, and what a server lacks for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadchaos.analysis.advisories.advisory import OR, OTHER_FACTS, Advisory, Test
from loadchaos.analysis.advisories.condition import ServerFacts, fact_text, holds
from loadchaos.analysis.classify import signature_file
from loadchaos.campaigns.minimise.script import CHECKS
from loadchaos.campaigns.minimise.validate import can_try
from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.core import resources
from loadchaos.core.errors import OptionError


@dataclass(frozen=True)
class AdvisoryScript:
    """Script that shows the bug of an advisory."""

    name: str
    advisory: Advisory
    script: Path

    @property
    def expected(self) -> ExpectedFailure | None:
        """Failure that the log has to show as well; None where the script alone can tell: a hang, a wrong answer."""
        one = self.advisory
        found, signature = ExpectedFailure(one.failure, severity=one.severity), signature_file.load().get(one.failure)
        in_log = signature is not None and not signature.symptom and one.failure not in CHECKS
        return found if in_log and can_try(found) else None

    def lacks(self, facts: ServerFacts) -> list[str]:
        """List what a server has to have, and has not: conditions of the advisory, and those of the script."""
        one = self.advisory
        return [
            f"{_wanted(names, test)} ({'; '.join(_as_told(name, facts) for name in names.split(OR))})"
            for names, test in {**one.when, **one.needs}.items()
            if not any((fact := facts.get(n)) is not None and holds(test, fact.value) for n in names.split(OR))
        ]


def find(advisories: Sequence[Advisory], own: Path | None = None) -> list[AdvisoryScript]:
    """The reproducers of advisories. `own`: folder of the user's advisories. Raises OptionError for a missing script."""
    return [AdvisoryScript(name, one, _script(name, one, own)) for one in advisories for name in one.reproducers]


def _script(name: str, one: Advisory, own: Path | None) -> Path:
    places = [*([own] if own is not None else []), resources.folder("docs/repros")]
    found = next((file for place in places if (file := place / name / "repro.py").is_file()), None)
    if found is None:
        raise OptionError(
            f"{one.id}: its reproducer {name}/repro.py is not in {' or '.join(map(str, places))}: the wheel of loadchaos "
            "and a checkout have the shipped ones"
        )
    return found


def _wanted(names: str, test: Test) -> str:
    name = names.split(OR)[0]
    shown = name if name in OTHER_FACTS else f"--{name.replace('_', '-')}"
    if isinstance(test, bool):
        return shown if test else f"no {shown}"
    if isinstance(test, str) and test[:1] in "<>":
        return f"{shown} {test}"
    return f"{shown} {' or '.join(map(str, test[:3])) if isinstance(test, tuple) else test}"


def _as_told(name: str, facts: ServerFacts) -> str:
    fact = facts.get(name)
    if fact is not None:
        return fact_text(fact)
    return f"not known: give --fact {name}=VALUE" if name in OTHER_FACTS else "not known"
