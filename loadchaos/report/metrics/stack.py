"""Provision Prometheus, Alertmanager and Grafana for loadchaos.

`write` makes a folder with a compose file that works without loadchaos. `start_local` and `stop_local` run Debian's
programs from that folder without containers and without root. Everything listens on loopback only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import psutil

from loadchaos.core import resources
from loadchaos.core.errors import OptionError
from loadchaos.report.metrics import prometheus_binaries

PROMETHEUS_PORT, ALERTMANAGER_PORT, GRAFANA_PORT = 9090, 9093, 3000
_READY_LIMIT_S = 20.0
_STOP_LIMIT_S = 10.0
# Debian's Alertmanager has this path compiled in and exits without it.
_ALERT_TEMPLATE = Path("/usr/share/prometheus/alertmanager/default.tmpl")

_COMPOSE = """\
# Prometheus, Alertmanager and Grafana for loadchaos: `docker compose up -d` in this folder, then {grafana}
# The network is the host's, because the exporter of loadchaos listens on its loopback, as all of these do. (Docker Desktop:
# enable host networking in its settings.)
services:
  prometheus:
    image: prom/prometheus:v3.5.0
    network_mode: host
    restart: unless-stopped
    command:
      - --config.file=/etc/loadchaos/prometheus.yml
      - --storage.tsdb.path=/prometheus
      - --storage.tsdb.retention.time=90d
      - --web.listen-address=127.0.0.1:{prometheus_port}
      - --enable-feature=exemplar-storage
    volumes: [".:/etc/loadchaos:ro", "prometheus:/prometheus"]
  alertmanager:
    image: prom/alertmanager:v0.28.1
    network_mode: host
    restart: unless-stopped
    command:
      - --config.file=/etc/loadchaos/alertmanager.yml
      - --storage.path=/alertmanager
      - --web.listen-address=127.0.0.1:{alertmanager_port}
      - --cluster.listen-address=
    volumes: [".:/etc/loadchaos:ro", "alertmanager:/alertmanager"]
  grafana:
    image: grafana/grafana:12.1.0
    network_mode: host
    restart: unless-stopped
    environment:
      GF_SERVER_HTTP_ADDR: 127.0.0.1
      GF_SERVER_HTTP_PORT: "{grafana_port}"
      # Nobody can log in, and everybody on this machine can view: dashboards are changed in their files.
      GF_AUTH_ANONYMOUS_ENABLED: "true"
      GF_AUTH_ANONYMOUS_ORG_ROLE: Viewer
      GF_AUTH_DISABLE_LOGIN_FORM: "true"
      GF_AUTH_BASIC_ENABLED: "false"
      GF_ANALYTICS_REPORTING_ENABLED: "false"
      GF_ANALYTICS_CHECK_FOR_UPDATES: "false"
      GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH: /etc/loadchaos/grafana/dashboards/run.json
      GF_PATHS_PROVISIONING: /etc/loadchaos/grafana/provisioning
    volumes: [".:/etc/loadchaos:ro", "grafana:/var/lib/grafana"]
volumes: {{prometheus: {{}}, alertmanager: {{}}, grafana: {{}}}}
"""

_PROMETHEUS = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 5s}}
rule_files: [rules.yaml, alerts.yaml]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{alertmanager_port}"]}}]}}]}}
scrape_configs:
  - job_name: loadchaos
    static_configs: [{{targets: {targets}}}]
"""

_ALERTMANAGER = """\
# Add your receiver here (webhook, mail, chat); without one, alerts are only shown.
route: {receiver: shown, group_by: [alertname, run], group_wait: 1s, group_interval: 10s, repeat_interval: 4h}
receivers: [{name: shown}]
"""

_DATASOURCE = """\
apiVersion: 1
datasources:
  - name: Prometheus
    uid: loadchaos
    type: prometheus
    access: proxy
    url: http://127.0.0.1:{prometheus_port}
    isDefault: true
    jsonData: {{timeInterval: 1s, httpMethod: POST}}
"""

_PROVIDER = """\
apiVersion: 1
providers:
  - {name: loadchaos, folder: loadchaos, type: file, options: {path: /etc/loadchaos/grafana/dashboards}}
"""


def write(folder: Path, targets: Sequence[str], port: int = PROMETHEUS_PORT) -> list[Path]:
    """Write the files of the stack into `folder`.

    An existing alertmanager.yml is kept: its receivers are the user's.

    Args:
        folder: Where the files go.
        targets: Exporters to scrape, as HOST:PORT.
        port: Port of Prometheus.

    Returns:
        The files written.
    """
    source = resources.folder("dashboards")
    ports = {"prometheus_port": port, "alertmanager_port": ALERTMANAGER_PORT, "grafana_port": GRAFANA_PORT}
    texts = {
        "compose.yaml": _COMPOSE.format(grafana=f"http://127.0.0.1:{GRAFANA_PORT}", **ports),
        "prometheus.yml": _PROMETHEUS.format(targets=json.dumps(list(targets)), **ports),
        "alertmanager.yml": _ALERTMANAGER,
        "grafana/provisioning/datasources/loadchaos.yaml": _DATASOURCE.format(**ports),
        "grafana/provisioning/dashboards/loadchaos.yaml": _PROVIDER,
        **{name: (source / name).read_text() for name in ("rules.yaml", "alerts.yaml")},
        **{f"grafana/dashboards/{p.name}": p.read_text() for p in sorted(source.glob("*.json"))},
    }
    written = []
    for name, text in texts.items():
        path = folder / name
        if name == "alertmanager.yml" and path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        written.append(path)
    return written


def engine() -> list[str] | None:
    """Find a container engine with compose support; None without one."""
    for command in (["docker", "compose"], ["podman", "compose"], ["docker-compose"], ["podman-compose"]):
        if shutil.which(command[0]):
            try:
                done = subprocess.run([*command, "version"], capture_output=True, timeout=20, check=False)
            except (OSError, subprocess.TimeoutExpired):
                continue
            if done.returncode == 0:
                return command
    return None


def compose(folder: Path, command: Sequence[str], *arguments: str) -> None:
    """Run `docker compose ARGUMENTS` in the folder.

    Raises:
        OptionError: The command failed.
    """
    done = subprocess.run([*command, "-f", str(folder / "compose.yaml"), *arguments], check=False)
    if done.returncode:
        raise OptionError(
            f"{' '.join([*command, *arguments])} failed ({done.returncode}) in {folder}: see its output above"
        )


# -- without containers --------------------------------------------------------------------------------------------


def start_local(folder: Path, port: int = PROMETHEUS_PORT) -> list[str]:
    """Start Debian's Prometheus and Alertmanager from the folder.

    Returns:
        Lines that say what runs and what does not.

    Raises:
        OptionError: Prometheus is not installed, runs already, or does not start.
    """
    program = prometheus_binaries.find("prometheus")
    if program is None:
        raise OptionError(
            "Prometheus is not on this machine: `python -m loadchaos.report.metrics.prometheus_binaries` "
            "unpacks Debian's into a cache folder, "
            f"or name its folder in {prometheus_binaries.ENV}"
        )
    if running(folder):
        raise OptionError(f"the stack in {folder} runs already: end it with loadchaos stack down")
    _spawn(
        folder,
        "prometheus",
        [
            str(program),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=90d",
            f"--web.listen-address=127.0.0.1:{port}",
            "--enable-feature=exemplar-storage",
            "--query.lookback-delta=5s",
        ],
    )
    url = f"http://127.0.0.1:{port}"
    if not _ready(f"{url}/-/ready", folder):
        stop_local(folder)
        reason = _last_line(folder / "prometheus.log")
        raise OptionError(
            f"Prometheus did not start on port {port} ({reason}): if the port is in use, choose another with --port"
        )
    return [f"Prometheus runs on {url}, data and log are in {folder}", *_start_alertmanager(folder)]


def _start_alertmanager(folder: Path) -> list[str]:
    program = prometheus_binaries.find("prometheus-alertmanager") or prometheus_binaries.find("alertmanager")
    if program is None or (program.name == "prometheus-alertmanager" and not _ALERT_TEMPLATE.exists()):
        return [
            f"Alertmanager is not started ({_ALERT_TEMPLATE} is missing): alerts are shown on /alerts of Prometheus"
        ]
    _spawn(
        folder,
        "alertmanager",
        [
            str(program),
            f"--config.file={folder / 'alertmanager.yml'}",
            f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{ALERTMANAGER_PORT}",
            "--cluster.listen-address=",
        ],
    )
    return [f"Alertmanager runs on http://127.0.0.1:{ALERTMANAGER_PORT}"]


def stop_local(folder: Path) -> list[str]:
    """End the processes that `start_local` started; returns their names."""
    ended = []
    for name, process in running(folder).items():
        process.terminate()
        try:
            process.wait(_STOP_LIMIT_S)
        except psutil.TimeoutExpired:
            process.kill()
        ended.append(name)
    for name in ("prometheus", "alertmanager"):
        (folder / f"{name}.pid").unlink(missing_ok=True)
    return ended


def running(folder: Path) -> dict[str, psutil.Process]:
    """Running processes of this folder by name; a reused pid does not count."""
    found = {}
    for name in ("prometheus", "alertmanager"):
        try:
            pid, started_s = (folder / f"{name}.pid").read_text().split()
            process = psutil.Process(int(pid))
            if abs(process.create_time() - float(started_s)) < 1 and process.status() != psutil.STATUS_ZOMBIE:
                found[name] = process
        except (OSError, ValueError, psutil.Error):
            continue
    return found


def _spawn(folder: Path, name: str, argv: list[str]) -> None:
    log = str(folder / f"{name}.log")
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        # A session of its own and no handle of ours: the stack outlives the command and its terminal.
        pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions, setsid=True)
        (folder / f"{name}.pid").write_text(f"{pid} {psutil.Process(pid).create_time()}\n")
    except (OSError, psutil.Error) as e:
        raise OptionError(f"{argv[0]} cannot be started: {e}; {prometheus_binaries.ENV} can name another folder") from e


def _ready(url: str, folder: Path) -> bool:
    until = time.monotonic() + _READY_LIMIT_S
    while time.monotonic() < until and running(folder):
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - an http URL of ours, on loopback
                # Another Prometheus on that port would be ready too; ours then ends, because the port is in use.
                time.sleep(0.2)
                return bool(running(folder))
        except OSError:
            time.sleep(0.1)
    return False


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else "its log is empty"
