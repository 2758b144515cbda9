"""Locust with our locustfile and without settings of its own.

A run-time in LOCUST_RUN_TIME, ~/.locust.conf, or locust.conf and pyproject.toml of the current folder would end our load
early; the profile alone says what is sent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from loadchaos.core.lifetime import PARENT_VARIABLE, PYTHON_MODULE, end_with, parent_pid

LOCUST = (*PYTHON_MODULE, "loadchaos.load.locust_main", "-f", str(Path(__file__).with_name("locustfile.py")))
"""Begin of the command line of each Locust process that we start."""


SESSION_VARIABLE = "LOADCHAOS_SESSION"
"""Set for the web UI: folder of its session."""
WEB_TOKEN_VARIABLE = "LOADCHAOS_WEB_TOKEN"  # noqa: S105 - the name of a variable
WEB_PASSWORD_VARIABLE = "LOADCHAOS_WEB_PASSWORD"  # noqa: S105 - the name of a variable


def main() -> None:
    if PARENT_VARIABLE in os.environ:  # it is not for a worker on another machine
        # Before Locust: a forked worker tries for five minutes to reach a master that died meanwhile. Threads do not fork.
        os.register_at_fork(after_in_child=_end_with_run)
        _end_with_run()
    for name in [name for name in os.environ if name.startswith("LOCUST_")]:
        del os.environ[name]
    if (here := str(Path.cwd())) not in sys.path:
        sys.path_importer_cache[here] = None  # Locust adds it, and a json.py there would run in place of the library
    from locust import argument_parser  # here: it reads these variables
    from locust.main import main as run_locust

    for make_parser in (argument_parser.get_empty_argument_parser, argument_parser.get_parser):
        defaults = make_parser.__defaults__ or ()
        make_parser.__defaults__ = tuple(() if v == argument_parser.DEFAULT_CONFIG_FILES else v for v in defaults)
    cast("Callable[[], None]", run_locust)()


def _end_with_run() -> None:
    end_with(parent_pid())


if __name__ == "__main__":
    main()
