"""report.html in a real headless Chromium: read under the pointer, enlarged by dragging, whole without scripts."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadchaos.ledger import Reader, RunFolder
from loadchaos.tell import html
from loadchaos.tell.series import Series
from tests.cockpit.browser import Browser, program


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if program() is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    tab = Browser(tmp_path, 1180, 1000)
    tab.ask("Network.enable")
    yield tab
    tab.close()


@pytest.fixture
def page(run_folder: RunFolder, verdict: dict[str, Any]) -> str:
    series = Series()
    for row in Reader(run_folder).new(final=True):
        series.feed(row)
    return html.write(run_folder, verdict, series).as_uri()


class Mouse:
    """The pointer over one chart; places are shares of its width."""

    def __init__(self, browser: Browser, chart: int) -> None:
        browser.js(f"document.querySelectorAll('.plot')[{chart}].scrollIntoView({{block: 'center'}})")
        place = f"document.querySelectorAll('.plot')[{chart}].getBoundingClientRect()"
        self._browser = browser
        self._box = browser.js(f"(r => [r.x, r.y, r.width, r.height])({place})")

    def __call__(self, kind: str, at: float, pressed: bool = False) -> None:
        x, y, width, height = self._box
        self._browser.ask(
            "Input.dispatchMouseEvent", type=kind, x=x + width * at, y=y + height / 2, buttons=int(pressed), clickCount=1,
            button="none" if kind == "mouseMoved" else "left",
        )  # fmt: skip


def keys(browser: Browser) -> list[str]:
    found: list[str] = browser.js("[...document.querySelectorAll('.key')].map(e => e.innerText)")
    return found


def test_pointing_at_a_chart_tells_what_all_of_them_show_there(browser: Browser, page: str) -> None:
    browser.open(page)
    assert not any(re.search(r"\d+ ms", k) for k in keys(browser))
    Mouse(browser, 1)("mouseMoved", 0.4)
    browser.until("document.getElementById('now').textContent.startsWith('at 0:')", "the time is told")
    told = keys(browser)
    assert any(re.fullmatch(r"p50 ?\d+ ms", " ".join(k.split())) for k in told), told
    assert any(re.fullmatch(r"ok ?\d+", " ".join(k.split())) for k in told), told
    assert any(k.endswith("%") for k in told), told
    assert browser.js("[...document.querySelectorAll('.cross')].every(e => e.offsetHeight > 0)")
    assert browser.errors == [], "an error, or a script that the page forbids"


def test_what_the_pointer_reads_is_what_was_drawn(browser: Browser, page: str) -> None:
    """The value read and the height of the line there agree, for the chart of tokens (its scale begins at 0)."""
    browser.open(page)
    chart = browser.js("[...document.querySelectorAll('.wide')].findIndex(f => f.innerText.startsWith('Tokens'))")
    Mouse(browser, chart)("mouseMoved", 0.4)
    browser.until("document.getElementById('now').textContent", "the time is told")
    drawn = browser.js(f"""(() => {{
        const f = document.querySelectorAll('.wide')[{chart}], path = f.querySelector('path.line');
        const at = parseFloat(f.querySelector('.cross').style.left) * 10, top = f.querySelector('.y.top').innerText;
        for (let l = 0; l < path.getTotalLength(); l += 0.2) {{
          const p = path.getPointAtLength(l);
          if (p.x >= at) return (1 - p.y / 100) * parseFloat(top.replace(',', ''));
        }} }})()""")
    told = browser.js(f"document.querySelectorAll('.wide')[{chart}].querySelector('.key .value').innerText")
    assert float(told.replace(",", "")) == pytest.approx(drawn, rel=0.05)


def test_dragging_enlarges_a_stretch_everywhere_and_a_button_shows_the_whole_again(browser: Browser, page: str) -> None:
    browser.open(page)
    ticks = "[...document.querySelectorAll('.times .axis')].map(a => a.innerText)"
    bars = "[...document.querySelectorAll('.bar')].map(b => b.hidden)"
    whole, all_bars = browser.js(ticks), browser.js(bars)
    assert browser.js("document.getElementById('whole').hidden")
    mouse = Mouse(browser, 2)
    mouse("mousePressed", 0.25, True)
    mouse("mouseMoved", 0.4, True)
    mouse("mouseMoved", 0.5, True)
    mouse("mouseReleased", 0.5)
    browser.until("!document.getElementById('whole').hidden", "a way back")
    boxes = browser.js("[...document.querySelectorAll('.times svg')].map(s => s.getAttribute('viewBox'))")
    assert len(set(boxes)) == 1
    assert [float(x) for x in boxes[0].split()] == pytest.approx([250, 0, 250, 100], abs=3)
    assert len(set(browser.js(ticks))) == 1
    assert browser.js(ticks) != whole
    assert True in browser.js(bars), "what lies outside of the stretch is not drawn"
    browser.click("document.getElementById('whole')", "the whole run")
    browser.until("document.getElementById('whole').hidden", "the whole run")
    assert (browser.js(ticks), browser.js(bars)) == (whole, all_bars)
    assert browser.errors == []


def test_the_page_asks_nobody_for_anything_and_shows_the_same_without_scripts(browser: Browser, page: str) -> None:
    browser.open(page)
    asked = "performance.getEntriesByType('resource').map(e => e.name)"
    assert browser.js(asked) == []
    shape = "document.querySelectorAll('.times path').length"
    shown, height = browser.js(shape), browser.js("document.querySelector('.times').offsetHeight")
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(page)
    assert browser.js(shape) == shown > 8
    assert browser.js("document.querySelector('.times').offsetHeight") == pytest.approx(height, abs=40)
    assert browser.js("document.getElementById('hint').hidden"), "nothing is promised that does not work"


def test_nothing_sticks_out_on_a_phone(browser: Browser, page: str) -> None:
    browser.ask("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    browser.open(page)
    assert browser.js("document.documentElement.scrollWidth") == 390
