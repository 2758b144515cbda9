#!/usr/bin/env python
"""Provoke failed starts of real servers and compare what loadchaos says with what is expected.

    scripts/real/startup_failures.py                               # all mistakes of all installed servers
    scripts/real/startup_failures.py --server vllm-0.32.0 NAME...  # some of one server
    scripts/real/startup_failures.py --right                       # the same start-ups without the mistake

Each mistake is started with `loadchaos launch --check`. It must exit with 4, say the expected id in one line, and
`loadchaos classify` must name it from the log. The start-up without the mistake must become ready, and its log must hold no
failure. --keep DIR writes redacted, shortened logs as tests/crashes has them. Nothing needs a GPU; see README.md.
Try a new version with `--server vllm-X.Y.Z`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
ROOT = Path(os.environ.get("LOADCHAOS_REAL", "~/.cache/loadchaos")).expanduser()
VLLM, LMDEPLOY = ("vllm-0.32.0", "vllm-0.22.1"), ("lmdeploy-0.18.0",)
READY_S = 240.0


@dataclass(frozen=True)
class Mistake:
    """One wrong start-up, and the same without the mistake.

    `{m}` in an option is the model folder, `{d}` a folder with the files of FILES.

    Args:
        expected: Id that loadchaos must say.
        flags: Options with the mistake.
        right: The same options without it.
        spoil: Changes the files of the model folder; the right start-up leaves them.
        model: Kind of model: `text`, `vision`, `weights` (text with real weights) or `draft`.
        quick: The server ends within seconds of its imports.
    """

    name: str
    expected: str
    flags: Sequence[str] = ()
    right: Sequence[str] = ()
    spoil: Callable[[Path], None] | None = None
    model: str = "text"
    env: Mapping[str, str] = field(default_factory=dict)
    servers: Sequence[str] = VLLM
    quick: bool = False
    port_taken: bool = False


# --- spoiled model folders ------------------------------------------------------------------------------------------------


def config(**changes: object) -> Callable[[Path], None]:
    """Change keys of config.json; None removes one."""

    def spoil(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps({k: v for k, v in values.items() if v is not None}))

    return spoil


def without(*names: str) -> Callable[[Path], None]:
    """Remove files."""

    def spoil(folder: Path) -> None:
        for name in names:
            (folder / name).unlink(missing_ok=True)

    return spoil


def text(name: str, content: str) -> Callable[[Path], None]:
    """Replace a file."""

    def spoil(folder: Path) -> None:
        (folder / name).write_text(content)

    return spoil


def truncated(folder: Path) -> None:
    """Cut the weights in the middle, as an interrupted download does."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def moved(folder: Path) -> None:
    """Leave an empty folder where the model was."""
    for path in list(folder.iterdir()):
        path.unlink()


# --- files --------------------------------------------------------------------------------------------------------------------


def tensors(shapes: Mapping[str, Sequence[int]]) -> bytes:
    """A safetensors file of small random bfloat16 values."""
    header, data, rnd = {}, b"", random.Random(1)
    for name, shape in shapes.items():
        count = 1
        for n in shape:
            count *= n
        blob = b"".join(struct.pack("<H", 0x3C00 + rnd.randrange(256)) for _ in range(count))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [len(data), len(data) + len(blob)]}
        data += blob
    head = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(head)) + head + data


def text_model(folder: Path, source: Path, *, weights: bool) -> None:
    """Make a tiny text-only Qwen3 with the tokenizer of `source`."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(source / name, folder / name)
    values = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 2048, "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0, "eos_token_id": 2032, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values, indent=1))
    if weights:
        shapes: dict[str, list[int]] = {
            "model.embed_tokens.weight": [2048, 64], "model.norm.weight": [64], "lm_head.weight": [2048, 64],
        }  # fmt: skip
        for n in range(2):
            layer = f"model.layers.{n}"
            shapes |= {
                f"{layer}.input_layernorm.weight": [64], f"{layer}.post_attention_layernorm.weight": [64],
                f"{layer}.self_attn.q_proj.weight": [64, 64], f"{layer}.self_attn.k_proj.weight": [32, 64],
                f"{layer}.self_attn.v_proj.weight": [32, 64], f"{layer}.self_attn.o_proj.weight": [64, 64],
                f"{layer}.self_attn.q_norm.weight": [32], f"{layer}.self_attn.k_norm.weight": [32],
                f"{layer}.mlp.gate_proj.weight": [128, 64], f"{layer}.mlp.up_proj.weight": [128, 64],
                f"{layer}.mlp.down_proj.weight": [64, 128],
            }  # fmt: skip
        (folder / "model.safetensors").write_bytes(tensors(shapes))


def adapter(folder: Path, *, rank: int = 8, weights: bool = True, settings: bool = True) -> None:
    """A LoRA adapter of the text model."""
    folder.mkdir()
    if settings:
        values = {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": 16,
            "target_modules": ["q_proj"],
            "task_type": "CAUSAL_LM",
        }
        (folder / "adapter_config.json").write_text(
            json.dumps({**values, "bias": "none", "base_model_name_or_path": "tiny"})
        )
    if weights:
        prefix = "base_model.model.model.layers"
        shapes = {f"{prefix}.{n}.self_attn.q_proj.lora_A.weight": [rank, 64] for n in range(2)}
        shapes |= {f"{prefix}.{n}.self_attn.q_proj.lora_B.weight": [64, rank] for n in range(2)}
        (folder / "adapter_model.safetensors").write_bytes(tensors(shapes))


def make_files(folder: Path) -> None:
    """Write the files that options name."""
    (folder / "broken.jinja").write_text("{% for m in messages %}{{ m.content }")
    (folder / "good.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    (folder / "broken.yaml").write_text("max-model-len: [1\nport: :\n")
    (folder / "good.yaml").write_text("max-num-seqs: 8\n")
    (folder / "template.json").write_text('{"model_name": "tiny", "system": "<s>"')
    for name in ("a", "b"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
             "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")],
            check=True, capture_output=True,
        )  # fmt: skip
    (folder / "not-a-key.pem").write_text("no key\n")
    adapter(folder / "lora")
    adapter(folder / "lora-empty", weights=False, settings=False)
    adapter(folder / "lora-no-weights", weights=False)
    adapter(folder / "lora-rank-64", rank=64)


# --- the mistakes -------------------------------------------------------------------------------------------------------------

_LORA = ("--enable-lora", "--max-lora-rank", "16", "--lora-modules")
_NGRAM = '{"method":"ngram","num_speculative_tokens":2,"prompt_lookup_max":3}'
_SSL = ("--ssl-keyfile", "{d}/a.key", "--ssl-certfile", "{d}/a.crt")
_REAL = ("--load-format", "auto")

_TRITON_FREE = ("vllm-0.32.0",)  # where adapters work without a GPU

# fmt: off
VLLM_MISTAKES = (
    Mistake("model-path-wrong", "model_not_found", spoil=lambda m: shutil.rmtree(m), quick=True),
    Mistake("model-folder-empty", "model_not_found", spoil=moved, quick=True),
    Mistake("model-config-bad-json", "model_config_broken", spoil=text("config.json", '{"architectures": ['), quick=True),
    Mistake("tokenizer-not-json", "tokenizer_broken", spoil=text("tokenizer.json", '{"version": "1.0", "model": {')),
    Mistake("image-processor-missing", "model_processor_missing", spoil=without("preprocessor_config.json"), model="vision"),
    Mistake("architecture-unknown", "model_arch_unsupported",
            spoil=config(architectures=["NoSuchForCausalLM"]), quick=True),
    Mistake("model-type-unknown", "model_arch_unsupported",
            spoil=config(architectures=["NoSuchForCausalLM"], model_type="no_such"), quick=True),
    Mistake("remote-code-not-trusted", "trust_remote_code_needed", spoil=config(
            architectures=["OwnForCausalLM"], model_type="own",
            auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}), quick=True),
    Mistake("weights-missing", "model_weights_missing", _REAL, _REAL, without("model.safetensors"), "weights"),
    Mistake("weights-corrupt", "model_weights_corrupt", _REAL, _REAL, text("model.safetensors", "<html>404</html>"), "weights"),
    Mistake("weights-truncated", "model_weights_corrupt", _REAL, _REAL, truncated, "weights"),
    Mistake("weights-of-another-size", "weights_of_another_model", _REAL, _REAL, config(hidden_size=128), "weights"),
    Mistake("context-over-model", "max_len_over_model", ("--max-model-len", "9000000"), ("--max-model-len", "4096"), quick=True),
    Mistake("kv-cache-too-small", "kv_too_small_for_max_len", ("--num-gpu-blocks-override", "4"),
            ("--num-gpu-blocks-override", "64")),
    Mistake("batch-smaller-than-context", "batched_tokens_too_few",
            ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "512"),
            ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048"), quick=True),
    Mistake("batch-smaller-than-sequences", "batched_tokens_too_few", ("--max-num-batched-tokens", "16", "--max-num-seqs", "64"),
            ("--max-num-batched-tokens", "64", "--max-num-seqs", "16"), quick=True),
    Mistake("memory-over-machine", "cpu_memory_too_small", (), env={"VLLM_CPU_KVCACHE_SPACE": "9000"}),
    Mistake("tensor-parallel-does-not-divide", "tp_heads_mismatch", ("--tensor-parallel-size", "3"),
            ("--tensor-parallel-size", "1"), quick=True),
    Mistake("tensor-parallel-without-cores", "cpu_binding_invalid", ("--tensor-parallel-size", "2"), ("--tensor-parallel-size", "1")),
    Mistake("pipeline-parallel-over-layers", "pipeline_stage_without_layers", ("--pipeline-parallel-size", "7"),
            ("--pipeline-parallel-size", "1"), env={"VLLM_CPU_OMP_THREADS_BIND": "nobind"}),
    Mistake("speculative-not-json", "bad_arguments", ("--speculative-config", '{"method":"ngram",'),
            ("--speculative-config", _NGRAM), quick=True),
    Mistake("speculative-method-unknown", "speculative_config_invalid",
            ("--speculative-config", '{"method":"no_such","num_speculative_tokens":2}'), ("--speculative-config", _NGRAM),
            quick=True),
    Mistake("speculative-without-count", "speculative_config_invalid",
            ("--speculative-config", '{"method":"ngram","prompt_lookup_max":3}'), ("--speculative-config", _NGRAM), quick=True),
    Mistake("draft-model-not-found", "model_not_found",
            ("--speculative-config", '{"method":"draft_model","model":"/models/no-draft","num_speculative_tokens":2}'),
            ("--speculative-config", _NGRAM)),
    Mistake("mtp-not-in-model", "speculative_config_invalid",
            ("--speculative-config", '{"method":"mtp","num_speculative_tokens":2}'), ("--speculative-config", _NGRAM), quick=True),
    Mistake("lora-path-wrong", "lora_files_missing", (*_LORA, "a=/models/no-lora"), (*_LORA, "a={d}/lora"), servers=_TRITON_FREE),
    Mistake("lora-empty", "lora_files_missing", (*_LORA, "a={d}/lora-empty"), (*_LORA, "a={d}/lora"), servers=_TRITON_FREE),
    Mistake("lora-no-weights", "lora_files_missing", (*_LORA, "a={d}/lora-no-weights"), (*_LORA, "a={d}/lora"), servers=_TRITON_FREE),
    Mistake("lora-rank-too-large", "lora_load_failed", (*_LORA, "a={d}/lora-rank-64"), (*_LORA, "a={d}/lora"), servers=_TRITON_FREE),
    Mistake("lora-format-wrong", "bad_arguments", (*_LORA, "just-a-name"), (*_LORA, "a={d}/lora"), quick=True),
    Mistake("quantization-unknown", "quantization_unsupported", ("--quantization", "no_such"), (), quick=True),
    Mistake("quantization-of-another-model", "quantization_not_in_model", ("--quantization", "awq"), (), quick=True),
    Mistake("quantization-config-unknown", "quantization_unsupported",
            spoil=config(quantization_config={"quant_method": "no_such"}), quick=True),
    Mistake("dtype-unknown", "bad_arguments", ("--dtype", "float7"), ("--dtype", "float32"), quick=True),
    Mistake("option-unknown", "bad_arguments", ("--max-modle-len", "4096"), ("--max-model-len", "4096"), quick=True),
    Mistake("number-expected", "bad_arguments", ("--max-num-seqs", "many"), ("--max-num-seqs", "8"), quick=True),
    Mistake("json-option-broken", "bad_arguments", ("--hf-overrides", "{rope_theta: 1}"), ("--hf-overrides", '{"rope_theta": 10000}'),
            quick=True),
    Mistake("memory-share-over-one", "config_field_error", ("--gpu-memory-utilization", "1.7"),
            ("--gpu-memory-utilization", "0.5"), quick=True),
    Mistake("chat-template-not-found", "chat_template_invalid", ("--chat-template", "/models/no-template.jinja"),
            ("--chat-template", "{d}/good.jinja")),
    Mistake("tool-parser-unknown", "parser_unknown", ("--enable-auto-tool-choice", "--tool-call-parser", "no_such"),
            ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"), quick=True),
    Mistake("tool-choice-without-parser", "tool_parser_needed", ("--enable-auto-tool-choice",),
            ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"), quick=True),
    Mistake("reasoning-parser-unknown", "parser_unknown", ("--reasoning-parser", "no_such"), ("--reasoning-parser", "qwen3"),
            quick=True),
    Mistake("port-in-use", "address_in_use", port_taken=True, quick=True),
    Mistake("host-of-another-machine", "host_address_invalid", ("--host", "192.0.2.7"), ("--host", "127.0.0.1"), quick=True),
    Mistake("certificate-not-found", "ssl_files_invalid", ("--ssl-keyfile", "/certs/no.key", "--ssl-certfile", "/certs/no.crt"),
            _SSL),
    Mistake("certificate-of-another-key", "ssl_files_invalid", ("--ssl-keyfile", "{d}/a.key", "--ssl-certfile", "{d}/b.crt"), _SSL),
    Mistake("key-not-a-key", "ssl_files_invalid", ("--ssl-keyfile", "{d}/not-a-key.pem", "--ssl-certfile", "{d}/a.crt"), _SSL),
    Mistake("settings-file-not-found", "settings_file_invalid", ("--config", "/etc/no-vllm.yaml"), ("--config", "{d}/good.yaml"),
            quick=True),
    Mistake("settings-file-not-yaml", "settings_file_invalid", ("--config", "{d}/broken.yaml"), ("--config", "{d}/good.yaml"),
            quick=True),
    Mistake("environment-not-a-number", "environment_invalid", env={"VLLM_CPU_KVCACHE_SPACE": "lots"}, quick=True),
    Mistake("middleware-not-found", "module_missing", ("--middleware", "no_such.Middleware"),
            ("--middleware", "starlette.middleware.gzip.GZipMiddleware")),
    Mistake("logits-processor-not-found", "module_missing", ("--logits-processors", "no_such:Processor"), (), quick=True),
    Mistake("kv-connector-unknown", "kv_connector_unknown",
            ("--kv-transfer-config", '{"kv_connector":"NoSuch","kv_role":"kv_both"}'),
            ("--kv-transfer-config", '{"kv_connector":"ExampleConnector","kv_role":"kv_both"}')),
    Mistake("generation-config-not-found", "generation_config_missing", ("--generation-config", "/models/no-generation"),
            ("--generation-config", "vllm")),
    Mistake("attention-backend-unknown", "attention_backend_invalid", ("--attention-backend", "NO_SUCH"), (), quick=True),
)

LMDEPLOY_MISTAKES = (
    Mistake("model-path-wrong", "model_not_found", spoil=lambda m: shutil.rmtree(m)),
    Mistake("model-folder-empty", "model_config_missing", spoil=moved),
    Mistake("model-config-bad-json", "model_config_broken", spoil=text("config.json", '{"architectures": [')),
    Mistake("tokenizer-not-json", "tokenizer_broken", spoil=text("tokenizer.json", '{"version": "1.0", "model": {')),
    Mistake("option-unknown", "bad_arguments", ("--session-length", "4096"), ("--session-len", "4096")),
    Mistake("number-expected", "bad_arguments", ("--tp", "many"), ("--tp", "1")),
    Mistake("dtype-unknown", "bad_arguments", ("--dtype", "float7"), ("--dtype", "bfloat16")),
    Mistake("json-option-broken", "bad_arguments", ("--hf-overrides", "{rope_theta: 1"), ("--hf-overrides", '{"rope_theta": 10000}')),
    Mistake("chat-template-not-found", "chat_template_invalid", ("--chat-template", "/models/no-template.json"), ("--chat-template", "base")),
    Mistake("chat-template-not-json", "chat_template_file_broken", ("--chat-template", "{d}/template.json"), ("--chat-template", "base")),
    Mistake("tool-parser-unknown", "parser_unknown", ("--tool-call-parser", "no_such"), ("--tool-call-parser", "qwen3")),
    Mistake("reasoning-parser-unknown", "parser_unknown", ("--reasoning-parser", "no_such"), ()),
    Mistake("ssl-without-files", "environment_invalid", ("--ssl",), ()),
    Mistake("cache-share-over-one", "lmdeploy_option_invalid", ("--cache-max-entry-count", "1.7"), ("--cache-max-entry-count", "0.5")),
    Mistake("port-in-use", "address_in_use", port_taken=True),
    Mistake("host-of-another-machine", "host_address_invalid", ("--server-name", "192.0.2.7"), ("--server-name", "127.0.0.1")),
    Mistake("no-gpu", "no_cuda_in_torch", model="engine"),
    Mistake("no-gpu-in-the-engine-process", "no_cuda_in_torch", ("--max-batch-size", "8"), model="engine"),
)
# fmt: on


def mistakes(server: str) -> Sequence[Mistake]:
    """The mistakes of a server."""
    if server.startswith("lmdeploy"):
        return LMDEPLOY_MISTAKES
    return [m for m in VLLM_MISTAKES if m.servers == VLLM or server not in VLLM or server in m.servers]


def counterpart(server: str, mistake: Mistake) -> Mistake:
    """The first mistake of the table whose right start-up is the same."""
    return next(m for m in mistakes(server) if (m.model, tuple(m.right)) == (mistake.model, tuple(mistake.right)))


# --- a server that has its imports behind it ---------------------------------------------------------------------------------

_SPAWN = ("vllm-0.22.1",)  # its engine core hangs where it is forked: it imports again
_FORK = "import multiprocessing as m, vllm.utils.system_utils as u; u.get_mp_context = lambda: m.get_context('fork')"
_MODULES = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.benchmark.main",
    "vllm.entrypoints.cli.run_batch",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen3",
    "vllm.model_executor.model_loader",
)


@contextlib.contextmanager
def warm(server: str, *, cold: bool = False) -> Iterator[Sequence[str]]:
    """Words before the server's command that start it without its imports; none for LMDeploy and where `cold`."""
    if cold or not server.startswith("vllm"):
        yield ()
        return
    with tempfile.TemporaryDirectory(prefix="warm-") as place:
        path, script = f"{place}/socket", str(PROJECT / "scripts/real/warm.py")
        python = str(ROOT / server / "bin/python")
        process = subprocess.Popen(
            [python, script, "serve", path, "" if server in _SPAWN else _FORK, *_MODULES],
            env={**os.environ, **environment(server)},
            start_new_session=True,
        )
        try:
            while not Path(path).exists():
                if process.poll() is not None:
                    raise RuntimeError(f"{server} cannot be imported")
                time.sleep(0.2)
            yield (sys.executable, script, "run", path)
        finally:
            process.terminate()
            process.wait()


# --- run one --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartUp:
    """Result of one start-up.

    `line` is the line that loadchaos says, `ids` those that `classify` finds.
    """

    code: int
    line: str
    output: str
    ids: Sequence[str]
    log: Path
    seconds: float


def free_port() -> int:
    """Port below the kernel's client ports."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def taken(port: int, *, really: bool) -> Iterator[None]:
    """Hold a port without listening, as a server does that has not come up yet."""
    with socket.socket() as s:
        if really:
            s.bind(("127.0.0.1", port))
        yield


def environment(server: str) -> dict[str, str]:
    """Variables of a server on this machine."""
    env = {"PATH": f"{ROOT / server / 'bin'}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if server.startswith("vllm"):
        env |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "2",
                "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1",
                "VLLM_CACHE_ROOT": str(ROOT / server / "cache")}  # fmt: skip
    return env


def command(server: str, mistake: Mistake, folder: Path, port: int, *, right: bool) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of the server; writes its files below `folder`."""
    home, files = ROOT / server, folder / "files"
    files.mkdir(parents=True)
    make_files(files)
    model = folder / "model"
    if server.startswith("lmdeploy"):
        shutil.copytree(home / "models/m_llm", model)
    elif mistake.model == "vision":
        shutil.copytree(ROOT / "models/tiny-qwen3-vl", model)
    else:
        text_model(model, ROOT / "models/tiny-qwen3-vl", weights=mistake.model == "weights")
    if mistake.spoil is not None and not right:
        mistake.spoil(model)
    flags = [
        f.replace("{m}", str(model)).replace("{d}", str(files)) for f in (mistake.right if right else mistake.flags)
    ]
    if server.startswith("lmdeploy"):
        here = ["--server-name", "127.0.0.1", "--server-port", str(port)]
        if mistake.model == "engine" and not right:  # the real engine, which needs a GPU
            argv = [
                str(home / "bin/lmdeploy"),
                "serve",
                "api_server",
                str(model),
                "--backend",
                "pytorch",
                *here,
                *flags,
            ]
        else:
            script = str(PROJECT / "scripts/real/run_lmdeploy.py")
            argv = [str(home / "bin/python"), script, "--port", str(port), "--model", str(model), *flags]
    else:
        argv = [str(home / "bin/vllm"), "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy",
                "--served-model-name", "tiny", "--max-model-len", "2048", "--enforce-eager", *flags]  # fmt: skip
    return argv, environment(server) | (dict(mistake.env) if not right else {})


def start(
    server: str,
    mistake: Mistake,
    folder: Path,
    *,
    right: bool = False,
    limit_s: float = READY_S,
    before: Sequence[str] = (),
) -> StartUp:
    """Start a server with `loadchaos launch --check`; `before` are the words of `warm`."""
    port = free_port()
    argv, env = command(server, mistake, folder, port, right=right)
    address = ["--insecure"] if "--ssl-certfile" in argv else []
    if "192.0.2.7" in argv:  # where it would answer if it could start there
        address += ["--url", f"http://127.0.0.1:{port}"]
    begin = time.monotonic()
    with taken(port, really=mistake.port_taken and not right):
        done = subprocess.run(
            [sys.executable, "-m", "loadchaos", "launch", "--check", "--ready-within", f"{limit_s:g}s", *address,
             "--out", str(folder / "launches"), "--", *before, *argv],
            cwd=PROJECT, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=limit_s + 120, check=False,
        )  # fmt: skip
    seconds = time.monotonic() - begin
    (log,) = (folder / "launches").glob("*/server.log")
    classified = subprocess.run(
        [sys.executable, "-m", "loadchaos", "classify", "--json", str(log)], cwd=PROJECT, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    ids = [f["id"] for f in json.loads(classified.stdout or "[]")]
    lines = [line for line in done.stdout.splitlines() if line.startswith("loadchaos: ")]
    return StartUp(done.returncode, lines[0] if lines else "", done.stdout, ids, log, seconds)


def faults(result: StartUp, mistake: Mistake, *, right: bool = False) -> list[str]:
    """What is not as expected of this start-up."""
    found = []
    if right:
        if result.code != 0:
            found.append(f"the right start-up exits with {result.code}: {result.line}")
        if result.ids:
            found.append(f"its log holds {', '.join(result.ids)}")
        return found
    if result.code != 4:
        found.append(f"exit code {result.code}, not 4")
    if result.ids[:1] != [mistake.expected]:
        found.append(f"classify finds {', '.join(result.ids) or 'nothing'}, not {mistake.expected}")
    if f"({mistake.expected})" not in result.line:
        found.append(f"the line does not name {mistake.expected}")
    return found


# --- logs for the corpus ----------------------------------------------------------------------------------------------------

_FRAME = re.compile(r'^(?P<prefix>.*?)  File "')
_FIRST, _LAST, _LAST_OF_SERVER = 2, 8, 4


def redacted(log: str, folder: Path) -> str:
    """The log without the paths and names of this machine."""
    names = [
        (f"{folder}/model", "/models/tiny"),
        (f"{folder}/files", "/files"),
        (str(folder), "/run"),
        (str(PROJECT), "/loadchaos"),
    ]
    names += [(str(home), "/venv") for home in ROOT.glob("*-*.*") if home.is_dir()]
    names += [
        (str(ROOT), "/opt/servers"),
        (sys.base_prefix, "/usr"),
        (str(Path.home()), "/home/user"),
        (socket.gethostname(), "host"),
    ]
    for name, shown in names:
        log = log.replace(name, shown)
    return log


def shortened(log: str) -> str:
    """The log with the first, the last and the server's last frames of tracebacks, without marks under code."""
    lines = [line for line in log.splitlines() if not re.fullmatch(r".*?\s[~^]+\s*", line)]
    out: list[str] = []
    block: list[list[str]] = []

    def close() -> None:
        servers = [n for n, frame in enumerate(block) if re.search("/(?:vllm|lmdeploy)/", frame[0])][-_LAST_OF_SERVER:]
        for n, frame in enumerate(block):
            if n < _FIRST or n >= len(block) - _LAST or n in servers:
                out.extend(frame)
        block.clear()

    for line in lines:
        if _FRAME.match(line) is not None:
            block.append([line])
        elif block and line.startswith(hit_prefix(block[-1][0]) + "    ") and len(block[-1]) < 2:
            block[-1].append(line)
        else:
            close()
            out.append(line)
    close()
    return "\n".join(line[:1500].rstrip() for line in out) + "\n"


def hit_prefix(line: str) -> str:
    """What a logger writes before the lines of a traceback."""
    hit = _FRAME.match(line)
    return hit["prefix"] if hit is not None else ""


def keep(result: StartUp, server: str, mistake: Mistake, folder: Path, into: Path, *, right: bool) -> None:
    """Write the log as tests/crashes has it; the golden test adds its FAILURE lines."""
    speaker, version = server.split("-")
    version = ".".join(version.split(".")[:2])
    what = "started without that mistake" if right else "started with this mistake"
    name = f"{speaker}-start-{mistake.name}-{version}" if right else f"start-{mistake.name}-{version}"
    path = into / ("benign" if right else speaker) / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = {"vllm": "vLLM", "lmdeploy": "LMDeploy"}[speaker]
    source = f"SOURCE: a real {shown} {server.split('-')[1]} on the CPU, {what}; tracebacks shortened"
    path.write_text(source + "\n\n" + shortened(redacted(result.log.read_text(errors="replace"), folder)))


def main() -> int:
    """Start what was asked for, and print a line for each start-up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mistakes (default: all)")
    parser.add_argument(
        "--server", action="append", help="as its folder in ~/.cache/loadchaos (default: all installed)"
    )
    parser.add_argument("--right", action="store_true", help="start without the mistakes instead")
    parser.add_argument("--quick", action="store_true", help="only those that end soon after the imports")
    parser.add_argument(
        "--cold", action="store_true", help="import vLLM for each start-up, as a user does (20 to 60 s each)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder for redacted logs, such as tests/crashes")
    parser.add_argument("--limit", type=float, default=READY_S, help="seconds for a server to become ready")
    args = parser.parse_args()
    wrong = 0
    for server in args.server or [s for s in (*VLLM, *LMDEPLOY) if (ROOT / s).is_dir()]:
        with warm(server, cold=args.cold) as before:
            for mistake in mistakes(server):
                if (args.names and mistake.name not in args.names) or (args.quick and not mistake.quick):
                    continue
                if args.right and mistake is not counterpart(server, mistake) and not args.names:
                    continue
                with tempfile.TemporaryDirectory(prefix="startup-") as place:
                    result = start(server, mistake, Path(place), right=args.right, limit_s=args.limit, before=before)
                    bad = faults(result, mistake, right=args.right)
                    wrong += bool(bad)
                    print(
                        f"{'BAD' if bad else 'ok '} {server} {mistake.name} {result.seconds:.0f} s: {result.line}",
                        flush=True,
                    )
                    for line in bad:
                        print(f"      {line}", flush=True)
                    if args.keep is not None:
                        keep(result, server, mistake, Path(place), args.keep, right=args.right)
    print(f"{wrong} start-up{'s' * (wrong != 1)} not as expected")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
