import json
from pathlib import Path

import pytest

from loadchaos.load.locust_main import WEB_TOKEN_VARIABLE
from loadchaos.load.webui import auth
from tests.load.webui.conftest import LINK_TOKEN, PORT, Environment, Extended, FakeUi, Runner
from tests.waiting import until

TARGET = "http://embedded-server"


@pytest.mark.parametrize(("rate", "edited"), [(10, False), (1, True)], ids=["as the profile has it", "changed"])
def test_start_becomes_a_command_of_the_session_and_a_change_an_edit(ui: Extended, rate: int, edited: bool) -> None:
    form = {"user_count": "10", "spawn_rate": f"{rate}", "host": TARGET}
    assert ui.post("/swarm", data=form).get_json()["success"]
    (command,) = ui.commands(ui.home / "commands.jsonl")
    assert (command["what"], command["users"], command["edited"]) == ("start", 10, edited)
    assert ui.state()["phase"] == "starting"


def test_edit_during_the_load_is_a_command_of_the_run(ui: Extended) -> None:
    folder = ui.run_begins()
    ui.environment.runner.state = "running"
    ui.post("/swarm", data={"user_count": "25", "spawn_rate": "5"})
    (command,) = ui.commands(folder.commands)
    assert (command["what"], command["users"], command["rate"], command["planned"]) == ("users", 25, 5.0, 10)


def test_start_with_another_host_is_refused_with_the_reason(ui: Extended) -> None:
    answer = ui.post("/swarm", data={"user_count": "1", "spawn_rate": "1", "host": "http://production"}).get_json()
    assert not answer["success"]
    assert "--target" in answer["message"]
    assert ui.environment.runner.state == "ready"


def test_start_is_refused_while_a_run_is_judged(ui: Extended) -> None:
    ui.run_begins()
    ui.environment.runner.state = "running"
    ui.load_ends()
    assert ui.environment.runner.stops == 1
    answer = ui.post("/swarm", data={"user_count": "1", "spawn_rate": "1"}).get_json()
    assert "judged" in answer["message"]


def test_stop_in_locust_stops_the_run(ui: Extended) -> None:
    folder = ui.run_begins()
    for listener in ui.environment.events.test_stopping.listeners:
        listener(environment=None)
    assert [c["what"] for c in ui.commands(folder.commands)] == ["stop"]


def test_stop_is_not_sent_to_a_locust_that_stops_already(ui: Extended) -> None:
    ui.run_begins()
    ui.environment.runner.state = "cleanup"
    ui.load_ends()
    assert ui.environment.runner.stops == 0


def test_end_of_a_run_is_not_a_stop_of_the_user(ui: Extended) -> None:
    folder = ui.run_begins()
    ui.load_ends()
    for listener in ui.environment.events.test_stopping.listeners:
        listener(environment=None)
    assert ui.commands(folder.commands) == []


# -- what is shown ---------------------------------------------------------------------------------------------------


def test_failures_are_those_of_the_follower(ui: Extended) -> None:
    folder = ui.run_begins()
    folder.cockpit.mkdir()
    named = [{"occurrences": 1, "method": "engine death", "name": "encoder_cache_miss", "error": "x"}]
    (folder.cockpit / "failures.json").write_text(json.dumps(named))
    assert ui.get("/stats/requests").get_json()["errors"] == named


def test_failures_hide_raw_text_before_the_follower_wrote(ui: Extended) -> None:
    ui.run_begins()
    assert ui.get("/stats/requests").get_json()["errors"] == []


def test_panels_are_the_followers_pages_only(ui: Extended) -> None:
    folder = ui.run_begins()
    folder.cockpit.mkdir()
    (folder.cockpit / "server.html").write_text("<p>healthy</p>")
    assert ui.get("/loadchaos/panel/server").get_data(as_text=True) == "<p>healthy</p>"
    assert ui.get("/loadchaos/panel/attacks").get_data(as_text=True) == ""
    assert ui.get("/loadchaos/panel/..%2f..%2fplan").status_code == 404


def test_reports_and_incidents_are_served_and_the_plan_is_not(ui: Extended) -> None:
    folder = ui.run_begins()
    (folder.path / "plan.json").write_text("{}")
    folder.report_html.write_text("<h1>report</h1>")
    home = folder.incidents / "001-x"
    home.mkdir(parents=True)
    (home / "incident.md").write_text("<script>alert(1)</script>")
    ui.write_session_row("over", folder=str(folder.path), exit_code=1, error=None, verdict="fail")
    until(lambda: ui.state()["phase"] == "idle")
    assert [link["href"] for link in ui.state()["links"]] == ["report.html", "incidents/001-x/incident.md"]
    assert ui.get("/loadchaos/runs/small-1/report.html").status_code == 200
    assert ui.get("/loadchaos/report").status_code == 200
    page = ui.get("/loadchaos/runs/small-1/incidents/001-x/incident.md")
    assert page.mimetype == "text/plain"
    for path in ("plan.json", "commands.jsonl", "incidents/../plan.json", "../../session.jsonl"):
        assert ui.get(f"/loadchaos/runs/small-1/{path}").status_code == 404
    assert ui.get("/loadchaos/runs/elsewhere/report.html").status_code == 404


# -- buttons, and who may press them ---------------------------------------------------------------------------------

ASKED = {"kind": "admin", "name": "reset_mm_cache", "title": "reset_mm_cache", "params": {}}


def test_attack_button_with_token_writes_its_command(ui: Extended) -> None:
    folder = ui.run_begins()
    answer = ui.post("/loadchaos/attack", {"X-Loadchaos-Token": ui.token()}, json=ASKED)
    assert answer.status_code == 200
    (command,) = ui.commands(folder.commands)
    assert (command["what"], command["kind"], command["name"]) == ("attack", "admin", "reset_mm_cache")


def test_attack_button_without_a_load_is_refused(ui: Extended) -> None:
    assert ui.post("/loadchaos/attack", {"X-Loadchaos-Token": ui.token()}, json=ASKED).status_code == 409


def test_attack_button_without_token_is_refused(ui: Extended) -> None:
    folder = ui.run_begins()
    for token in ({}, {"X-Loadchaos-Token": "guessed"}):
        assert ui.post("/loadchaos/attack", token, json=ASKED).status_code == 403
    assert ui.commands(folder.commands) == []


def test_requests_from_another_page_change_nothing(ui: Extended) -> None:
    form = {"user_count": "1", "spawn_rate": "1"}
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{PORT + 1}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert ui.post("/swarm", headers, data=form).status_code == 403
    assert ui.environment.runner.state == "ready"
    ours = {"Origin": f"http://127.0.0.1:{PORT}", "Sec-Fetch-Site": "same-origin"}
    assert ui.post("/swarm", ours, data=form).status_code == 200


def test_requests_with_a_foreign_host_name_are_refused(ui: Extended) -> None:
    foreign = ui.client.get(f"/?token={LINK_TOKEN}", headers={"Host": f"evil.example:{PORT}"})
    assert (foreign.status_code, "unknown Host header" in foreign.text) == (403, True)
    assert ui.client.get(f"/?token={LINK_TOKEN}", headers={"Host": f"localhost:{PORT}"}).status_code == 200


def test_other_pages_may_not_read_or_frame_ours(ui: Extended) -> None:
    answer = ui.get("/stats/requests", Origin="https://evil.example")
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert answer.headers["X-Frame-Options"] == "DENY"


def test_web_ui_on_loopback_needs_the_token_of_its_url(ui: Extended) -> None:
    """A session begins with the token; another user of the machine has none."""
    host = {"Host": f"127.0.0.1:{PORT}"}
    stranger = ui.environment.web_ui.app.test_client()
    for path in ("/", "/?token=guessed", "/?token=", "/stats/requests", "/loadchaos/state", "/loadchaos/cockpit.js"):
        assert stranger.get(path, headers=host).status_code == 403, path
    form = {"user_count": "10", "spawn_rate": "10"}
    assert stranger.post("/swarm", headers=host, data=form).status_code == 403
    assert ui.environment.runner.state != "running"
    stranger.set_cookie(f"loadchaos-{PORT}", "forged", domain="127.0.0.1")
    assert stranger.get("/stats/requests", headers=host).status_code == 403
    assert stranger.get(f"/?token={LINK_TOKEN}", headers=host).status_code == 200
    assert stranger.get("/stats/requests", headers=host).status_code == 200


def test_web_ui_without_a_token_variable_lets_nobody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WEB_TOKEN_VARIABLE, raising=False)
    runner = Runner()
    environment = Environment(FakeUi("127.0.0.1", runner), runner)
    auth.protect(environment.web_ui)
    client = environment.web_ui.app.test_client()
    for path in ("/", "/?token=", "/?token=None"):
        assert client.get(path, headers={"Host": f"127.0.0.1:{PORT}"}).status_code == 403


def test_capacity_searches_are_linked_and_served_without_other_files(ui: Extended) -> None:
    (ui.home / "capacity.html").write_text("<p>capacity 10</p>")
    assert ui.get("/loadchaos/panel/capacity").get_data(as_text=True) == "<p>capacity 10</p>"  # also before a run
    search = ui.home / "capacity-1"
    step = search / "steps" / "01" / "small-1"
    step.mkdir(parents=True)
    (search / "report.html").write_text("<h1>search</h1>")
    (step / "report.html").write_text("<h1>step</h1>")
    (step / "plan.json").write_text("{}")
    ui.write_session_row("search", folder=str(search), about="capacity 10 requests/s")
    until(lambda: ui.state()["search"])
    assert ui.state()["search"] == {"name": "capacity-1", "about": "capacity 10 requests/s"}
    at = "/loadchaos/searches/capacity-1"
    assert ui.get(f"{at}/report.html").get_data(as_text=True) == "<h1>search</h1>"
    assert ui.get(f"{at}/steps/01/small-1/report.html").get_data(as_text=True) == "<h1>step</h1>"
    for path in (f"{at}/steps/01/small-1/plan.json", f"{at}/profile.yaml", "/loadchaos/searches/x/report.html",
                 f"{at}/steps/../../session.jsonl", f"{at}/steps/%2e%2e/%2e%2e/runs/report.html"):  # fmt: skip
        assert ui.get(path).status_code == 404, path
