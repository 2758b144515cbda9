import re
from pathlib import Path

import pytest

from tests.campaigns.replay.test_replay import near_max_run
from tests.warm_command import run_command


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_minimise_command_finds_one_request_and_its_flags(tmp_path: Path) -> None:
    folder = near_max_run(tmp_path)
    found = run_command("minimise", folder, "--out", "small", cwd=tmp_path, limit_s=600)
    assert found.returncode == 0, found.stdout + found.stderr
    assert re.match(r"MINIMISED \d+ to 1 request, 7 to [45] flags; repro.py reproduces (1\d) of \1 ", found.stdout), (
        found.stdout
    )
    repro = next((tmp_path / "small").glob("minimise-*/repro"))
    assert len((repro / "repro.py").read_text().splitlines()) <= 40
    assert "max_model_len=4096" in (repro / "README.md").read_text()
    assert re.search(
        r"Reproduces in (1\d) of \1 runs of repro.py on a fresh server, \d+ of them in the search",
        (repro / "README.md").read_text(),
    )
    again = run_command("run", repro / "profile.yaml", "--no-live", "--out", "again", cwd=tmp_path, limit_s=600)
    assert "index_oob_indexkernel" in again.stdout
    resumed = run_command("minimise", folder, "--out", "small", "--resume", cwd=tmp_path, limit_s=600)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_minimise_command_makes_a_script_of_a_wrong_answer(tmp_path: Path) -> None:
    """A replay holds the answers to the schemas of the recorded bodies."""
    (tmp_path / "schema.yaml").write_text(
        "name: schema\n"
        'target: {embedded: {dialect: vllm, era: "0.18", defects: [schema_ignored]}}\n'
        "traffic:\n"
        "  - {name: t, payload: {text: {tokens: 64..200}, structured: {json_schema: small}}, output: {max: 200}}\n"
        "load: [{users: 4, requests: 20}]\n"
    )
    run = run_command("run", "schema.yaml", "--no-live", "--out", "runs", cwd=tmp_path, limit_s=600)
    assert run.returncode == 1, run.stderr
    folder = next((tmp_path / "runs").glob("schema-*"))
    replayed = run_command("replay", folder, "--out", "again", "--times", 2, cwd=tmp_path, limit_s=600)
    assert replayed.stdout.startswith("REPRODUCED 2 of 2"), replayed.stdout + replayed.stderr
    found = run_command("minimise", folder, "--out", "small", cwd=tmp_path, limit_s=600)
    assert found.returncode == 0, found.stdout + found.stderr
    assert re.match(r"MINIMISED \d+ to [12] requests?, .* repro.py reproduces \d+ of 1\d ", found.stdout), found.stdout
    repro = next((tmp_path / "small").glob("minimise-*/repro"))
    assert "An answer breaks its schema after" in (repro / "README.md").read_text()
