"""Commands that run in the process of the test."""

from click.testing import CliRunner

from loadchaos.cli.main import main


def output_of(*words: object, code: int | None = 0, stdin: str | None = None) -> str:
    """Output of `loadchaos WORDS`, which must end with this exit code; None: with 0 or 1."""
    done = CliRunner().invoke(main, [str(word) for word in words], input=stdin)
    assert done.exit_code in ((0, 1) if code is None else (code,)), f"{done.output}\n{done.exception}"
    return done.output
