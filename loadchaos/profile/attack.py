"""`attacks` of a profile: operations on the server and their times."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, create_model, model_validator

from loadchaos.core.attack_names import ATTACK_KINDS
from loadchaos.core.unit_fields import DurationS, Share
from loadchaos.core.units import duration_s, format_duration
from loadchaos.profile.base import ProfilePart

Scalar = bool | int | float | str
Comparison = Annotated[str, Field(pattern=r"^\s*(>=|<=|==|!=|>|<)\s*\d+(\.\d+)?\s*%?\s*$")]


def _time_or_attack(read: Callable[[object], object]) -> Callable[[object], object]:
    def either(value: object) -> object:
        return value if isinstance(value, str) and re.fullmatch(r"[a-z][a-z_]*", value) else read(value)

    return either


def _window(value: object) -> object:
    low, dots, high = str(value).partition("..")
    begin, end = duration_s(low), duration_s(high) if dots else 0.0
    if not begin < end:
        raise ValueError(f"a window such as 30s..90s or the name of another attack was expected (got {value!r})")
    return begin, end


def _after_text(value: float | str | None) -> str | None:
    return format_duration(value) if isinstance(value, float) else value


def _during_text(value: tuple[float, float] | str | None) -> str | None:
    return "..".join(map(format_duration, value)) if isinstance(value, tuple) else value


if TYPE_CHECKING:

    class _Kinds(ProfilePart):
        admin: str | None = None
        process: str | None = None
        network: str | None = None
else:
    _Kinds = create_model(
        "_Kinds",
        __base__=ProfilePart,
        **{
            kind: (
                (str if spec.names is None else Literal[tuple(spec.names)]) | None,
                Field(default=None, description=spec.describe()),
            )
            for kind, spec in ATTACK_KINDS.items()
        },
    )


class AttackPlan(_Kinds):
    """One operation on the server, and when it happens.

    Exactly one key names the attack: admin, process, engine, network, host, plugin. `role` selects the process of a signal,
    `share` and `stream` select the connections of a network fault.

    Time: once `at`, or at the interval `every` (first after `after`, else after one interval) within the window `during`.
    `after: wake_up` follows each attack wake_up. `during: sleep` starts when sleep takes effect.

    `for` is how long a lasting effect (sleep, stopped process, fault) remains before it is undone. `when` delays a due
    attack until figures of the server match: {requests_running: ">= 8"}, {kv_usage_ratio: "> 80%"}.
    """

    role: Literal["engine_core", "api_server", "worker"] | None = None
    share: Share | None = None
    stream: Literal["upstream", "downstream"] | None = None
    every: DurationS | None = None
    at: DurationS | None = None
    after: Annotated[float | str | None, BeforeValidator(_time_or_attack(duration_s)), PlainSerializer(_after_text)] = (
        None
    )
    during: Annotated[
        tuple[float, float] | str | None, BeforeValidator(_time_or_attack(_window)), PlainSerializer(_during_text)
    ] = None
    times: int | None = Field(default=None, gt=0)
    for_: DurationS | None = Field(default=None, alias="for")
    on: str = "each"
    params: Mapping[str, Scalar | tuple[Scalar, ...]] = {}
    when: Mapping[str, Comparison] = Field(default={}, description='a comparison such as ">= 8" or "> 80%"')
    jitter: Share | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> AttackPlan:
        kinds = list(ATTACK_KINDS)
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                f"an attack is one of {', '.join(kinds[:-1])} or {kinds[-1]} (got {' and '.join(given) or 'none'})"
            )
        if self.process is None and self.role is not None:
            raise ValueError("role goes with process: it names the process that gets the signal")
        if self.network is None and (self.share is not None or self.stream is not None):
            raise ValueError("share and stream go with network: they select connections and a direction")
        kind, name = self.kind_and_name
        spec = ATTACK_KINDS[kind]
        if self.params and not spec.params:
            others = ", ".join(k for k, other in ATTACK_KINDS.items() if other.params)
            raise ValueError(f"params go with {others}; {kind} has none")
        if name in spec.instant and self.for_ is not None:
            lasting = [n for n in spec.names or () if n not in spec.instant]
            raise ValueError(f"{name} cannot be undone: for goes with {', '.join(lasting) or 'other attacks'}")
        return self

    @model_validator(mode="after")
    def _when(self) -> AttackPlan:
        if self.every is not None and self.at is not None:
            raise ValueError("every and at exclude each other")
        if self.every == 0:
            raise ValueError("every must be above 0")
        triggers = [n for n in ("after", "during") if isinstance(getattr(self, n), str)]
        if triggers and (
            len(triggers) > 1 or {"every", "at", "after", "during"} & self.model_fields_set - set(triggers)
        ):
            raise ValueError(
                f"{triggers[0]} names another attack, which sets the time: leave out every, at and other times"
            )
        if isinstance(self.during, tuple) and (self.at is not None or self.after is not None):
            raise ValueError("during is the window of every: leave out at and after")
        return self

    @property
    def trigger(self) -> tuple[str, str] | None:
        """Key and attack that trigger this one, such as ("after", "wake_up")."""
        found = [(n, v) for n in ("after", "during") if isinstance(v := getattr(self, n), str)]
        return found[0] if found else None

    @property
    def operation(self) -> str:
        """Name in the ledger and the report, such as `sigkill_engine_core`."""
        kind, name = self.kind_and_name
        if kind == "process":
            return f"{name}_{self.role or 'engine_core'}"
        return name if kind == "admin" else f"{kind}_{name}"

    @property
    def kind_and_name(self) -> tuple[str, str]:
        """The kind and its value, such as ("network", "latency")."""
        return next((kind, name) for kind in ATTACK_KINDS if (name := getattr(self, kind)) is not None)

    def spec(self) -> dict[str, object]:
        return {
            **{kind: getattr(self, kind) for kind in ATTACK_KINDS},
            "every_s": self.every,
            "at_s": self.at,
            "times": self.times,
            "for_s": self.for_,
            "trigger": self.trigger,
            "after_s": self.after if isinstance(self.after, float) else None,
            "during_s": self.during if isinstance(self.during, tuple) else None,
            "on": self.on,
            "jitter": self.jitter,
            "when": dict(self.when),
            "params": {**self.params, **self._params()},
        }

    def _params(self) -> dict[str, str | float | None]:
        if self.process is not None:
            return {"role": self.role or "engine_core"}
        return {"share": self.share, "stream": self.stream} if self.network is not None else {}
