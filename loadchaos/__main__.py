"""Entry of the command. A Ctrl-C while its modules are imported ends it without a traceback."""

from __future__ import annotations

import sys


def start() -> None:
    try:
        from loadchaos.cli.main import main
    except KeyboardInterrupt:
        print("loadchaos: interrupted", file=sys.stderr)
        sys.exit(130)  # exit_codes.INTERRUPTED, which is not imported
    main(prog_name="loadchaos")


if __name__ == "__main__":
    start()
