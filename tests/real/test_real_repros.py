"""Reproducers of docs/repros on the real servers that they kill."""

import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loadchaos.analysis.classify.classifier import classify_text
from tests.real import servers
from tests.real.conftest import running, skipping, vllm_032_mtp
from tests.real.servers import PROJECT

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]
_SMALL_IMAGES = ("--mm-processor-kwargs", '{"size":{"longest_edge":65536,"shortest_edge":65536}}')
_MTP = ("--generation-config", "vllm", "--speculative-config", '{"method":"mtp","num_speculative_tokens":2}')


vllm = skipping(servers.vllm)
chunk_end = partial(vllm, "0.22.1", "--max-num-batched-tokens", "2048", *_MTP, env={}, model="tiny-qwen3_5-full")
"""With MTP, and a prefill of 2048 tokens at a time."""
preempting = partial(
    vllm, "0.32.0", "--max-num-seqs", "8", "--max-num-batched-tokens", "120", "--block-size", "32",
    "--num-gpu-blocks-override", "11", *_SMALL_IMAGES, env={}, length=320,
)  # fmt: skip
"""Its caches hold one image and one long request."""
small_processor_cache = partial(
    vllm, "0.22.1", "--max-num-seqs", "8", "--max-num-batched-tokens", "512", "--generation-config", "vllm",
    "--mm-processor-cache-gb", "0.002", *_SMALL_IMAGES, env={}, length=512,
)  # fmt: skip
"""Its processor cache holds one or two images."""
small_cache_for_many_images = partial(
    vllm, "0.22.1", "--generation-config", "vllm", "--limit-mm-per-prompt", '{"image":4,"video":0}',
    "--mm-processor-cache-gb", "0.004", "--mm-processor-kwargs",
    '{"size":{"longest_edge":262144,"shortest_edge":4096}}', env={}, length=1024,
)  # fmt: skip
"""Its processor cache holds less than the four images of one request."""
seeded = partial(vllm, "0.32.0", "--max-num-batched-tokens", "2048", env={})
plain = partial(vllm, "0.32.0", "--generation-config", "vllm", env={})
drafting = partial(plain, "--speculative-config", '{"method":"ngram","num_speculative_tokens":3}')
with_tool_parser = partial(plain, "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
with_adapters = partial(vllm, "0.32.0", "--load-format", "auto", "--enable-lora", "--max-lora-rank", "8", "--lora-modules",
                        env={}, model="tiny-qwen3-vl-random", length=1024)  # fmt: skip
short = partial(vllm, "0.27.1", "--generation-config", "vllm", env={}, length=1024)
sglang = skipping(servers.sglang_0523)
transformers_serve = skipping(servers.transformers_524)
"""With continuous batching."""


def script(name: str, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(PROJECT / "docs/repros" / name / "repro.py"), url, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)


MOST_TRIES = {"vllm-0.32.0-preempted-image": 6}
"""Fresh servers for a script that does not kill each one: with 5 of 8, six survive in 0.3 % of cases."""


@pytest.mark.parametrize(
    ("name", "failure", "server"),
    [
        ("vllm-0.22.1-image-at-chunk-end", "encoder_cache_miss", chunk_end),
        ("vllm-0.32.0-preempted-image", "mm_encoder_gave_nothing", preempting),
        ("vllm-0.32.0-seeded-split-prefill", "cpu_generator_offset", seeded),
        ("vllm-0.32.0-top-k-under-speculation", "spec_sampler_top_k", drafting),
        ("vllm-0.32.0-mtp-on-hybrid-model", "mamba_precopy_failed", vllm_032_mtp),
    ],
)
def test_repro_kills_the_real_server_with_its_failure(name: str, failure: str, server: Any, tmp_path: Path) -> None:
    for number in range(MOST_TRIES.get(name, 1)):
        log = tmp_path / f"server-{number}.log"
        with running(server(), log) as started:
            done = script(name, started.url)
            time.sleep(3)
        if done.returncode != 0:
            break
    assert done.returncode == 1, done.stdout + done.stderr
    assert failure in [f.id for f in classify_text(log.read_text(errors="replace"))]


def test_image_beside_the_end_of_a_chunk_is_answered(tmp_path: Path) -> None:
    with running(chunk_end(), tmp_path / "server.log") as started:
        for move in ("1", "-1"):
            done = script("vllm-0.22.1-image-at-chunk-end", started.url, "2048", move)
            assert (done.returncode, "\n200 " in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "server", "says"),
    [
        ("vllm-0.22.1-image-cache-spin", small_processor_cache, "/health says 200: the server hangs"),
        (
            "vllm-0.22.1-images-over-cache",
            small_cache_for_many_images,
            "four new images: no answer in 30 s; /health says 200",
        ),
        (
            "vllm-0.22.1-closed-after-refusal",
            small_cache_for_many_images,
            "20 of 20 good requests after a refusal were lost",
        ),
        ("vllm-0.27.1-stop-token-outside-vocabulary", short, "the server died"),
        ("sglang-0.5.23-top-logprobs-over-vocabulary", sglang, "the server died"),
    ],
    ids=[
        "the-engine-core-loops-in-its-image-cache",
        "the-api-server-loops-in-its-image-cache",
        "each-request-after-a-refusal-is-lost",
        "a-stop-token-kills-the-engine",
        "top-logprobs-kill-the-scheduler",
    ],
)
def test_repro_says_what_is_wrong(name: str, server: Any, says: str, tmp_path: Path) -> None:
    with running(server(), tmp_path / "server.log") as started:
        done = script(name, started.url)
    assert done.returncode == 1, done.stdout + done.stderr
    assert says in done.stdout + done.stderr


def test_repro_gets_wrong_arguments_of_each_call_with_a_mark(tmp_path: Path) -> None:
    with running(with_tool_parser(), tmp_path / "server.log") as started:
        done = script("vllm-0.32.0-tool-call-end-in-string", started.url)
        control = script("vllm-0.32.0-tool-call-end-in-string", started.url, "before after")
    counts = [int(n) for n in re.findall(r"(\d+) of (\d+) answers have wrong arguments", done.stdout)[-1]]
    assert (done.returncode, counts[0]) == (1, counts[1]), done.stdout + done.stderr
    assert (control.returncode, "\n0 of " in control.stdout) == (0, True), control.stdout + control.stderr


def test_repro_gets_the_base_model_in_place_of_an_adapter(tmp_path: Path) -> None:
    command = with_adapters(*(f"{name}={tmp_path / name}" for name in ("text", "whole")))
    model = servers.made("tiny-qwen3-vl-random", "make_random_models.py")
    make = PROJECT / "docs/repros/vllm-0.32.0-lora-of-a-text-model/make_adapters.py"
    subprocess.run([servers.installed("vllm-0.32.0", "bin/python"), make, model, tmp_path], check=True, timeout=120)
    with running(command, tmp_path / "server.log") as started:
        done = script("vllm-0.32.0-lora-of-a-text-model", started.url)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the adapter `text` has no effect" in done.stdout


def test_repro_gets_control_characters_where_a_string_has_a_bound(tmp_path: Path) -> None:
    with running(plain(), tmp_path / "server.log") as started:
        done = script("vllm-0.32.0-control-character-under-schema", started.url)
        control = script("vllm-0.32.0-control-character-under-schema", started.url, "0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Invalid control character at" in done.stdout
    assert control.returncode == 0, control.stdout + control.stderr


def test_repro_gets_streams_without_the_character_that_max_tokens_cut(tmp_path: Path) -> None:
    with running(transformers_serve(), tmp_path / "server.log") as started:
        done = script("transformers-5.24.0-stream-drops-cut-character", started.url)
    assert done.returncode == 1, done.stdout + done.stderr
    (counts,) = re.findall(r"(\d+) of 24 pairs differ, (\d+) of them in more", done.stdout)
    assert (int(counts[0]) > 0, counts[1]) == (True, "0"), done.stdout
