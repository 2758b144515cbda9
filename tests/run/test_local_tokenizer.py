import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.warm_command import run_command

PROFILE = {
    "name": "counted", "target": {"embedded": {}}, "load": [{"users": 1, "requests": 3}],
    "traffic": [{"name": "text", "payload": {"text": {"tokens": "40..90"}}, "output": {"max": 2}}],
}  # fmt: skip


def run(folder: Path, profile: Mapping[str, object], *args: str) -> subprocess.CompletedProcess[str]:
    (folder / "p.json").write_text(json.dumps(profile))
    argv = ["run", "p.json", "--embedded", "--no-live", "--exporter-port", "0", *args]
    return run_command(*argv, cwd=folder)


def test_tokenizer_folder_that_does_not_exist_is_an_error_before_anything(tmp_path: Path) -> None:
    named = {**PROFILE, "target": {"embedded": {}, "tokenizer": "Qwen/Qwen3-8B"}}
    for done in (run(tmp_path, PROFILE, "--tokenizer", "Qwen/Qwen3-8B"), run(tmp_path, named)):
        assert done.returncode == 2
        assert "tokenizer Qwen/Qwen3-8B: there is no such folder" in done.stderr
    assert not (tmp_path / "runs").exists()
