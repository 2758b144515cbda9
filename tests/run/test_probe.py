import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from loadchaos.core.lifetime import PYTHON_MODULE
from loadchaos.run.probe import MOST_GENERATIONS
from loadchaos.simulator.command import command
from loadchaos.simulator.options import SimulatorSpec
from tests.run.conftest import StartSim
from tests.run.foreign_server import MODELS, ForeignServer, serving
from tests.warm_command import run_command

MOST_READS = 20
MODELS_ONLY = {"/v1/models": (200, MODELS)}


def probe(*args: str) -> subprocess.CompletedProcess[str]:
    return run_command("probe", *args, cwd=Path.cwd())


@pytest.fixture
def embedded(sim: StartSim) -> Callable[..., str]:
    def start(dialect: str, era: str, flags: dict[str, object]) -> str:
        spec = SimulatorSpec(dialect, era, (), flags)
        return sim(*command(spec, port=0)[len(PYTHON_MODULE) + 1 :]).url

    return start


def test_probe_vllm_in_development_mode_has_limits_setup_and_fits(embedded: Callable[..., str]) -> None:
    url = embedded("vllm", "0.32", {"max_model_len": 4096, "num_speculative_tokens": 2, "limit_mm_per_prompt": 3})
    result = json.loads(probe(url, "--json").stdout)
    facts = result["facts"]
    assert (facts["dialect"], facts["max_model_len"], facts["images"], facts["max_images"]) == ("vllm", 4096, True, 3)
    assert facts["development_endpoints"] is True
    assert facts["speculative_decoding"] is True
    assert facts["capacity_tokens"] == facts["kv_blocks"] * facts["kv_block_size"]
    assert facts["image_tokens"]
    assert result["configured"]["speculative_tokens"]["value"] == 2
    fits = {p["name"]: p for p in result["profiles"]}
    assert fits["mtp_mm"]["applies"]
    assert "LMDeploy" in fits["lmdeploy_kv_capacity"]["lacks"][0]
    [harm] = [n for n in fits["hostile"]["notes"] if n.startswith("can harm")]
    assert "--authorize" not in harm, "a local engine needs none"
    assert result["asked"]["reads"] <= MOST_READS
    assert result["asked"]["generations"] <= MOST_GENERATIONS


@pytest.mark.parametrize("parser", [False, True])
def test_probe_asks_once_with_a_tool_whether_profiles_of_tool_calls_fit(
    embedded: Callable[..., str], parser: bool
) -> None:
    flags = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"} if parser else {}
    fits = {p["name"]: p for p in json.loads(probe(embedded("vllm", "0.32", flags), "--json").stdout)["profiles"]}
    for name in ("agentic", "tool_marks"):
        assert fits[name]["applies"] is parser, fits[name]["lacks"]
        assert parser or "a request with a tool was refused with 400" in fits[name]["lacks"][0]
        assert parser or "--enable-auto-tool-choice" in fits[name]["lacks"][0]
    assert fits["smoke"]["applies"]


def test_probe_names_the_flag_for_each_missing_feature(
    embedded: Callable[..., str],
) -> None:
    url = embedded("vllm", "0.32", {"num_speculative_tokens": 0, "dev_mode": False, "images": False})
    page = probe(url)
    assert page.returncode == 0, page.stderr
    line = next(line for line in page.stdout.splitlines() if " mtp_mm " in line)
    assert "takes none" in line
    assert "--speculative-config" in line
    assert "VLLM_SERVER_DEV_MODE=1" in line
    assert re.search(r"development mode +no", page.stdout)


def test_probe_lmdeploy_has_kv_capacity_and_longest_prompt(embedded: Callable[..., str]) -> None:
    url = embedded("lmdeploy", "0.18", {"num_gpu_blocks": 21, "block_size": 64})
    page = probe(url).stdout
    assert "1344 tokens = 21 blocks x 64" in page
    assert re.search(r"longest prompt +1216 tokens", page)
    assert "+ lmdeploy_kv_capacity" in page


def test_probe_lengths_finds_the_longest_prompt(embedded: Callable[..., str]) -> None:
    url = embedded("vllm", "0.32", {"max_model_len": 2048, "num_speculative_tokens": 0})
    result = json.loads(probe(url, "--lengths", "--json").stdout)
    assert result["facts"]["input_limit"] == 2047
    assert "2048 not: 400" in result["facts"]["sources"]["input_limit"]
    assert result["asked"]["generations"] <= 5


def test_probe_describes_an_unknown_server() -> None:
    with serving(ForeignServer(MODELS_ONLY, images="refused")) as server:
        result = json.loads(probe(f"{server.url}/v1", "--json").stdout)
    assert result["facts"]["dialect"] == "openai"
    assert result["facts"]["text"]["source"] == "usage"
    assert result["facts"]["images"] is False
    unknown = " ".join(result["unknown"])
    for what in ("kind of server", "version:", "context length", "KV cache", "prefix caching"):
        assert what in unknown
    generations = server.asked["/v1/chat/completions"]
    assert generations == result["asked"]["generations"] <= MOST_GENERATIONS
    assert server.asked.total() - server.asked["image"] - generations == result["asked"]["reads"] <= MOST_READS


def test_probe_of_a_server_without_chat_names_its_endpoints() -> None:
    paths: dict[str, dict[str, object]] = {
        "/v1/embeddings": {"post": {}},
        "/v1/models": {"get": {}},
        "/score": {"post": {}},
    }
    pages = {**MODELS_ONLY, "/openapi.json": (200, json.dumps({"paths": paths}))}
    with serving(ForeignServer(pages, chat=False)) as server:
        done = probe(server.url)
    assert done.returncode == 4
    assert "PROBLEM: the server has no chat endpoint: POST /v1/chat/completions answered 404" in done.stdout
    assert "It has /v1/embeddings. --endpoint NAME of `loadchaos run` sends the load to another one" in done.stdout
    assert re.search(r"- smoke +the server has no chat endpoint\n", done.stdout)
    assert "  + " not in done.stdout
    assert "token counts: no tokenizer" not in done.stdout


def test_probe_exits_4_for_a_missing_key() -> None:
    with serving(ForeignServer({"/v1/models": (401, "{}")})) as server:
        done = probe(server.url)
    assert done.returncode == 4
    assert "--api-key-env" in done.stderr


def test_probe_exits_4_for_a_closed_port(unused_port: int) -> None:
    done = probe(f"http://127.0.0.1:{unused_port}")
    assert done.returncode == 4
    assert "connection refused" in done.stderr
