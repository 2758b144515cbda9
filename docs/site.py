"""Lay out the documentation as the sources of a site: `python -m docs.site FOLDER`, which `make site` runs.

The folder mirrors the repository, so that the relative links of a page hold in both. It has docs/ and every file outside of
it that a page links to. The navigation is that of docs/README.md.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
_IN_LIST = re.compile(r"(?<=\n\n)(?: {7}.*\n)+(?=\n)")
"""Code in an item of a numbered list: seven spaces on GitHub, eight in Python-Markdown."""
_HOME = ("README.md", "README.zh-CN.md")
_ASSETS = (".md", ".png", ".svg", ".py", ".json")


def links(page: Path) -> Iterator[Path]:
    """Files of the repository that a page links to."""
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            yield (page.parent / target).resolve()


def sources() -> list[Path]:
    """The pages, and what they link to."""
    found: dict[Path, None] = {}
    pages = sorted(file for file in (ROOT / "docs").rglob("*") if file.suffix in _ASSETS)
    waiting = [ROOT / name for name in _HOME] + [p for p in pages if p.suffix != ".py" or "repros" in p.parts]
    while waiting:
        file = waiting.pop()
        if file.is_file() and file.is_relative_to(ROOT) and file not in found:
            found[file] = None
            waiting += links(file) if file.suffix == ".md" else ()
    return sorted(found)


def navigation() -> list[dict[str, object]]:
    """The contents of docs/README.md: a section for each heading, a page for each entry. The rest is the last section."""
    nav: list[dict[str, object]] = [{"Home": _HOME[0]}]
    listed = {_HOME[0]}
    for section in (ROOT / "docs" / "README.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        entries = {f"docs/{path}": name for name, path in re.findall(r"\[([^\]]+)\]\(([^)\s#]+\.md)\)", text)}
        nav.append({title: [{html.escape(name.replace("`", "")): path} for path, name in entries.items()]})
        listed |= entries.keys()
    others = [str(file.relative_to(ROOT)) for file in sources() if file.suffix == ".md"]
    return [*nav, {"Project": [page for page in others if page not in listed]}]


def main() -> None:
    """Copy the sources and write the configuration beside them."""
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    for file in sources():
        copy = folder / "pages" / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            text = file.read_text(encoding="utf-8")
            copy.write_text(_IN_LIST.sub(lambda code: textwrap.indent(code[0], " "), text), encoding="utf-8")
        else:
            shutil.copyfile(file, copy)
    settings = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": "pages", "site_dir": "html", "nav": navigation()}
    (folder / "mkdocs.yml").write_text(json.dumps(settings, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
