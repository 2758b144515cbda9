"""Make docs/demo.svg, a terminal picture of the real output of `make demo`.

tmux new-session -d -s demo -x 110 -y 50 'make demo; sleep 5'; ...; tmux capture-pane -t demo -p -e -S -200 > demo.ansi
python docs/picture.py demo.ansi docs/demo.svg
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

_WIDTH = 110


def main() -> None:
    """Read a captured pane with its ANSI colours and write it as SVG."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    for line in source.read_text().rstrip().splitlines():
        console.print(Text.from_ansi(line), soft_wrap=False, overflow="crop", no_wrap=True)
    svg = console.export_svg(title="make demo")
    # Rich refers to fonts on another server; a picture in the docs must not load anything.
    target.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    main()
