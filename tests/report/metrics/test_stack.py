"""Tests of `loadchaos stack`: configuration, start and stop."""

import json
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from loadchaos.cli.main import main
from loadchaos.core.errors import OptionError
from loadchaos.report.metrics import prometheus_binaries, stack


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_stack_configuration_passes_promtool(tmp_path: Path, prometheus_program: Callable[[str], Path]) -> None:
    stack.write(tmp_path, ["127.0.0.1:9646", "10.0.0.7:9646"])
    argv = [str(prometheus_program("promtool")), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    config = YAML(typ="safe").load(tmp_path / "prometheus.yml")
    assert config["scrape_configs"][0]["static_configs"][0]["targets"] == ["127.0.0.1:9646", "10.0.0.7:9646"]
    assert config["global"]["scrape_interval"] == "1s"


def test_compose_file_provisions_all_on_loopback(tmp_path: Path) -> None:
    stack.write(tmp_path, ["127.0.0.1:9646"], 19090)
    services = YAML(typ="safe").load(tmp_path / "compose.yaml")["services"]
    assert set(services) == {"prometheus", "alertmanager", "grafana"}
    assert "--web.listen-address=127.0.0.1:19090" in services["prometheus"]["command"]
    assert "--web.listen-address=127.0.0.1:9093" in services["alertmanager"]["command"]
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert all("ports" not in s and ":latest" not in s["image"] for s in services.values())
    source = YAML(typ="safe").load(tmp_path / "grafana/provisioning/datasources/loadchaos.yaml")["datasources"][0]
    assert source["url"] == "http://127.0.0.1:19090"
    assert source["jsonData"]["timeInterval"] == "1s"
    titles = {json.loads(p.read_text())["title"] for p in (tmp_path / "grafana" / "dashboards").glob("*.json")}
    assert titles == {f"loadchaos / {x}" for x in ("Run", "Server", "Failures", "Soak", "Capacity")}


def compose_schema() -> jsonschema.Draft201909Validator:
    return jsonschema.Draft201909Validator(json.loads((Path(__file__).parent / "compose-spec.json").read_text()))


def test_compose_file_is_valid(tmp_path: Path) -> None:
    """Validate against the compose schema: no engine is needed."""
    stack.write(tmp_path, ["127.0.0.1:9646"])
    file = YAML(typ="safe").load(tmp_path / "compose.yaml")
    compose_schema().validate(file)
    for service in file["services"].values():
        named = {v.partition(":")[0] for v in service["volumes"]} - {"."}
        assert named <= set(file["volumes"])
        mounted = [v.split(":")[1] for v in service["volumes"]]
        inside = [c.partition("=")[2] for c in service.get("command", ()) if c.startswith(("--config", "--storage"))]
        inside += [
            v for k, v in service.get("environment", {}).items() if k.startswith("GF_PATHS") or k.endswith("_PATH")
        ]
        assert all(p.startswith(tuple(mounted)) or "/" not in p for p in inside), "a path that nothing is mounted at"
        for path in (p for p in inside if p.startswith("/etc/loadchaos/")):
            assert (tmp_path / path.removeprefix("/etc/loadchaos/")).exists(), path
    file["services"]["grafana"]["imagge"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="imagge"):
        compose_schema().validate(file)


def test_stack_keeps_the_receivers_of_the_user(tmp_path: Path) -> None:
    stack.write(tmp_path, [])
    (tmp_path / "alertmanager.yml").write_text("mine")
    stack.write(tmp_path, [])
    assert (tmp_path / "alertmanager.yml").read_text() == "mine"


def test_local_stack_starts_loads_rules_and_stops(tmp_path: Path, prometheus_program: Callable[[str], Path]) -> None:
    prometheus_program("prometheus")
    port, folder = free_port(), tmp_path / "stack"
    try:
        up = CliRunner().invoke(main, ["stack", "up", "--local", "--folder", str(folder), "--port", str(port)])
        assert up.exit_code == 0, up.output
        assert f"http://127.0.0.1:{port}" in up.output
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/rules", timeout=10) as answer:
            groups = json.load(answer)["data"]["groups"]
        assert {r["name"] for g in groups for r in g["rules"]} >= {
            "LoadchaosEngineDead",
            "run:loadchaos_answered:ratio1m",
        }
        again = CliRunner().invoke(main, ["stack", "up", "--local", "--folder", str(folder), "--port", str(port)])
        assert again.exit_code == 2
        assert "stack down" in again.output
        down = CliRunner().invoke(main, ["stack", "down", "--folder", str(folder)])
        assert down.exit_code == 0, down.output
        assert "stopped prometheus" in down.output
        assert stack.running(folder) == {}
    finally:
        stack.stop_local(folder)


def test_local_stack_reports_a_port_in_use(tmp_path: Path, prometheus_program: Callable[[str], Path]) -> None:
    prometheus_program("prometheus")
    stack.write(tmp_path, [])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OptionError, match="in use"):
            stack.start_local(tmp_path, taken.getsockname()[1])
    assert stack.running(tmp_path) == {}


def test_stack_without_prometheus_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_binaries, "find", lambda _: None)
    monkeypatch.setattr(stack, "engine", lambda: None)
    local = CliRunner().invoke(main, ["stack", "up", "--local", "--folder", str(tmp_path)])
    assert local.exit_code == 2
    assert prometheus_binaries.ENV in local.output
    neither = CliRunner().invoke(main, ["stack", "up", "--folder", str(tmp_path)])
    assert neither.exit_code == 0
    assert "docker compose up" in neither.output
    assert (tmp_path / "compose.yaml").is_file()


def test_stack_down_ignores_a_reused_pid(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / "prometheus.pid").write_text(f"{other.pid} 12345.0")
        assert stack.stop_local(tmp_path) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_stack_down_without_a_stack_says_so(tmp_path: Path) -> None:
    down = CliRunner().invoke(main, ["stack", "down", "--folder", str(tmp_path)])
    assert down.exit_code == 2
    assert "no compose.yaml" in down.output
