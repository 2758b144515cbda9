"""python -m loadchaos."""

from loadchaos.cli.main import main

main()
