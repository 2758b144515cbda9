import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from loadchaos.core.errors import OptionError
from loadchaos.core.tls import TlsSettings
from tests.run.conftest import Start, StartSim
from tests.run.test_plain_locust import PROFILE, locust
from tests.warm_command import run_command


@pytest.fixture
def front(certificate: Path, script: Callable[..., str]) -> Callable[[str], str]:
    """Puts TLS in front of a server: its plain URL in, an https URL out."""
    return lambda url: script("gateway.py", url.rpartition(":")[2], 0, certificate)


def test_tls_refuses_unknown_certificate_and_names_the_options(
    sim: StartSim, front: Callable[[str], str], certificate: Path, tmp_path: Path
) -> None:
    url = front(sim().url)
    refused = run_command("probe", url, cwd=tmp_path)
    assert refused.returncode == 4
    assert "its certificate is not trusted; give its CA with --ca FILE" in refused.stderr
    believed = run_command("probe", url, "--ca", certificate, cwd=tmp_path)
    assert (believed.returncode, believed.stderr) == (0, "")
    assert "dialect               vLLM" in believed.stdout


@pytest.mark.slow
@pytest.mark.parametrize("how", ["option", "insecure", "profile", "not at all"])
def test_tls_settings_hold_for_probes_metrics_discovery_and_load(
    how: str, start: Start, sim: StartSim, front: Callable[[str], str], certificate: Path
) -> None:
    given = {"option": ["--ca", str(certificate)], "insecure": ["--insecure"]}.get(how, [])
    target = {"ca": str(certificate)} if how == "profile" else {}
    run = start("--target", front(sim().url), *given, target=target)
    code = run.ends()
    if how == "not at all":
        assert code == 4
        assert "give its CA with --ca FILE" in run.output
        return
    assert code == 0, run.output
    assert {row["ok"] for row in run.rows(row="probe", what="health")} == {True}
    assert run.rows("metrics.jsonl", row="metrics"), "they were scraped"
    assert run.verdict()["outcomes"] == {"ok": 20}


@pytest.mark.slow
def test_certificate_that_changes_in_the_run_is_told_as_tls(
    start: Start, sim: StartSim, front: Callable[[str], str], certificate: Path, tmp_path: Path
) -> None:
    ca, key, other = tmp_path / "ca.pem", tmp_path / "key.pem", tmp_path / "other.pem"
    argv = ["openssl", "req", "-x509", "-key", str(key), "-days", "2", "-subj", "/CN=localhost", "-out", str(other)]
    subprocess.run([*argv, "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    ca.write_bytes(certificate.read_bytes())
    run = start("--target", front(sim().url), "--ca", str(ca), load=[{"users": 4, "for": "15s"}])
    run.loaded(5)
    certificate.write_text(other.read_text() + key.read_text())
    run.ends(90)
    (failure,) = [f for f in run.verdict()["failures"] if f["severity"] == "node"]
    assert (failure["id"], run.verdict()["exit_code"]) == ("tls_connections_fail", 1)
    assert failure["title"] == "Outage: TLS connections fail: certificate verify failed: self-signed certificate"
    assert failure["layer"] == "network"
    assert {r["error"] for r in run.rows(row="probe", what="health", ok=False)} == {"tls: self-signed certificate"}


@pytest.mark.slow
def test_tls_settings_of_the_profile_hold_in_the_users_locust(
    sim: StartSim, front: Callable[[str], str], certificate: Path, tmp_path: Path
) -> None:
    url = front(sim().url)
    for name, target in (("believes", {"ca": str(certificate)}), ("doubts", {})):
        profile = {**PROFILE, "name": name, "target": target}
        (tmp_path / f"{name}.json").write_text(json.dumps(profile))
        (tmp_path / f"{name}.py").write_text(
            f"from loadchaos import from_profile\nChat = from_profile('{name}.json')\n"
        )
    code, stats, output = locust(tmp_path, url, "-f", "believes.py", for_s=3)
    assert code == 0, output
    assert [row["num_failures"] for row in stats if row["method"] == "POST"] == [0]
    code, _, output = locust(tmp_path, url, "-f", "doubts.py", for_s=3)
    assert code == 4
    assert "its certificate is not trusted" in output


@pytest.mark.slow
def test_tls_certificate_is_the_servers_behind_a_network_attack(
    start: Start, sim: StartSim, front: Callable[[str], str], certificate: Path
) -> None:
    attacks = [{"network": "latency", "at": "0s", "for": "30s", "params": {"latency": 20}}]
    url = front(sim().url)
    allowed = ["--ca", str(certificate), "--authorize", url.removeprefix("https://")]
    run = start("--target", url, *allowed, attacks=attacks)
    assert run.ends() == 0, run.output
    assert run.verdict()["outcomes"] == {"ok": 20}
    assert run.verdict()["attacks"]["network_latency"]["ok"] == 1
    assert "requests go through a proxy for network attacks (added delay" in run.output


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (TlsSettings("nowhere.pem"), "ca nowhere.pem: No such file or directory"),
        (TlsSettings("nowhere.pem", insecure=True), "exclude each other"),
        (TlsSettings(__file__), "it holds no certificate"),
    ],
)
def test_tls_bad_certificate_file_is_an_error_before_anything_exists(given: TlsSettings, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        given.context()
