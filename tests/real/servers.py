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
_IMAGES = ("--limit-mm-per-prompt", '{"image":2,"video":0}', "--max-num-batched-tokens", "2048")


class NotInstalledError(Exception):
    """Says which server is not there, and how it is got."""


@dataclass(frozen=True)
class Command:
    """Command that starts a server, and its address."""

    argv: Sequence[str]
    env: Mapping[str, str]
    url: str


def vllm(
    version: str, *flags: str, env: Mapping[str, str], model: str = "tiny-qwen3-vl", length: int = 4096
) -> Command:
    """A vLLM on the CPU. Raises NotInstalledError."""
    home = ROOT / f"vllm-{version}"
    if not (home / "bin/vllm").is_file() or not (ROOT / "models" / model).is_dir():
        raise NotInstalledError(f"vLLM {version} is not installed in {home}: scripts/real/install.sh vllm-{version}")
    port = free_port()
    argv = [
        str(home / "bin/vllm"), "serve", str(ROOT / "models" / model), "--host", "127.0.0.1", "--port", str(port),
        "--load-format", "dummy", "--served-model-name", "tiny", "--max-model-len", str(length), "--enforce-eager", *flags,
    ]  # fmt: skip
    environment = {
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "2", "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CACHE_ROOT": str(home / "cache"),  # versions that share it inspect the model in a process again at each start
        **env,
    }  # fmt: skip
    return Command(argv, environment, f"http://127.0.0.1:{port}")


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
    """vLLM 0.32.0 with a model that makes vectors: embeddings, score and rerank."""
    return vllm("0.32.0", "--runner", "pooling", "--max-num-batched-tokens", "4096", env={}, model="tiny-qwen3-embed")


def vllm_032_whisper() -> Command:
    """vLLM 0.32.0 with a model that writes down speech: transcriptions, and no chat."""
    return vllm("0.32.0", "--max-num-seqs", "16", env={}, model="tiny-whisper", length=448)


def vllm_032_topk() -> Command:
    """vLLM 0.32.0 with MTP that the first request with top_k kills."""
    speculative = '{"method":"mtp","num_speculative_tokens":2}'
    flags = ("--speculative-config", speculative, "--no-enable-prefix-caching", "--limit-mm-per-prompt", '{"image":2}')
    return vllm("0.32.0", *flags, env={}, model="tiny-qwen3_5-full")


def vllm_0221_mtp(**env: str) -> Command:
    """vLLM 0.22.1 with MTP, images and a small encoder cache (#38551)."""
    return vllm(
        "0.22.1",
        "--limit-mm-per-prompt",
        '{"image":8,"video":0}',
        "--max-num-seqs",
        "128",
        "--max-num-batched-tokens",
        "2048",
        "--no-enable-prefix-caching",
        "--generation-config",
        "vllm",
        "--speculative-config",
        '{"method":"mtp","num_speculative_tokens":2}',
        env=env,
        model="tiny-qwen3_5-full",
        length=8192,
    )


def vllm_copy(version: str, *flags: str, **env: str) -> Command:
    """A vLLM that serves the trained model, with n-gram drafts and a KV cache so small that it preempts."""
    if not (ROOT / "models/tiny-copy/model.safetensors").is_file():
        raise NotInstalledError("there is no trained model: scripts/real/train_copy_model.py")
    speculative = '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4,"prompt_lookup_min":2}'
    common = (
        "--load-format", "auto", "--dtype", "float32", "--generation-config", "vllm", "--num-gpu-blocks-override", "24",
        "--max-num-batched-tokens", "2048", "--speculative-config", speculative,
    )  # fmt: skip
    return vllm(version, *common, *flags, env=env, model="tiny-copy", length=2048)


def vllm_adapters(version: str, **env: str) -> Command:
    """A vLLM that serves the trained model with three LoRA adapters of random weights."""
    folders = [ROOT / f"models/tiny-copy-lora-{n}" for n in (1, 2, 3)]
    if not folders[0].is_dir():
        raise NotInstalledError("there are no adapters: scripts/real/make_random_models.py")
    adapters = [f"{folder.name}={folder}" for folder in folders]
    common = ("--load-format", "auto", "--dtype", "float32", "--generation-config", "vllm")
    lora = ("--enable-lora", "--max-loras", "3", "--max-lora-rank", "8", "--lora-modules", *adapters)
    return vllm(version, *common, "--max-num-batched-tokens", "2048", *lora, env=env, model="tiny-copy", length=2048)


def vllm_images(version: str, **env: str) -> Command:
    """A vLLM whose random weights answer differently about different images."""
    common = ("--load-format", "auto", "--dtype", "float32", "--generation-config", "vllm")
    images = ("--limit-mm-per-prompt", '{"image":2,"video":0}', "--max-num-batched-tokens", "2048")
    return vllm(version, *common, *images, env=env, model="tiny-qwen3-vl-random")


def vllm_colour(version: str, **env: str) -> Command:
    """A vLLM that serves the model which names colours. Raises NotInstalledError."""
    if not (ROOT / "models/tiny-colour/model.safetensors").is_file():
        raise NotInstalledError("there is no model that names colours: scripts/real/train_colour_model.py")
    common = ("--load-format", "auto", "--dtype", "float32", "--generation-config", "vllm")
    images = ("--limit-mm-per-prompt", '{"image":2,"video":0}', "--max-num-batched-tokens", "2048")
    return vllm(version, *common, *images, env=env, model="tiny-colour")


def vllm_032_mtp() -> Command:
    """vLLM 0.32.0 killed by its first request (MTP on a hybrid model)."""
    speculative = '{"method":"mtp","num_speculative_tokens":2}'
    return vllm("0.32.0", "--speculative-config", speculative, env={}, model="tiny-qwen3_5")


def transformers_519(*flags: str) -> Command:
    return transformers("5.19.0", *flags)


def transformers_524(*flags: str) -> Command:
    return transformers("5.24.0", *flags)


def transformers(version: str, *flags: str) -> Command:
    """`transformers serve` with continuous batching. Raises NotInstalledError.

    Without --cb-num-blocks it takes most of the machine's memory for the KV cache.
    """
    home = ROOT / f"transformers-{version}"
    if not (home / "bin/transformers").is_file():
        raise NotInstalledError(f"it is not installed in {home}: scripts/real/install.sh transformers-{version}")
    port = free_port()
    argv = [
        "env", "-C", str(home / "models"), str(home / "bin/transformers"), "serve", "tiny-text",
        "--continuous-batching", "--cb-num-blocks", "512", "--cb-block-size", "32", "--host", "127.0.0.1",
        "--port", str(port), *flags,
    ]  # fmt: skip
    environment = {"HF_HUB_CACHE": str(home / "models"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    return Command(argv, environment, f"http://127.0.0.1:{port}")


def llama_cpp(*flags: str) -> Command:
    """llama.cpp's own server with two slots of 2,048 tokens. Raises NotInstalledError."""
    home = ROOT / "llama.cpp-0.3.36"
    if not (home / "llama.cpp/llama-server").is_file():
        raise NotInstalledError(f"llama.cpp is not installed in {home}: scripts/real/install.sh llama.cpp-0.3.36")
    port = free_port()
    argv = [
        str(home / "llama.cpp/llama-server"), "-m", str(home / "models/tiny-text.gguf"), "--alias", "tiny-text",
        "-c", "4096", "-np", "2", "-t", "1", "--metrics", "--host", "127.0.0.1", "--port", str(port), *flags,
    ]  # fmt: skip
    return Command(argv, {}, f"http://127.0.0.1:{port}")


def embedded() -> Command:
    port = free_port()
    return Command(command(SimulatorSpec("vllm", "0.32", (), {}), port=port), {}, f"http://127.0.0.1:{port}")


def router(*workers: str) -> Command:
    """A vllm-router in front of these servers. Raises NotInstalledError."""
    binary = ROOT / "vllm-router-0.1.17/bin/vllm-router"
    if not binary.is_file():
        raise NotInstalledError(f"vllm-router is not installed in {binary}: scripts/real/install.sh vllm-router-0.1.17")
    port = free_port()
    argv = [
        str(binary),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--worker-urls",
        *workers,
        "--policy",
        "cache_aware",
    ]
    metrics = ["--prometheus-port", str(free_port())]
    return Command([*argv, *metrics], {}, f"http://127.0.0.1:{port}")


def lmdeploy_old(version: str, *flags: str) -> Command:
    """The HTTP layer of LMDeploy 0.6.5 or 0.10.0 over a stub engine; may be NotInstalledError."""
    python = ROOT / f"lmdeploy-{version}/bin/python"
    if not python.is_file():
        raise NotInstalledError(
            f"LMDeploy {version} is not installed in {python.parent.parent}: scripts/real/install.sh lmdeploy-{version}"
        )
    port = free_port()
    script = str(PROJECT / "scripts/real/run_lmdeploy_0_6.py")
    argv = [str(python), script, "--server-port", str(port), "--session-len", "4096", "--log-level", "INFO", *flags]
    return Command(argv, {}, f"http://127.0.0.1:{port}")


def lmdeploy_0_6() -> Command:
    """LMDeploy 0.6.5 with 21 blocks: 1,344 tokens."""
    return lmdeploy_old("0.6.5", "--cache-max-entry-count", "0.1")


def lmdeploy_0_10() -> Command:
    return lmdeploy_old("0.10.0", "--enable-metrics")


def sglang_0523(*flags: str, images: bool = False, **env: str) -> Command:
    """SGLang 0.5.23 with a context of 4,096 tokens and a KV cache as long. Raises NotInstalledError."""
    home = ROOT / "sglang-0.5.23"
    if not (home / "models/tiny-text").is_dir():
        raise NotInstalledError(f"SGLang is not installed in {home}: scripts/real/install.sh sglang-0.5.23")
    if images and not (ROOT / "models/tiny-qwen3-vl-random").is_dir():
        raise NotInstalledError("there is no model that takes images: scripts/real/make_random_models.py")
    model = ROOT / "models/tiny-qwen3-vl-random" if images else home / "models/tiny-text"
    port = free_port()
    argv = [
        str(home / "bin/python"), "-m", "sglang.launch_server", "--model-path", str(model), "--served-model-name", "tiny",
        "--device", "cpu", "--attention-backend", "torch_native", "--mm-attention-backend", "sdpa", "--enable-metrics",
        "--sleep-on-idle", "--context-length", "4096", "--max-total-tokens", "4096", "--host", "127.0.0.1",
        "--port", str(port), *flags,
    ]  # fmt: skip
    # two threads wait for each other at each operation: on a busy machine 4 tokens/s in place of 300
    environment = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **env}
    return Command(argv, environment, f"http://127.0.0.1:{port}")


def litellm(*backends: str, model: str = "sim") -> Command:
    """A LiteLLM proxy in front of these servers, which serve this model. Raises NotInstalledError."""
    binary = ROOT / "litellm-1.106.2/bin/litellm"
    if not binary.is_file():
        raise NotInstalledError(f"LiteLLM is not installed in {binary}: scripts/real/install.sh litellm-1.106.2")
    models = [
        {
            "model_name": model,
            "litellm_params": {"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1", "api_key": "none"},
        }
        for url in backends
    ]
    settings = Path(tempfile.mkdtemp(prefix="litellm-")) / "config.yaml"
    settings.write_text(json.dumps({"model_list": models}))  # JSON is YAML
    port = free_port()
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # for this machine only: 127.0.0.1
    }
    argv = [str(binary), "--config", str(settings), "--host", "127.0.0.1", "--port", str(port)]
    return Command(argv, environment, f"http://127.0.0.1:{port}")


def litellm_vllm(*backends: str) -> Command:
    return litellm(*backends, model="tiny")


def lmdeploy_018(*flags: str, **env: str) -> Command:
    """LMDeploy's HTTP layer over a stub engine; may be NotInstalledError."""
    python = ROOT / "lmdeploy-0.18.0/bin/python"
    if not python.is_file():
        raise NotInstalledError(
            f"LMDeploy 0.18.0 is not installed in {python.parent.parent}: scripts/real/install.sh lmdeploy-0.18.0"
        )
    port = free_port()
    script = str(PROJECT / "scripts/real/run_lmdeploy.py")
    argv = [str(python), script, "--port", str(port), "--session-len", "8192", "--log-level", "INFO", *flags]
    return Command(argv, env, f"http://127.0.0.1:{port}")
