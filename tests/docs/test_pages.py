import re
import shlex
import shutil
import textwrap
from pathlib import Path

import click
import pytest

from loadchaos.cli.main import main
from tests.invoking import output_of

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh-CN.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name(page)}: {target}"
        assert not anchor or anchor in anchors(file), f"{name(page)}: {target}"


def test_table_of_contents_names_every_page() -> None:
    contents = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [p.relative_to(ROOT / "docs") for p in PAGES if p.is_relative_to(ROOT / "docs")]
    assert [str(p) for p in pages if p != Path("README.md") and f"({p})" not in contents] == []


def test_page_of_profiles_has_each_shipped_one() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(profile.stem for profile in (ROOT / "profiles").glob("*.yaml"))


TRANSLATED = [page for page in PAGES if page.name.endswith(".zh-CN.md")]


@pytest.mark.parametrize("page", TRANSLATED, ids=name)
def test_translation_has_the_commands_and_the_structure_of_its_page(page: Path) -> None:
    def parts(text: str) -> tuple[list[str], list[str], int]:
        heads = re.findall(r"^(#+) ", text, re.MULTILINE)
        spans = sorted(re.findall(r"`((?:--|loadchaos |make )[^`]*)`", text))
        return re.findall(r"^    .*$", text, re.MULTILINE) + spans, heads, text.count("\n|")

    original = page.with_name(page.name.replace(".zh-CN", ""))
    assert parts(page.read_text(encoding="utf-8")) == parts(original.read_text(encoding="utf-8"))
    assert f"]({original.name})" in page.read_text(encoding="utf-8")
    assert f"]({page.name})" in original.read_text(encoding="utf-8")


def test_translations_are_found() -> None:
    assert len(TRANSLATED) == 2


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def commands(page: Path) -> list[tuple[str, ...]]:
    """Every `loadchaos ...` line of the indented blocks of a page, and those in its text that have arguments, as words."""
    text = re.sub(r" *\\\n *", " ", page.read_text(encoding="utf-8"))
    lines = re.findall(r"^    (?:\S*/)?(loadchaos [a-z].*)$", text, re.MULTILINE)
    if page.name != "cli.md":  # its text is that of the commands themselves
        lines += [" ".join(line.split()) for line in re.findall(r"`(loadchaos [a-z]+ [^`]+)`", text)]
    plain = [re.sub(r"\s{2,}.*$|\s#.*$|\s&$|\[|\]", "", line).replace("|", " ") for line in lines]
    return [tuple(shlex.split(line)[1:]) for line in plain]


USED = [(name(page), words) for page in PAGES for words in commands(page)]


def command_of(words: tuple[str, ...]) -> tuple[click.Command, tuple[str, ...]]:
    """The command that the words name, and the words after it."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"no command {words[0]}"
        command, words = found, words[1:]
    return command, words


@pytest.mark.parametrize(("page", "words"), USED, ids=[f"{p}: {' '.join(w)}" for p, w in USED])
def test_commands_of_the_pages_exist_with_their_options(page: str, words: tuple[str, ...]) -> None:
    command, rest = command_of(words)
    context = click.Context(command)
    parser = command.make_parser(context)
    if command.name == "soak":  # options of `run` follow
        known = {p.name for p in command.params}
        for param in command_of(("run",))[0].params:
            if param.name not in known:
                param.add_to_parser(parser, context)
    given, _, _ = parser.parse_args(list(rest))
    choices = {p.name: p for p in command.params if isinstance(p.type, click.Choice)}
    for option in choices.keys() & given.keys():
        choices[option].type_cast_value(context, given[option])


RUN_HERE = (
    "check",
    "classify",
    "explain",
    "images",
    "init",
    "new",
    "oracles",
    "plugins",
    "profiles",
    "runs",
    "signatures",
)
WHY_NOT = {
    **dict.fromkeys(
        ("run", "watch", "soak", "suite", "capacity", "worker"),
        "sends a load: tests/run, tests/campaigns, tests/load/cluster",
    ),
    **dict.fromkeys(("replay", "minimise", "bisect", "hunt"), "needs servers: tests/campaigns"),
    **dict.fromkeys(
        ("probe", "launch", "record", "follow", "sim"), "needs a server, or is one: tests/run, tests/campaigns/recorder"
    ),
    "doctor": "needs a server, its log or an installed one: tests/cli/test_doctor.py",
    **dict.fromkeys(("judge", "report", "compare", "trend", "export"), "needs runs: tests/cli, tests/report"),
}
LOAD_OPTIONS = [
    w for _, w in USED if w[0] == "run" and len(w) > 2 and w[1].startswith("-") and "--random-input-len" in w
]
NAMED = [w for page, w in USED if w[0] in RUN_HERE and page != "docs/cli.md" and not any(a.isupper() for a in w)]


@pytest.mark.parametrize("words", dict.fromkeys(NAMED), ids=" ".join)
def test_commands_about_files_run(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for profile in () if words[0] == "new" else ("chat.yaml", "mine.yaml"):
        shutil.copy(ROOT / "profiles" / "smoke.yaml", profile)
    Path("server.log").write_text(
        "INFO 11-22 10:00:00 Starting\nERROR 11-22 10:00:01 RuntimeError: CUDA out of memory\n"
    )
    output_of(*words, code=1 if words[0] == "classify" else 0)  # 1: something was found


@pytest.mark.parametrize("words", dict.fromkeys(LOAD_OPTIONS), ids=" ".join)
def test_loads_given_by_options_make_a_profile(words: tuple[str, ...]) -> None:
    assert "traffic:" in output_of(*words, "--print-profile")


def test_every_command_of_the_pages_is_run_by_a_test_or_says_why_not() -> None:
    assert {words[0] for _, words in USED} - {*RUN_HERE, *WHY_NOT} == set()
    assert len(NAMED) > 5
    assert len(LOAD_OPTIONS) > 3


def test_commands_are_found() -> None:
    assert len(USED) > 20


def profiles() -> list[tuple[str, str]]:
    """(page, text) of every indented block that begins with `name:`."""
    found = []
    for page in PAGES:
        for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", page.read_text(encoding="utf-8"), re.MULTILINE):
            text = textwrap.dedent(block).strip("\n")
            body = text.partition("\n")[2] if text.startswith("#") else text
            if body.startswith("name:"):
                found.append((name(page), text))
    return found


EXAMPLES = profiles()


@pytest.mark.parametrize(("page", "text"), EXAMPLES, ids=[p for p, _ in EXAMPLES])
def test_examples_are_valid_profiles(page: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(text + "\n")
    output_of("check", file)


def test_examples_are_found() -> None:
    assert len(EXAMPLES) >= 2


def test_paths_of_the_architecture_exist() -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("ARCHITECTURE.md", "CONTRIBUTING.md"))
    paths = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", text))
    assert len(paths) > 20
    assert [p for p in paths if not (ROOT / p).exists() and not (ROOT / "loadchaos" / p).exists()] == []
