import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from loadchaos.report.metrics.exporter import DEFAULT_PORT

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"


def read(path: Path) -> Any:
    return YAML(typ="safe").load(path)


def services() -> dict[str, Any]:
    found: dict[str, Any] = read(FOLDER / "compose.yaml")["services"]
    return found


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """Files and folders of the checkout, by their path in the container."""
    volumes = [v.split(":") for v in service["volumes"]]
    return {inside: (FOLDER / source).resolve() for source, inside, *_ in volumes if source.startswith(".")}


def in_checkout(service: dict[str, Any], path: str) -> Path:
    """The file of the checkout that the container sees as `path`."""
    inside, source = next((i, s) for i, s in mounts(service).items() if path == i or path.startswith(f"{i}/"))
    return source / path[len(inside) :].lstrip("/")


def test_compose_file_is_valid() -> None:
    """Validate against the compose schema: no engine is needed."""
    schema = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
    check = jsonschema.Draft201909Validator(schema)
    file = read(FOLDER / "compose.yaml")
    check.validate(file)
    for service in file["services"].values():
        named = {v.partition(":")[0] for v in service["volumes"] if not v.startswith(".")}
        assert named <= set(file["volumes"])
        assert not service["image"].endswith(":latest")
    file["services"]["grafana"]["imagge"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="imagge"):
        check.validate(file)


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_mounted_files_exist(name: str) -> None:
    service = services()[name]
    assert [p for p in mounts(service).values() if not p.exists()] == []
    arguments = [*(c.partition("=")[2] for c in service.get("command", ())), *service.get("environment", {}).values()]
    named = [a for a in arguments if a.startswith("/loadchaos/")]
    assert named
    assert [a for a in named if not in_checkout(service, a).exists()] == []


def test_all_listens_on_the_loopback_only() -> None:
    prometheus, grafana = services()["prometheus"], services()["grafana"]
    (address,) = (c.partition("=")[2] for c in prometheus["command"] if c.startswith("--web.listen-address"))
    assert address.startswith("127.0.0.1:")
    assert grafana["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert all("ports" not in s for s in (prometheus, grafana))
    (source,) = read(FOLDER / "grafana" / "datasources" / "loadchaos.yaml")["datasources"]
    assert source["url"] == f"http://{address}"


def test_prometheus_scrapes_the_default_port_and_reads_the_rules() -> None:
    config = read(FOLDER / "prometheus.yml")
    assert config["scrape_configs"][0]["static_configs"][0]["targets"] == [f"127.0.0.1:{DEFAULT_PORT}"]
    service = services()["prometheus"]
    (at,) = (i for i, source in mounts(service).items() if source.name == "prometheus.yml")
    for rules in config["rule_files"]:  # relative to the file, in the checkout and in the container
        assert (FOLDER / rules).is_file()
        inside = os.path.normpath(Path(at).parent / rules)
        assert in_checkout(service, inside) == (FOLDER / rules).resolve()


def test_grafana_loads_the_dashboards() -> None:
    service = services()["grafana"]
    provisioned = in_checkout(service, service["environment"]["GF_PATHS_PROVISIONING"])
    (provider,) = read(provisioned / "dashboards" / "loadchaos.yaml")["providers"]
    titles = {
        json.loads(p.read_text())["title"] for p in in_checkout(service, provider["options"]["path"]).glob("*.json")
    }
    assert titles == {f"loadchaos / {x}" for x in ("Run", "Server", "Failures", "Soak", "Capacity")}
