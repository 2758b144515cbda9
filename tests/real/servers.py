"""Commands that start the real servers installed here."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadchaos.run.ports import free_port
from loadchaos.simulator.command import command
from loadchaos.simulator.options import SimulatorSpec

ROOT = Path(os.environ.get("LOADCHAOS_REAL", "~/.cache/loadchaos")).expanduser()
PROJECT = Path(__file__).parent.parent.parent
_MTP = '{"method":"mtp","num_speculative_tokens":2}'
_TRAINED = ("--load-format", "auto", "--dtype", "float32", "--generation-config", "vllm")
_IMAGES = ("--limit-mm-per-prompt", '{"image":2,"video":0}', "--max-num-batched-tokens", "2048")


class NotInstalledError(Exception):
    """Says which server is not there, and how it is got."""


@dataclass(frozen=True)
class Command:
    """Command that starts a server, and its address."""

    argv: Sequence[str]
    env: Mapping[str, str]
    url: str


def installed(folder: str, program: str) -> Path:
    """Path of a program, or of a folder beside it. Raises NotInstalledError."""
    path = ROOT / folder / program
    if not path.exists():
        raise NotInstalledError(f"{folder} is not installed in {ROOT / folder}: scripts/real/install.sh {folder}")
    return path


def made(file: str, script: str) -> Path:
    """Path of a model that a script of scripts/real makes. Raises NotInstalledError."""
    path = ROOT / "models" / file
    if not path.exists():
        raise NotInstalledError(f"there is no {path}: scripts/real/{script}")
    return path


def on_port(port: int, *argv: object, **env: str) -> Command:
    return Command([str(word) for word in argv], env, f"http://127.0.0.1:{port}")


def vllm(
    version: str, *flags: str, env: Mapping[str, str], model: str = "tiny-qwen3-vl", length: int = 4096
) -> Command:
    """A vLLM on the CPU. Raises NotInstalledError."""
    binary, port = installed(f"vllm-{version}", "bin/vllm"), free_port()
    home = binary.parent.parent
    environment = {
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "2", "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CACHE_ROOT": str(home / "cache"),  # versions that share it inspect the model in a process again at each start
        **env,
    }  # fmt: skip
    return on_port(
        port, binary, "serve", installed("models", model), "--host", "127.0.0.1", "--port", port, "--load-format", "dummy",
        "--served-model-name", "tiny", "--max-model-len", length, "--enforce-eager", *flags, **environment,
    )  # fmt: skip


_ALL_ROUTES = (
    "--limit-mm-per-prompt", '{"image":2,"video":1}', "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    "--max-num-seqs", "64", "--enable-scale-out", "--max-num-batched-tokens", "2048",
)  # fmt: skip


def vllm_032(**env: str) -> Command:
    """vLLM 0.32.0 with images and /render, as most tests want it."""
    return vllm("0.32.0", *_ALL_ROUTES, env=env)


def vllm_033(**env: str) -> Command:
    return vllm("0.33.0", *_ALL_ROUTES, env=env)


def vllm_0271(**env: str) -> Command:
    return vllm("0.27.1", *_IMAGES, "--max-num-seqs", "64", env=env)


def vllm_0221(**env: str) -> Command:
    return vllm("0.22.1", *_IMAGES, "--max-num-seqs", "64", "--generation-config", "vllm", env=env)


def vllm_032_embed() -> Command:
    """vLLM 0.32.0 with a model that makes vectors: embeddings, score and rerank. With dummy weights, a vector depends on
    the last token alone, so that texts with the same one have equal vectors.
    """
    made("tiny-qwen3-embed-random/model.safetensors", "make_random_models.py")
    pooling = ("--runner", "pooling", "--max-num-batched-tokens", "4096")
    return vllm("0.32.0", *_TRAINED, *pooling, env={}, model="tiny-qwen3-embed-random")


def vllm_032_whisper() -> Command:
    """vLLM 0.32.0 with a model that writes down speech: transcriptions, and no chat."""
    return vllm("0.32.0", "--max-num-seqs", "16", env={}, model="tiny-whisper", length=448)


def vllm_032_topk() -> Command:
    """vLLM 0.32.0 with MTP that the first request with top_k kills."""
    flags = ("--speculative-config", _MTP, "--no-enable-prefix-caching", "--limit-mm-per-prompt", '{"image":2}')
    return vllm("0.32.0", *flags, env={}, model="tiny-qwen3_5-full")


def vllm_0221_mtp(**env: str) -> Command:
    """vLLM 0.22.1 with MTP, images and a small encoder cache (#38551)."""
    flags = (
        "--limit-mm-per-prompt", '{"image":8,"video":0}', "--max-num-seqs", "128", "--max-num-batched-tokens", "2048",
        "--no-enable-prefix-caching", "--generation-config", "vllm", "--speculative-config", _MTP,
    )  # fmt: skip
    return vllm("0.22.1", *flags, env=env, model="tiny-qwen3_5-full", length=8192)


def vllm_copy(version: str, *flags: str, **env: str) -> Command:
    """A vLLM that serves the trained model, with n-gram drafts and a KV cache so small that it preempts."""
    made("tiny-copy/model.safetensors", "train_copy_model.py")
    speculative = '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4,"prompt_lookup_min":2}'
    small = ("--num-gpu-blocks-override", "24", "--max-num-batched-tokens", "2048", "--speculative-config", speculative)
    return vllm(version, *_TRAINED, *small, *flags, env=env, model="tiny-copy", length=2048)


def vllm_copy_ids(version: str, **env: str) -> Command:
    """A vLLM that serves a model trained to copy ids. It has no drafts and a KV cache for all requests."""
    made("tiny-copy-ids/model.safetensors", "train_copy_model.py --ids")
    small = ("--num-gpu-blocks-override", "200", "--max-num-batched-tokens", "2048")
    return vllm(version, *_TRAINED, *small, env=env, model="tiny-copy-ids", length=2048)


def copied_ids() -> list[str]:
    """The ids that the model of `vllm_copy_ids` knows: letters and digits by turns."""
    tokens = json.loads(made("tiny-copy-ids/tokenizer.json", "train_copy_model.py --ids").read_text())["added_tokens"]
    return [word for token in tokens if (word := token["content"].strip())[1:2].isdigit()]


def vllm_adapters(version: str, **env: str) -> Command:
    """A vLLM that serves the trained model with three LoRA adapters of random weights."""
    folders = [made(f"tiny-copy-lora-{n}", "make_random_models.py") for n in (1, 2, 3)]
    adapters = [f"{folder.name}={folder}" for folder in folders]
    lora = ("--enable-lora", "--max-loras", "3", "--max-lora-rank", "8", "--lora-modules", *adapters)
    return vllm(version, *_TRAINED, "--max-num-batched-tokens", "2048", *lora, env=env, model="tiny-copy", length=2048)


def vllm_images(version: str, **env: str) -> Command:
    """A vLLM whose random weights answer differently about different images."""
    return vllm(version, *_TRAINED, *_IMAGES, env=env, model="tiny-qwen3-vl-random")


def vllm_colour(version: str, **env: str) -> Command:
    """A vLLM that serves the model which names colours. Raises NotInstalledError."""
    made("tiny-colour/model.safetensors", "train_colour_model.py")
    return vllm(version, *_TRAINED, *_IMAGES, env=env, model="tiny-colour")


def vllm_032_mtp() -> Command:
    """vLLM 0.32.0 killed by its first request (MTP on a hybrid model)."""
    return vllm("0.32.0", "--speculative-config", _MTP, env={}, model="tiny-qwen3_5")


def transformers_519(*flags: str) -> Command:
    return transformers("5.19.0", *flags)


def transformers_524(*flags: str) -> Command:
    return transformers("5.24.0", *flags)


def transformers(version: str, *flags: str) -> Command:
    """`transformers serve` with continuous batching. Raises NotInstalledError.

    Without --cb-num-blocks it takes most of the machine's memory for the KV cache.
    """
    binary, port = installed(f"transformers-{version}", "bin/transformers"), free_port()
    models = binary.parent.parent / "models"
    return on_port(
        port, "env", "-C", models, binary, "serve", "tiny-text", "--continuous-batching", "--cb-num-blocks", "512",
        "--cb-block-size", "32", "--host", "127.0.0.1", "--port", port, *flags,
        HF_HUB_CACHE=str(models), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="2",
    )  # fmt: skip


def llama_cpp(*flags: str) -> Command:
    """llama.cpp's own server with two slots of 2,048 tokens. Raises NotInstalledError."""
    binary, port = installed("llama.cpp-0.3.36", "llama.cpp/llama-server"), free_port()
    model = installed("llama.cpp-0.3.36", "models/tiny-text.gguf")
    return on_port(
        port, binary, "-m", model, "--alias", "tiny-text", "-c", "4096", "-np", "2", "-t", "1", "--metrics",
        "--host", "127.0.0.1", "--port", port, *flags,
    )  # fmt: skip


def embedded() -> Command:
    port = free_port()
    return on_port(port, *command(SimulatorSpec("vllm", "0.32", (), {}), port=port))


def router(*workers: str) -> Command:
    """A vllm-router in front of these servers. Raises NotInstalledError."""
    binary, port = installed("vllm-router-0.1.17", "bin/vllm-router"), free_port()
    return on_port(
        port, binary, "--host", "127.0.0.1", "--port", port, "--worker-urls", *workers, "--policy", "cache_aware",
        "--prometheus-port", free_port(),
    )  # fmt: skip


def lmdeploy_old(version: str, *flags: str) -> Command:
    """The HTTP layer of LMDeploy 0.6.5 or 0.10.0 over a stub engine. Raises NotInstalledError."""
    python, port = installed(f"lmdeploy-{version}", "bin/python"), free_port()
    script = PROJECT / "scripts/real/run_lmdeploy_0_6.py"
    return on_port(port, python, script, "--server-port", port, "--session-len", "4096", "--log-level", "INFO", *flags)


def lmdeploy_0_6() -> Command:
    """LMDeploy 0.6.5 with 21 blocks: 1,344 tokens."""
    return lmdeploy_old("0.6.5", "--cache-max-entry-count", "0.1")


def lmdeploy_0_10() -> Command:
    return lmdeploy_old("0.10.0", "--enable-metrics")


def sglang_0523(*flags: str, images: bool = False, **env: str) -> Command:
    """SGLang 0.5.23 with a context of 4,096 tokens and a KV cache as long. Raises NotInstalledError."""
    folder = "sglang-0.5.23"
    python, port, model = installed(folder, "bin/python"), free_port(), installed(folder, "models/tiny-text")
    if images:
        model = made("tiny-qwen3-vl-random", "make_random_models.py")
    # two threads wait for each other at each operation: on a busy machine 4 tokens/s in place of 300
    environment = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **env}
    return on_port(
        port, python, "-m", "sglang.launch_server", "--model-path", model, "--served-model-name", "tiny",
        "--device", "cpu", "--attention-backend", "torch_native", "--mm-attention-backend", "sdpa", "--enable-metrics",
        "--sleep-on-idle", "--context-length", "4096", "--max-total-tokens", "4096", "--host", "127.0.0.1",
        "--port", port, *flags, **environment,
    )  # fmt: skip


def litellm(*backends: str, model: str = "sim") -> Command:
    """A LiteLLM proxy in front of these servers, which serve this model. Raises NotInstalledError."""
    binary, port = installed("litellm-1.106.2", "bin/litellm"), free_port()
    models = [
        {
            "model_name": model,
            "litellm_params": {"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1", "api_key": "none"},
        }
        for url in backends
    ]
    settings = Path(tempfile.mkdtemp(prefix="litellm-")) / "config.yaml"
    settings.write_text(json.dumps({"model_list": models}))  # JSON is YAML
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # for this machine only: 127.0.0.1
    }
    return on_port(port, binary, "--config", settings, "--host", "127.0.0.1", "--port", port, **environment)


def litellm_vllm(*backends: str) -> Command:
    return litellm(*backends, model="tiny")


def lmdeploy_018(*flags: str, **env: str) -> Command:
    """LMDeploy's HTTP layer over a stub engine. Raises NotInstalledError."""
    python, port = installed("lmdeploy-0.18.0", "bin/python"), free_port()
    script = PROJECT / "scripts/real/run_lmdeploy.py"
    argv = (python, script, "--port", port, "--session-len", "8192", "--log-level", "INFO")
    return on_port(port, *argv, *flags, **env)
