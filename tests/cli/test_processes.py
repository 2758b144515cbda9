import pytest

from tests.invoking import output_of

LOAD = ("--target", "http://127.0.0.1:1", "--num-prompts", "100000", "--random-input-len", "64")


@pytest.mark.parametrize(
    ("arguments", "processes"),
    [(("--concurrency", "2"), "1 load process "), (("--concurrency", "4000"), "4 load processes ")],
)
def test_processes_auto_is_told_before_anything_is_sent(
    arguments: tuple[str, ...], processes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadchaos.core.cores.usable_cores", lambda: 4)
    options = ("--random-output-len", "512", "--processes", "auto", "--dry-run")
    assert f"--processes auto: {processes}" in output_of("run", *LOAD, *arguments, *options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--processes", "0"), "--processes: a number of at least 1, or auto, was expected (got 0)"),
        (("--processes", "many"), "--processes: a number of at least 1, or auto, was expected (got many)"),
        (("--processes", "auto", "--master", "--expect-workers", "2"), "--master sends no load"),
    ],
)
def test_processes_that_cannot_be_used_are_refused(arguments: tuple[str, ...], message: str) -> None:
    assert message in output_of("run", "smoke", *arguments, code=2)
