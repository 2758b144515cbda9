"""An abort swaps the rows of two other requests in the batch."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "rows_slip_on_abort"
ABOUT = "an abort shifts the rows of the running batch: two clients get each other's tokens; no log line says so"
UPSTREAM = ""
REMEDIES: dict[str, object] = {}


def plant(rules: EngineRules) -> None:
    """Swap rows on abort. It takes an abort while at least two younger requests run. Without aborts no answer is
    swapped.
    """
    rules.swap_rows_on_abort = True
