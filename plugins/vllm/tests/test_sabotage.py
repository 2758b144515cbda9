"""Tests of the plugin with fake modules in place of vLLM's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from loadchaos_vllm.sabotage import MODES, FaultInjector, InjectedError, parse

PLUGIN = Path(__file__).parent.parent
RUNNER = """
    class GPUModelRunner:
        def __init__(self):
            self.encoder_cache = {f"hash{i}": i for i in range(4)}
            self.steps = 0

        def execute_model(self, scheduler_output, intermediate_tensors=None):
            self.steps += 1
            return "answer"

        def propose_draft_token_ids(self, scheduler_output, sampled):
            return sorted(self.encoder_cache)
"""
SCHEDULER = """
    class Scheduler:
        def __init__(self):
            self.running = [1, 2]

        def schedule(self):
            return len(self.running)

        def reset_prefix_cache(self, reset_running_requests=False):
            self.running = []
"""
SAMPLER = """
    class Sampler:
        def forward(self, logits, metadata):
            return list(logits)
"""


@pytest.fixture
def vllm(tmp_path: Path) -> Any:
    """Run a script in a process with a fake `vllm` and the plugin registered."""

    def run(script: str, order: str = "", runner: str = RUNNER, **env: str) -> subprocess.CompletedProcess[str]:
        for name, text in {
            "worker/gpu_model_runner": runner,
            "core/sched/scheduler": SCHEDULER,
            "sample/sampler": SAMPLER,
        }.items():
            path = tmp_path / f"vllm/v1/{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        environment = {
            "PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{PLUGIN}", "TRIGGER": str(tmp_path / "trigger"),
            "LOADCHAOS_SABOTAGE": order, "LOADCHAOS_SABOTAGE_TRIGGER": str(tmp_path / "trigger"), **env,
        }  # fmt: skip
        head = (
            "import os\nfrom types import SimpleNamespace\nimport loadchaos_vllm\nloadchaos_vllm.register()\n"
            "def arm(text=''):\n    open(os.environ['TRIGGER'], 'w').write(text)\n"
            "batch = SimpleNamespace(total_num_scheduled_tokens=5, free_encoder_mm_hashes=['hash0'])\n"
            "def runner():\n    from vllm.v1.worker.gpu_model_runner import GPUModelRunner\n"
            "    return GPUModelRunner()\n"
        )
        return subprocess.run(
            [sys.executable, "-c", head + textwrap.dedent(script)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    return run


def test_register_without_a_trigger_changes_nothing(vllm: Any) -> None:
    done = vllm(
        "print(hasattr(runner().execute_model, '__loadchaos_sabotage__'))", "step_raise", LOADCHAOS_SABOTAGE_TRIGGER=""
    )
    assert done.stdout.strip() == "False"
    assert "names no file" in done.stderr


def test_injector_without_the_trigger_file_does_nothing(vllm: Any) -> None:
    done = vllm("print(runner().execute_model(batch))", "step_raise")
    assert done.stdout.strip() == "answer"
    assert "act" not in done.stderr


def test_encoder_pop_names_an_entry_that_is_not_freed_anyway(vllm: Any) -> None:
    done = vllm(
        "arm()\nr = runner()\nfor _ in range(9): r.execute_model(batch)\nprint(sorted(r.encoder_cache))", "encoder_pop"
    )
    assert done.stdout.strip() == "['hash0']"
    assert "loadchaos-sabotage: act encoder_pop step=1 pid=" in done.stderr
    assert done.stderr.count(" act ") == 3


def test_encoder_pop_draft_removes_an_entry_before_the_drafter(vllm: Any) -> None:
    done = vllm(
        "arm()\nr = runner()\nr.execute_model(batch)\nprint(len(r.propose_draft_token_ids(batch, [])))",
        "encoder_pop_draft times=1",
    )
    assert done.stdout.strip() == "3"
    assert "act encoder_pop_draft step=1" in done.stderr


def test_trigger_file_gives_and_revokes_orders(vllm: Any) -> None:
    done = vllm(
        """
        r = runner()
        arm('step_raise step=3')
        r.execute_model(batch); r.execute_model(batch)
        try:
            r.execute_model(batch)
        except RuntimeError as e:
            print(e)
        os.unlink(os.environ['TRIGGER'])
        print(r.execute_model(batch))
        """
    )
    assert done.stdout.splitlines() == ["loadchaos-sabotage: an exception injected in step 3", "answer"]


def test_hook_skips_a_step_without_work(vllm: Any) -> None:
    done = vllm("arm()\nprint(runner().execute_model(SimpleNamespace(total_num_scheduled_tokens=0)))", "step_raise")
    assert done.stdout.strip() == "answer"


@pytest.mark.parametrize(("mode", "code"), [("step_exit", 3), ("step_segv", -signal.SIGSEGV)])
def test_step_exit_and_segv_are_logged_first(vllm: Any, mode: str, code: int) -> None:
    done = vllm("arm()\nrunner().execute_model(batch)", mode)
    assert done.returncode == code
    assert f"act {mode} step=1" in done.stderr


def test_preempt_and_nan_logits_act(vllm: Any) -> None:
    done = vllm(
        """
        arm()
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.sample.sampler import Sampler
        print(Scheduler().schedule())
        print(Sampler().forward([1.0], None))
        """,
        "preempt; nan_logits",
    )
    assert done.stdout.split() == ["0", "[nan]"]


def test_hook_that_is_missing_is_logged(vllm: Any) -> None:
    bare = "class GPUModelRunner:\n    def execute_model(self, batch):\n        return 'answer'\n"
    done = vllm("arm()\nprint(runner().execute_model(batch))", "encoder_pop_draft", runner=bare)
    assert done.stdout.strip() == "answer"
    assert "missing encoder_pop_draft: vllm.v1.worker.gpu_model_runner.GPUModelRunner has no" in done.stderr


def test_encoder_pop_without_a_known_cache_is_logged(vllm: Any) -> None:
    done = vllm("arm()\nr = runner()\ndel r.encoder_cache\nprint(r.execute_model(batch))", "encoder_pop")
    assert done.stdout.strip() == "answer"
    assert "missing encoder_pop: GPUModelRunner has no encoder cache" in done.stderr


def test_order_that_is_unknown_is_logged(vllm: Any) -> None:
    done = vllm("arm()\nprint(runner().execute_model(batch))", "step_rise")
    assert done.stdout.strip() == "answer"
    assert "unknown mode 'step_rise'; there are: encoder_pop" in done.stderr


def test_register_twice_wraps_once(vllm: Any) -> None:
    done = vllm("arm()\nr = runner()\nloadchaos_vllm.register()\nr.execute_model(batch)", "encoder_pop")
    assert done.stderr.count(" act ") == 1


def test_seed_decides_the_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").touch()

    def struck() -> list[int]:
        sabotage = FaultInjector(
            "step_sleep probability=0.3 seed=5 times=9 seconds=0", str(tmp_path / "t"), lambda _: None
        )
        for _ in range(30):
            sabotage.at("step", None)
        lines = [line for line in capsys.readouterr().err.splitlines() if " act " in line]
        return [int(line.split("step=")[1].split()[0]) for line in lines]

    first = struck()
    assert first == struck()
    assert 3 <= len(first) <= 9


def test_step_hang_lasts_until_disarmed(tmp_path: Path) -> None:
    trigger = tmp_path / "t"
    trigger.touch()
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 5:
            trigger.unlink()

    FaultInjector("step_hang", str(trigger), nap).at("step", None)
    assert len(naps) == 5


def test_slow_steps_returns_the_factor(tmp_path: Path) -> None:
    (tmp_path / "t").touch()
    assert FaultInjector("slow_steps factor=4", str(tmp_path / "t")).at("step", None) == 4


def test_encoder_pop_finds_the_cache_of_the_other_runner(tmp_path: Path) -> None:
    (tmp_path / "t").touch()
    runner = SimpleNamespace(encoder_cache=SimpleNamespace(encoder_outputs={"a": 1}))  # V2's shape
    FaultInjector("encoder_pop", str(tmp_path / "t")).at("step", runner)
    assert runner.encoder_cache.encoder_outputs == {}


def test_step_raise_names_loadchaos(tmp_path: Path) -> None:
    (tmp_path / "t").touch()
    with pytest.raises(InjectedError, match="loadchaos-sabotage"):
        FaultInjector("step_raise", str(tmp_path / "t")).at("step", None)


@pytest.mark.parametrize("text", ["nothing", "step_raise 5", "step_raise speed=5"])
def test_parse_refuses_unknown_orders(text: str) -> None:
    with pytest.raises(ValueError, match="unknown"):
        parse(text)


def test_modes_have_hooks() -> None:
    assert set(MODES.values()) == {"step", "draft", "schedule", "sample", "output", "adapters"}


# --- modes that change answers ---------------------------------------------------------------------------------------------


class Block:
    """A tensor of one block: only what the modes use."""

    shape = (4,)

    def __init__(self, value: int) -> None:
        self.value = value

    def __setitem__(self, _: Any, other: Any) -> None:
        self.value = getattr(other, "value", other)

    def clone(self) -> Block:
        return Block(self.value)


class Layer(list):  # type: ignore[type-arg]  # blocks of one layer
    shape = (3, 2, 16, 8)


def armed(tmp_path: Path, order: str) -> FaultInjector:
    (tmp_path / "armed").write_text(order)
    return FaultInjector("", str(tmp_path / "armed"))


def kv_runner() -> Any:
    requests = {"a": SimpleNamespace(block_ids=([1],)), "b": SimpleNamespace(block_ids=([2],))}
    return SimpleNamespace(requests=requests, kv_caches=[Layer(Block(10 * n + i) for i in range(3)) for n in range(2)])


def test_zero_kv_zeroes_one_held_block_in_every_layer(tmp_path: Path) -> None:
    runner = kv_runner()
    armed(tmp_path, "zero_kv times=1").at("step", runner)
    left = [[block.value for block in layer] for layer in runner.kv_caches]
    assert left in ([[0, 0, 2], [10, 0, 12]], [[0, 1, 0], [10, 11, 0]])


def test_swap_kv_swaps_two_held_blocks_in_every_layer(tmp_path: Path) -> None:
    runner = kv_runner()
    armed(tmp_path, "swap_kv times=1").at("step", runner)
    assert [[block.value for block in layer] for layer in runner.kv_caches] == [[0, 2, 1], [10, 12, 11]]


def test_kv_modes_say_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    armed(tmp_path, "zero_kv").at("step", SimpleNamespace())
    assert "missing zero_kv" in capsys.readouterr().err


def test_swap_rows_swaps_two_rows(tmp_path: Path) -> None:
    logits = [[1.0], [2.0]]
    armed(tmp_path, "swap_rows").at("sample", None, logits)
    assert logits == [[2.0], [1.0]]
    armed(tmp_path, "swap_rows").at("sample", None, alone := [[1.0]])
    assert alone == [[1.0]]


def test_stale_encoder_gives_an_image_the_output_of_another(tmp_path: Path) -> None:
    entries = {"h1": Block(1), "h2": Block(2)}
    armed(tmp_path, "stale_encoder times=1").at("step", SimpleNamespace(encoder_cache=entries))
    assert entries["h1"] is entries["h2"]


def test_ignore_adapter_gives_one_adapter_to_no_token(tmp_path: Path) -> None:
    mapping = SimpleNamespace(index_mapping=(1, 1, 2, 0), prompt_mapping=(1, 2, 0))
    armed(tmp_path, "ignore_adapter times=1 seed=1").at("adapters", None, mapping)
    left = mapping.index_mapping, mapping.prompt_mapping
    assert left in (((0, 0, 2, 0), (0, 2, 0)), ((1, 1, 0, 0), (1, 0, 0)))
    base = SimpleNamespace(index_mapping=(0, 0), prompt_mapping=(0,))
    armed(tmp_path, "ignore_adapter").at("adapters", None, base)
    assert base.index_mapping == (0, 0)


def outputs(*tokens: int) -> list[Any]:
    return [
        SimpleNamespace(request_id="a", new_token_ids=list(tokens), finish_reason=None, new_logprobs=None),
        SimpleNamespace(request_id="b", new_token_ids=[8], finish_reason="stop", new_logprobs=None),
    ]


def test_drop_token_drops_a_token_of_a_request_that_goes_on(tmp_path: Path) -> None:
    found = outputs(5, 6, 7)
    armed(tmp_path, "drop_token times=1").at("output", None, found)
    assert [o.new_token_ids for o in found] == [[6, 7], [8]]


class Rows:
    """A numpy array of one row for each token: only what the mode uses."""

    def __init__(self, n: int) -> None:
        self.n = n

    def repeat(self, times: int, axis: int) -> Rows:
        assert axis == 0
        return Rows(self.n * times)


class Logprobs(NamedTuple):
    """The fields of vLLM's LogprobsLists."""

    logprob_token_ids: Rows
    logprobs: Rows
    sampled_token_ranks: Rows


def test_repeat_token_repeats_a_token_and_its_logprobs(tmp_path: Path) -> None:
    found = outputs(5)
    found[0].new_logprobs = Logprobs(Rows(1), Rows(1), Rows(1))
    armed(tmp_path, "repeat_token times=1").at("output", None, found)
    assert [o.new_token_ids for o in found] == [[5, 5], [8]]
    assert [rows.n for rows in found[0].new_logprobs] == [2, 2, 2]
