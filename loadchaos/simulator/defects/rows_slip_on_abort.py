"""A client that leaves takes its row out of the batch, and two others come back in each other's place."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "rows_slip_on_abort"
ABOUT = "an abort shifts the rows of the running batch: two clients get each other's tokens; no log line says so"
UPSTREAM = ""
REMEDIES: dict[str, object] = {}


def plant(rules: EngineRules) -> None:
    """It takes an abort while at least two younger requests run; who sends and reads to the end meets no mix-up."""
    rules.swap_rows_on_abort = True
