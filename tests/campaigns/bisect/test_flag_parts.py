import pytest

from loadchaos.campaigns.bisect import flag_parts as parts
from loadchaos.campaigns.bisect.flag_session import likely_changes
from loadchaos.core.errors import OptionError


@pytest.mark.parametrize(
    ("flag", "keys", "kept", "shorter"),
    [
        (("--s", '{"method":"mtp","n":2}'), ["method", "n"], ["n"], ("--s", '{"n":2}')),
        (('--s={"method": "mtp", "n": {"a": 1}}',), ["method", "n"], ["n"], ('--s={"n":{"a":1}}',)),
        (("--limit", "image=8,video=0"), ["image", "video"], ["video"], ("--limit", "video=0")),
        (("--flag", "max_model_len=4096"), [], [], None),
        (("--seed", "1"), [], [], None),
        (("--s", "{not json"), [], [], None),
        (("--a", "1", "2"), [], [], None),
        (("--eager",), [], [], None),
    ],
)
def test_flag_parts_of_json_and_pairs(flag: tuple[str, ...], keys: list[str], kept: list[str], shorter: object) -> None:
    assert parts.keys(flag) == keys
    if shorter is not None:
        assert parts.with_keys(flag, kept) == shorter


@pytest.mark.parametrize(
    ("change", "after"),
    [
        ("--no-x", (("--a", "1"), ("--no-x",), ("--b=2",))),
        ("--b 3", (("--a", "1"), ("--x",), ("--b", "3"))),
        ("--c", (("--a", "1"), ("--x",), ("--b=2",), ("--c",))),
    ],
)
def test_flag_change_replaces_what_sets_the_same(change: str, after: object) -> None:
    assert parts.changed((("--a", "1"), ("--x",), ("--b=2",)), parts.parse_change(change)) == after


def test_flag_change_of_the_embedded_server() -> None:
    flags = (("--flag", "async_scheduling=true"), ("--flag", "speed=4"))
    found = parts.changed(flags, parts.for_embedded(("--no-async-scheduling",)))
    assert found == (("--flag", "async-scheduling=false"), ("--flag", "speed=4"))
    assert parts.for_embedded(("--max-num-seqs", "1")) == ("--flag", "max-num-seqs=1")
    assert parts.for_embedded(("--enforce-eager",)) == ("--flag", "enforce-eager=true")


@pytest.mark.parametrize("text", ["", "max-num-seqs 1", "--x 'unclosed"])
def test_flag_change_that_is_no_flag_is_a_mistake(text: str) -> None:
    with pytest.raises(OptionError, match="--change"):
        parts.parse_change(text)


def test_flags_that_a_remedy_names() -> None:
    text = (
        "Use --enforce-eager, or --no-async-scheduling. Set --mm-processor-cache-gb 0. Run without --speculative-config. "
        "Lower --max-num-seqs. Upgrade to 0.16."
    )
    assert parts.flags_of_remedy(text) == ["--enforce-eager", "--no-async-scheduling", "--mm-processor-cache-gb 0"]


def test_likely_changes_are_those_of_the_user_the_remedy_and_the_server() -> None:
    found = likely_changes(("/venv/bin/vllm", "serve", "M"), ["--block-size 32"], "Set --max-num-seqs 1.")
    assert found[:2] == [("--block-size", "32"), ("--max-num-seqs", "1")]
    assert ("--no-async-scheduling",) in found
    assert found.count(("--max-num-seqs", "1")) == 1
    assert likely_changes(("./own-server",), [], "") == []
