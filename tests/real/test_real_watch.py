"""`watch` beside a foreign client: wrong answers that loadchaos-vllm makes inside a real vLLM.

The client is the `openai` package in vLLM's own environment. The model copies ids, so that another request's are told.
Text that no id marks is not told from a right answer: that is why the faults that drop or repeat a token are not here.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.conftest import Server, at, running, skipping
from tests.real.servers import copied_ids, installed, vllm_copy_ids
from tests.warm_command import outside_ci

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]
CLIENT = """
import sys, threading
from openai import OpenAI

client, answers = OpenAI(api_key="none"), []
ids = sys.stdin.read().split()

def ask(n):
    words = " ".join(ids[3 * n : 3 * n + 3])
    asked = f"Repeat these words, with single blanks between them and nothing else: {words}"
    stream = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": asked}], stream=True, max_tokens=32, temperature=0,
        stream_options={"include_usage": True},
    )
    answers.append("".join(c.choices[0].delta.content or "" for c in stream if c.choices).strip() == words)

for first in range(0, 160, 8):
    threads = [threading.Thread(target=ask, args=(first + n,)) for n in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print(f"{sum(answers)} of {len(answers)} right")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, plugin: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("watched")
    trigger = str(folder / "trigger")
    command = skipping(vllm_copy_ids)("0.32.0", PYTHONPATH=str(plugin), LOADCHAOS_SABOTAGE_TRIGGER=trigger)
    with running(command, folder / "vllm.log") as started:
        yield started


@pytest.mark.parametrize(
    ("fault", "exit_code", "named"),
    [
        ("", 0, ""),
        ("swap_rows probability=0.2 seed=7", 1, "answer_of_another_request"),
        ("swap_kv probability=0.5 seed=7", 1, "answer_of_another_request"),
        ("nan_logits probability=0.3 seed=7", 1, "answer_of_another_request"),
        ("zero_kv probability=0.5 seed=7", 3, "degeneration"),
    ],
    ids=["healthy", "swap_rows", "swap_kv", "nan_logits", "zero_kv"],
)
def test_real_vllm_wrong_answers_to_a_foreign_client_are_told(
    server: Server, fault: str, exit_code: int, named: str, tmp_path: Path
) -> None:
    python = installed("vllm-0.32.0", "bin/python")
    (tmp_path / "ids").write_text(" ".join(copied_ids()))
    client = ("sh", "-c", 'exec "$0" -c "$1" < ids', str(python), CLIENT)
    trigger = server.log.parent / "trigger"
    trigger.write_text(fault) if fault else trigger.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "loadchaos", "watch", *at(server), "--no-live", "--", *client],
            cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, env=outside_ci(),
        )  # fmt: skip
    finally:
        trigger.unlink(missing_ok=True)
    (home,) = tmp_path.glob("runs/*/")
    verdict = json.loads((home / "verdict.json").read_text())
    found = {f["id"]: f for f in verdict["failures"]} | {
        c["name"]: c for c in verdict["checks"] if c["verdict"] != "pass"
    }
    assert done.returncode == exit_code, done.stdout + done.stderr
    assert set(found) == ({named} if named else set()), done.stdout
    assert ("160 of 160 right" in done.stdout) == (not fault)
    if exit_code == 1:
        assert found[named]["attribution"] == "injected"
