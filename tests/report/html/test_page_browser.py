"""Tests of report.html in a headless Chromium: cursor, zoom, no scripts."""

import re
from collections.abc import Iterator

import pytest

from loadchaos.analysis.figures.series import Series
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.report.html import page as html
from tests.load.webui.browser import Browser, program
from tests.rows import folded


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if program() is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    tab = Browser(tmp_path_factory.mktemp("browser"))
    yield tab
    tab.close()


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """Page in light mode, with scripts and a wide window."""
    chromium.ask("Emulation.setScriptExecutionDisabled", value=False)
    chromium.ask("Emulation.setEmulatedMedia", media="", features=[])
    chromium.ask("Emulation.setDeviceMetricsOverride", width=1180, height=1000, deviceScaleFactor=1, mobile=False)
    chromium.open("about:blank")
    chromium.errors, chromium.requests = [], []
    return chromium


@pytest.fixture
def page(run_folder: RunFolder, verdict: Verdict) -> str:
    series = folded(Series(), Reader(run_folder).new(final=True))
    return html.write(run_folder, verdict, series).as_uri()


class Mouse:
    """Move the pointer over one chart; places are shares of its width."""

    def __init__(self, browser: Browser, chart: int) -> None:
        browser.js(f"document.querySelectorAll('.u-over')[{chart}].scrollIntoView({{block: 'center'}})")
        place = f"document.querySelectorAll('.u-over')[{chart}].getBoundingClientRect()"
        self._browser = browser
        self._box = browser.js(f"(r => [r.x, r.y, r.width, r.height])({place})")

    def __call__(self, kind: str, at: float, pressed: bool = False) -> None:
        x, y, width, height = self._box
        self._browser.ask(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x + width * at,
            y=y + height / 2,
            buttons=int(pressed),
            clickCount=1,
            button="none" if kind == "mouseMoved" else "left",
        )


CANVASES = "[...document.querySelectorAll('.uplot canvas')]"
PICTURES = f"{CANVASES}.map(c => c.toDataURL())"
COLOURS = f"""{CANVASES}.map(c => {{
    const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set();
    for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
    return seen.size }})"""
CURSORS = "[...document.querySelectorAll('.u-cursor-x:not(.u-off)')].map(e => e.style.transform)"


def keys(browser: Browser) -> list[str]:
    found: list[str] = browser.js("[...document.querySelectorAll('.key')].map(e => e.innerText)")
    return found


def test_cursor_shows_values_of_all_charts(browser: Browser, page: str) -> None:
    browser.open(page)
    assert min(browser.js(COLOURS)) > 5, "a chart is blank"
    assert not any(re.search(r"\d+ ms", k) for k in keys(browser))
    Mouse(browser, 1)("mouseMoved", 0.4)
    # 0.4 of 43 s that begin 2 s before the load, on the clock of the run's own record.
    browser.until(
        r"document.getElementById('now').textContent.match(/^at 0:1\d, \d\d:\d\d:\d\d UTC$/)", "the time is shown"
    )
    shown = keys(browser)
    assert any(re.fullmatch(r"p50 ?\d+ ms", " ".join(k.split())) for k in shown), shown
    assert any(re.fullmatch(r"ok ?\d+", " ".join(k.split())) for k in shown), shown
    assert any(k.endswith("%") for k in shown), shown
    places = browser.js(CURSORS)
    assert len(places) == browser.js("document.querySelectorAll('.uplot').length")
    assert len(set(places)) == 1
    assert browser.js("[...document.querySelectorAll('.cross')].every(e => e.offsetHeight > 0)"), "the timeline, too"
    Mouse(browser, 1)("mouseMoved", 1.2)
    browser.until("document.getElementById('now').textContent === ''", "no value is shown outside the charts")
    assert not any(re.search(r"\d+ ms", k) for k in keys(browser))
    assert browser.errors == [], "an error, or a script that the page forbids"


def test_cursor_values_match_the_drawn_points(browser: Browser, page: str) -> None:
    """Check the canvas colour at the point of the shown value."""
    browser.open(page)
    chart = browser.js("[...document.querySelectorAll('.wide')].findIndex(f => f.innerText.startsWith('Tokens'))")
    Mouse(browser, chart)("mouseMoved", 0.4)
    browser.until("document.getElementById('now').textContent", "the time is shown")
    shown = browser.js(f"document.querySelectorAll('.wide')[{chart}].querySelector('.key .value').innerText")
    values = browser.js(f"JSON.parse(document.getElementById('numbers').textContent).charts[{chart}].curves[0].values")
    assert float(shown.replace(",", "")) in values
    assert max(v for v in values if v is not None) > 0
    off = browser.js(f"""(() => {{
        const f = document.querySelectorAll('.wide')[{chart}], canvas = f.querySelector('canvas');
        const box = canvas.getBoundingClientRect(), point = f.querySelector('.u-cursor-pt').getBoundingClientRect();
        const at = [point.x + point.width / 2 - box.x - 2, point.y + point.height / 2 - box.y - 2].map(Math.round);
        const {{ data }} = canvas.getContext('2d').getImageData(...at, 5, 5);
        const meant = getComputedStyle(f.querySelector('.key'), '::before').backgroundColor.match(/\\d+/g).map(Number);
        const off = i => Math.max(...meant.map((c, k) => Math.abs(c - data[4 * i + k])));
        return Math.min(...Array.from({{ length: 25 }}, (_, i) => off(i)));
        }})()""")
    assert off < 40, "of 255, as edges of lines are mixed with what is behind them"


def test_zoom_applies_to_all_charts_and_can_be_reset(browser: Browser, page: str) -> None:
    browser.open(page)
    bars = "[...document.querySelectorAll('.bar')].map(b => [b.hidden, b.style.left])"
    ticks = "document.querySelector('.lanes .axis').innerText"
    whole, all_bars, all_ticks = browser.js(PICTURES), browser.js(bars), browser.js(ticks)
    heat = "[...document.querySelectorAll('.heat svg')].map(e => e.getAttribute('viewBox').split(' ').map(Number))"
    assert browser.js(heat) == [[0, 0, 1000, 100]] * 2
    assert browser.js("document.getElementById('whole').hidden")
    mouse = Mouse(browser, 2)
    mouse("mousePressed", 0.25, True)
    mouse("mouseMoved", 0.4, True)
    mouse("mouseMoved", 0.6, True)
    mouse("mouseReleased", 0.6)
    browser.until("!document.getElementById('whole').hidden", "a way back")
    assert not set(browser.js(PICTURES)) & set(whole), "every chart shows the stretch"
    assert browser.js(ticks) != all_ticks
    assert all(box == pytest.approx([250, 0, 350, 100], abs=5) for box in browser.js(heat)), "the heatmaps, too"
    assert True in [hidden for hidden, _ in browser.js(bars)], "what lies outside of the stretch is not drawn"
    for at, second in ((0.02, 9), (0.98, 23)):  # 43 s that begin at -2 s
        mouse("mouseMoved", at)
        browser.until(f"/^at 0:0?{second}/.test(document.getElementById('now').textContent)", f"{second} s is read")
    browser.click("document.getElementById('whole')", "the whole run")
    browser.until("document.getElementById('whole').hidden", "the whole run")
    assert (browser.js(PICTURES), browser.js(bars), browser.js(ticks)) == (whole, all_bars, all_ticks)
    assert browser.js(heat) == [[0, 0, 1000, 100]] * 2
    assert browser.errors == []


def test_logarithmic_chart_draws_zero_at_the_lowest_value(
    browser: Browser, run_folder: RunFolder, verdict: Verdict
) -> None:
    series = Series()
    for second, ms in enumerate([50] * 30 + [0] * 5 + [30_000] * 2):
        at = (5000 + second) * 1_000_000_000
        first = at + ms * 1_000_000
        series.fold({"row": "end", "at_ns": at, "due_ns": at, "first_token_ns": first, "outcome": "ok", "traffic": "t"})
    browser.open(html.write(run_folder, verdict, series).as_uri())
    assert "logarithmic" in browser.js("document.querySelectorAll('.wide')[1].innerText")
    assert browser.js(COLOURS)[1] > 5
    assert browser.errors == []


def test_arrow_keys_move_the_cursor(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.js("document.querySelector('.u-over').focus()")
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        browser.ask("Input.dispatchKeyEvent", type="keyDown", key=key)
        seen.append(browser.until("document.getElementById('now').textContent", "a time"))
        assert len(set(browser.js(CURSORS))) == 1
    assert seen[0] == seen[2] != seen[1]


def test_dark_mode_and_print(browser: Browser, page: str) -> None:
    browser.open(page)
    day = browser.js(PICTURES)
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.until(f"{PICTURES}.every((p, i) => p !== {day!r}[i])", "charts in the colours of the night")
    browser.ask("Emulation.setEmulatedMedia", media="print")
    assert browser.js("[...document.querySelectorAll('.uplot')].every(e => !e.offsetHeight)")
    assert browser.js("[...document.querySelectorAll('.plot svg')].every(e => e.getBoundingClientRect().height > 50)")


def test_page_sends_no_request_and_is_complete_without_scripts(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert browser.requests == [page]
    shape = "document.querySelectorAll('.times path').length"
    drawn = "document.querySelectorAll('.wide:not(.heat) svg')"
    cells = "[...document.querySelectorAll('path.heat')].map(e => e.getBoundingClientRect().width)"
    assert min(browser.js(cells)) > 10, "the heatmaps are drawn in any case"
    shown, height = browser.js(shape), browser.js("document.querySelector('.times').offsetHeight")
    assert browser.js(f"[...{drawn}].every(e => !e.getBoundingClientRect().height)"), "uPlot's in their place"
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(page)
    assert browser.js(shape) == shown > 8
    assert min(browser.js(cells)) > 10
    assert browser.js(f"[...{drawn}].every(e => e.getBoundingClientRect().height > 50)")
    assert browser.js("document.querySelector('.times').offsetHeight") == pytest.approx(height, rel=0.15)
    assert browser.js("document.getElementById('hint').hidden"), "nothing is promised that does not work"


def test_page_fits_a_phone(browser: Browser, page: str) -> None:
    phone = {"height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.ask("Emulation.setDeviceMetricsOverride", width=390, **phone)
    browser.open(page)
    assert browser.js("document.documentElement.scrollWidth") == 390
    browser.ask("Emulation.setDeviceMetricsOverride", width=320, **phone)
    browser.until(f"{CANVASES}.every(c => c.getBoundingClientRect().right <= 320)", "it was turned: charts as wide")


@pytest.mark.parametrize("width", [1180, 1100, 800, 600])
def test_axis_labels_stay_inside_the_page(browser: Browser, page: str, width: int) -> None:
    browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
    browser.open(page)
    at_the_end = (
        "[...document.querySelectorAll('.axis')].forEach(a => a.innerHTML = '<span style=\"left:100%\">200 ms</span>')"
    )
    browser.js(at_the_end)
    assert browser.js("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
