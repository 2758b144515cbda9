import json
from pathlib import Path

import pytest

from tests.warm_command import run_command

PROFILE = """\
name: bare
traffic: [{name: text, payload: {text: {tokens: 16..32}}, output: {max: 4}}]
load: [{users: 2, requests: 6}]
attacks: [{network: latency, at: 0s, for: 30s, params: {latency: 20}}]
"""


@pytest.mark.parametrize("embedded", [["--era", "0.18"]], indirect=True)
def test_run_without_a_target_in_the_profile_uses_the_proxy_to_an_external_server(
    embedded: str, tmp_path: Path
) -> None:
    (tmp_path / "bare.yaml").write_text(PROFILE)
    argv = ["run", "bare.yaml", "--target", embedded, "--no-live", "--exporter-port", "0"]
    done = run_command(*argv, cwd=tmp_path)
    verdict = json.loads(next(tmp_path.glob("runs/*/verdict.json")).read_text())
    assert verdict["verdict"] == "pass", done.stderr
    assert verdict["attacks"]["network_latency"]["ok"] == 1
    assert "go through a proxy" in done.stderr
