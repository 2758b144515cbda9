"""Launch flags are read out of commands and out of the start-up lines of logs."""

import shlex
from typing import Any

import pytest

from loadchaos.analysis.advisories.command_line import parse, parse_logged

MTP = {"speculative_config.method": "mtp", "speculative_config.num_speculative_tokens": 2}


@pytest.mark.parametrize(
    ("command", "engine", "model", "flags"),
    [
        ("vllm serve Q/M -tp 4 --enforce-eager", "vllm", "Q/M", {"tensor_parallel_size": 4, "enforce_eager": True}),
        ("vllm serve --enforce-eager Q/M", "vllm", "Q/M", {"enforce_eager": True}),
        ("vllm serve M --no-enable-prefix-caching", "vllm", "M", {"enable_prefix_caching": False}),
        ("vllm serve M --max_num_seqs=8", "vllm", "M", {"max_num_seqs": 8}),
        ("""vllm serve M --speculative-config '{"method":"mtp","num_speculative_tokens":2}'""", "vllm", "M", MTP),
        ('vllm serve M --speculative-config {"method":"mtp","num_speculative_tokens":2}', "vllm", "M", MTP),
        ("vllm serve M --speculative-config.method mtp --speculative-config.num_speculative_tokens 2", "vllm", "M", MTP),
        ("vllm serve M --served-model-name a b --max-model-len 10", "vllm", "M", {"max_model_len": 10}),
        ("python3 -m vllm.entrypoints.openai.api_server --model M --max-num-seq 2", "vllm", "M", {"max_num_seqs": 2}),
        ("docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.22.1 --model M -O3", "vllm", "M", {"model": "M"}),
        ("docker run lmsysorg/sglang:dev python3 -m sglang.launch_server --model M --tp 8", "sglang", "M", {"tp_size": 8}),
        ("lmdeploy serve api_server M --backend pytorch", "lmdeploy", "M", {"backend": "pytorch"}),
        ("/x/llama-server -hf a/b:Q4 -np 4 -c 8192", "llamacpp", "a/b:Q4", {"parallel": 4, "ctx_size": 8192}),
        ("transformers serve M --continuous-batching", "transformers", "M", {"continuous_batching": True}),
    ],
)  # fmt: skip
def test_command_is_read(command: str, engine: str, model: str, flags: dict[str, Any]) -> None:
    found = parse(shlex.split(command))
    assert found is not None
    assert (found.engine, found.model) == (engine, model)
    assert found.flags.items() >= flags.items()


def test_version_of_an_image_is_read() -> None:
    versions = {
        "vllm/vllm-openai:v0.22.1": "0.22.1",
        "lmsysorg/sglang:v0.5.9-cu126": "0.5.9",
        "vllm/vllm-openai:latest": None,
    }
    assert {image: found.version for image in versions if (found := parse(["docker", "run", image]))} == versions


def test_unknown_option_has_the_nearest_one() -> None:
    found = parse(shlex.split("vllm serve M --max-num-sequences 8 --zzzz 3 --enforce-eager"))
    assert found is not None
    assert found.unknown == {"--max-num-sequences": "; did you mean --max-num-seqs?", "--zzzz": ""}
    assert found.flags == {"enforce_eager": True}


def test_command_without_an_engine_is_none() -> None:
    assert parse(["nginx", "-g", "daemon off;"]) is None


@pytest.mark.parametrize(
    "text",
    [
        "{'model_tag': 'M', 'tp_size': 2, 'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 2}}",
        "ServerArgs(model_tag='M', tp_size=2, speculative_config={'method': 'mtp', 'num_speculative_tokens': 2})",
    ],
)
def test_flags_of_a_start_up_line_are_read(text: str) -> None:
    assert parse_logged(text).items() >= {"model_tag": "M", "tp_size": 2, **MTP}.items()


@pytest.mark.parametrize(
    "text",
    [
        "Namespace(model='M', tp_size=2, x=<object at 0x7f>)",
        "{'model': 'M', 'tp_size': 2, 'x': <object at 0x7f>}",
        "{'model': 'M', 'tp_size': 2, 'x': <X.A: 1>, 'dtype': torch.bfloat16}",
    ],
)
def test_flags_beside_a_value_that_is_no_literal_are_read(text: str) -> None:
    assert parse_logged(text).items() >= {"model": "M", "tp_size": 2}.items()


def test_object_in_a_start_up_line_is_read_as_its_arguments() -> None:
    text = "{'mode': <Mode.A: (2, 1)>, 'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector', kv_port=1)}"
    found = {"mode": [2, 1], "kv_transfer_config.kv_connector": "NixlConnector", "kv_transfer_config.kv_port": 1}
    assert parse_logged(text).items() >= found.items()
