"""Commands that run in the process of the test."""

from click.testing import CliRunner

from loadchaos.cli.main import main


def output_of(*words: object, code: int = 0, stdin: str | None = None) -> str:
    """Output of `loadchaos WORDS`, which must end with this exit code."""
    done = CliRunner().invoke(main, [str(word) for word in words], input=stdin)
    assert done.exit_code == code, f"{done.output}\n{done.exception}"
    return done.output
