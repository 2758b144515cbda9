"""Knowledge about each kind of server: one `Dialect` in DIALECTS, values and pure functions that other packages act on.
To add one: docs/how-to/add-a-dialect.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

from loadchaos.core.outcome_rules import OutcomeRules
from loadchaos.core.plugins import PluginTable
from loadchaos.server.dialects.base import SLOWEST_GAUGES_S, Dialect
from loadchaos.server.dialects.llamacpp import LLAMACPP
from loadchaos.server.dialects.lmdeploy import LMDEPLOY
from loadchaos.server.dialects.openai import OPENAI
from loadchaos.server.dialects.sglang import SGLANG
from loadchaos.server.dialects.transformers import TRANSFORMERS
from loadchaos.server.dialects.vllm import VLLM

__all__ = [
    "DEFAULT_DIALECT", "DIALECTS", "SLOWEST_GAUGES_S", "UNKNOWN", "Dialect", "any_server", "command_words",
    "outcome_rules_of_any_server",
]  # fmt: skip

DIALECTS = PluginTable[Dialect](
    "dialects",
    Dialect,
    {dialect.name: dialect for dialect in (VLLM, LMDEPLOY, SGLANG, TRANSFORMERS, LLAMACPP, OPENAI)},
)
DEFAULT_DIALECT = VLLM
"""Dialect assumed until the server has answered."""
UNKNOWN = OPENAI
"""Dialect of a server without a sign of any other."""


def any_server(texts: Callable[[Dialect], Sequence[re.Pattern[str]]]) -> tuple[re.Pattern[str], ...]:
    """Patterns of all dialects, without repeats. A gateway may hide which server is behind it. It loads plugins: call it in
    a function, not at import.
    """
    return tuple(dict.fromkeys(p for dialect in DIALECTS.values() for p in texts(dialect)))


@cache
def outcome_rules_of_any_server() -> OutcomeRules:
    """Rules where the dialect is not known: what any server calls a refusal is one, and [DONE] may be missing."""
    return OutcomeRules(
        validation=any_server(lambda dialect: dialect.validation),
        shed=any_server(lambda dialect: dialect.shed),
        engine_dead=any_server(lambda dialect: dialect.engine_failure),
        plain_validation=frozenset().union(*(dialect.refusal_statuses for dialect in DIALECTS.values())),
        sends_done=all(dialect.sends_done for dialect in DIALECTS.values()),
    )


def command_words() -> tuple[str, ...]:
    """Words in the command lines of the known servers."""
    return tuple(dialect.command_word for dialect in DIALECTS.values() if dialect.command_word)
