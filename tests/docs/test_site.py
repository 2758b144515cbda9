import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from docs import site

ROOT = Path(__file__).parents[2]


def pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in pages(part)]


def test_site_has_each_page_once_and_what_pages_link_to(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "docs.site", tmp_path / "site"], check=True, cwd=ROOT)
    laid_out = tmp_path / "site" / "pages"
    named = pages(json.loads((tmp_path / "site" / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert sorted(named) == sorted(str(page.relative_to(laid_out)) for page in laid_out.rglob("*.md"))
    assert {"README.md", "README.zh-CN.md", "ARCHITECTURE.md", "docs/cli.md", "docs/measured/hunt.md"} <= set(named)
    lost = [(page, link) for page in named for link in site.links(laid_out / page) if not link.exists()]
    assert lost == []
    page = (
        "docs/repros/vllm-0.32.0-top-k-under-speculation/README.md"  # code in a numbered list, which needs eight spaces
    )
    assert "\n       python repro.py" in (ROOT / page).read_text(encoding="utf-8")
    assert "\n        python repro.py" in (laid_out / page).read_text(encoding="utf-8")
