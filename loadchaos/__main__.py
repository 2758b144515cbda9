"""python -m loadchaos."""

from loadchaos.cli import main

main()
