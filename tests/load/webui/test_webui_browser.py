"""The web UI in a headless Chromium, with a real run on the simulator."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.load.webui.browser import Browser, program
from tests.load.webui.conftest import Session

pytestmark = pytest.mark.slow

PANEL = "document.getElementById('loadchaos-panel').shadowRoot"
STRIP = "document.getElementById('loadchaos-strip')"


def tab(name: str) -> str:
    return f"[...document.querySelectorAll('[role=tab]')].find(t => t.textContent.trim() == '{name}')"


def button(name: str) -> str:
    return f"[...document.querySelectorAll('button')].filter(b => b.textContent.trim() == '{name}').at(-1)"


def visible(browser: Browser, selector: str) -> list[str]:
    """Texts of the elements that are seen, from left to right and from top to bottom."""
    found: list[str] = browser.js(
        f"[...document.querySelectorAll({selector!r})].filter(e => e.checkVisibility())"
        ".map(e => [e.getBoundingClientRect(), e.textContent.trim()])"
        ".sort(([a], [b]) => a.top - b.top || a.left - b.left).map(([, text]) => text)"
    )
    return found


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if program() is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    it = Browser(tmp_path)
    yield it
    it.close()


def verdict(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run / "verdict.json").read_text())
    return result


@pytest.mark.timeout(240)
def test_web_ui_start_attack_death_incident_edit_stop_and_start_again(
    browser: Browser, web: Callable[..., Session], tmp_path: Path
) -> None:
    session = web()
    browser.open(session.url)
    browser.until(f"{STRIP}.textContent.includes('short answers by ten users')", "the profile is told")
    browser.until(
        "document.querySelector('h2').textContent == 'Start a run of small'", "the form in words of the profile"
    )
    labels = [text.split("\u2009")[0] for text in visible(browser, "form label")]
    assert labels[:3] == ["Users at once (the profile: 10)", "Users started each second", "Server (set by --target)"]
    assert visible(browser, "a[href*='aka.ms']") == []
    browser.click(button("Start"), "Start")
    browser.until(f"{PANEL}.textContent.includes('Timeline')", "the Server tab first")
    tabs = ["Server", "Attacks", "Failures", "Statistics", "Charts", "Capacity", "Download Data"]
    assert visible(browser, "[role=tab]") == tabs

    browser.click(tab("Attacks"), "the Attacks tab")
    browser.click(f"{PANEL}.getElementById('fire-reset_prefix_cache')", "a button for each attack")
    browser.until(f"{PANEL}.textContent.includes('reset_prefix_cache fired')", "the run's answer")
    browser.until(
        f"[...{PANEL}.querySelectorAll('td')].some(t => t.textContent == 'hand')", "the attack among those done"
    )
    browser.picture(tmp_path / "attacks.png")

    browser.click(button("Edit"), "Edit")
    browser.fill("document.querySelector('input[name=userCount]')", "4", "the number of users")
    browser.click(button("Update"), "Update")
    (run,) = session.runs()
    browser.until(f"{PANEL}.textContent.includes('4 users at 10 a second')", "the edit among what was pressed")
    browser.until("document.body.innerText.match(/Users\\s+4\\s/)", "Locust's own count")

    browser.click(tab("Statistics"), "the Statistics tab")
    browser.until(
        "['TTFT', 'ITL', 'POST'].every(k => [...document.querySelectorAll('td')].some(t => t.textContent == k))",
        "TTFT and ITL beside the requests",
    )
    browser.click(tab("Charts"), "the Charts tab")
    browser.until(
        f"[...{PANEL}.querySelectorAll('figure')].find(f => f.textContent.includes('Time to first token'))"
        ".querySelector('path.line').getBoundingClientRect().width > 5",
        "a line of TTFT in the charts",
    )

    browser.click(tab("Attacks"), "the Attacks tab again")
    browser.click(f"{PANEL}.getElementById('fire-sigkill_engine_core')", "the signal that kills the engine")
    browser.click(tab("Server"), "the Server tab")
    browser.until(f"{PANEL}.querySelector('a.incident')", "the incident opens while the run goes on")
    browser.until(f"{PANEL}.querySelector('.lane .state-dead')", "the death on the timeline")
    browser.picture(tmp_path / "server.png")
    browser.click(tab("Failures"), "the Failures tab")
    browser.until("document.body.innerText.includes('engine_core_proc_died')", "the failure by its id")
    browser.picture(tmp_path / "failures.png")
    browser.click(tab("Server"), "the Server tab again")
    link = browser.until(f"{PANEL}.querySelector('a.incident').href", "the incident's link")
    assert browser.js(f"fetch('{link}').then(a => a.text())").startswith("#")

    browser.click(button("Stop"), "Stop")
    browser.until(f"{STRIP}.dataset.verdict", "the verdict")
    report = browser.until(
        f"[...{STRIP}.querySelectorAll('a')].find(a => a.textContent == 'report').href", "the report"
    )
    result = verdict(run)
    assert [text.partition(": ")[2] for text in result["by_hand"]] == [
        "reset_prefix_cache fired",
        "4 users at 10 a second (planned: 10)",
        "sigkill_engine_core fired",
        "stopped",
    ]
    users = [r["users"] for r in rows(run) if r["row"] == "heartbeat"]
    assert users[0] == 10
    assert 4 in users
    (failure,) = result["failures"]
    assert failure["attribution"] == "expected"

    browser.click(button("New"), "New")
    browser.click(button("Start"), "Start again")
    browser.until(f"{STRIP}.dataset.phase == 'load'", "the second run")
    browser.click(button("Stop"), "Stop")
    browser.until(f"{STRIP}.dataset.phase == 'idle' && {STRIP}.dataset.verdict", "its verdict")
    assert len(session.runs()) == 2
    assert verdict(session.runs()[1])["by_hand"]
    assert browser.errors == []

    browser.open(report)
    assert "changed by hand during the run" in browser.js("document.body.innerText")
    assert session.end() in (0, 3)  # the last run was stopped at once: whether it proved something is the verdict's


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "requests-0.jsonl").read_text().splitlines()]


@pytest.mark.timeout(120)
def test_web_ui_page_learns_of_a_load_it_did_not_start(browser: Browser, web: Callable[..., Session]) -> None:
    session = web()
    browser.open(session.url)
    browser.until(button("Start"), "Locust's form")
    form = {"user_count": "10", "spawn_rate": "10"}
    assert httpx.post(session.link("swarm"), data=form, trust_env=False).json()["success"]
    browser.until(button("Stop"), "the load that goes on, with its button to stop it")
    browser.click(tab("Capacity"), "the Capacity tab")
    browser.until(f"{PANEL}.textContent.includes('loadchaos capacity PROFILE --target')", "the command of a search")
    browser.click("[...document.querySelectorAll('button svg')].at(-1).parentElement", "Locust's dark mode")
    browser.until(f"{PANEL}.querySelector('.panel.dark')", "a dark panel, though its page did not change")
    browser.click(tab("Attacks"), "the Attacks tab")
    browser.click(button("Stop"), "Stop")
    browser.until(f"{STRIP}.dataset.verdict", "the verdict")


@pytest.mark.timeout(120)
def test_web_ui_off_loopback_asks_for_the_password_printed_once(web: Callable[..., Session]) -> None:
    session = web("--web-host", "0.0.0.0")
    url = session.url.replace("0.0.0.0", "127.0.0.1")
    found = re.search(r"login: loadchaos, password: (\S+)", session.output)
    assert found is not None
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        for path in ("/", "/loadchaos/state", "/stats/requests", "/loadchaos/panel/server"):
            answer = client.get(path)
            assert (answer.status_code, "/login" in answer.headers["location"]) == (302, True), path
        assert client.post("/swarm", data={"user_count": "1", "spawn_rate": "1"}).status_code == 302
        wrong = client.post("/loadchaos/login", data={"username": "loadchaos", "password": "wrong"})
        assert "/login" in wrong.headers["location"]
        assert client.get("/loadchaos/state").status_code == 302
        client.post("/loadchaos/login", data={"username": "loadchaos", "password": found[1]})
        assert client.get("/loadchaos/state").json()["phase"] == "idle"
        page = client.get("/").text
    assert found[1] not in page
    assert session.output.count(found[1]) == 1
    session.end()
