"""scripts/real/compare_vllm.py on two made-up releases."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts/real/compare_vllm.py"
OLD = {
    "v1/engine/core.py": 'logger.error("EngineCore encountered a fatal error.")\nraise RuntimeError(f"lost {thing}")\n',
    "metrics.py": 'names = ["vllm:num_requests_running", "vllm:gone_total"]\n',
    "router.py": '@router.post("/pause")\ndef pause(): ...\n',
}
NEW = {
    "v1/engine/core.py": 'logger.error("The core has failed.")\nraise RuntimeError(f"lost {thing}")\n',
    "metrics.py": 'names = ["vllm:num_requests_running"]\n',
    "router.py": '@router.post("/pause")\ndef pause(): ...\n\n\n@router.post(\n    "/v1/decisions",\n)\ndef decide(): ...\n',
}


def release(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / "vllm" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "vllm" / name).write_text(text)
    return folder


def compared(old: Path, new: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), str(old), str(new)], capture_output=True, text=True, timeout=60)


def test_compare_vllm_tells_what_a_release_lost_and_what_is_new(tmp_path: Path) -> None:
    done = compared(release(tmp_path / "old", OLD), release(tmp_path / "new", NEW))
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    assert any(line.startswith("- signature engine_core_fatal: ") and "v1/engine/core.py:1" in line for line in lines)
    assert lines[-3:] == [
        "- metric vllm:gone_total, was in metrics.py:1",
        "+ route /v1/decisions in router.py:6",
        "+ error 'The core has failed.' in v1/engine/core.py:1",
    ]


def test_compare_vllm_finds_nothing_between_equal_releases(tmp_path: Path) -> None:
    done = compared(release(tmp_path / "old", OLD), release(tmp_path / "new", OLD))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
