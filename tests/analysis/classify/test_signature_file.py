import re

import pytest
from ruamel.yaml import YAML

from loadchaos.analysis.classify.classifier import classify_text, load
from loadchaos.analysis.classify.signature_file import WORD, Signature, SignatureError, build, evaluate, words_of
from loadchaos.profile.profile import AcceptedFailure

SIGNATURES = load()
EXAMPLES = [(s, e) for s in SIGNATURES.all for e in s.examples]

GOOD = '[[signature]]\nid="a"\ntitle="t"\nseverity="request"\nfind="some words"\npattern="some words"\n'


@pytest.mark.parametrize(("signature", "example"), EXAMPLES, ids=[f"{s.id}-{n}" for n, (s, _) in enumerate(EXAMPLES)])
def test_signature_example_matches_its_own_signature(signature: Signature, example: str) -> None:
    if signature.role == "place":
        frames = [example] if signature.where == "traceback" else []
        place = SIGNATURES.place("" if frames else example, frames)
        assert place is not None
        assert place.id == signature.id
        return
    found = SIGNATURES.scan(example, where=signature.where)
    assert signature.id in [s.id for s, _ in found]


def test_signatures_have_an_example_and_a_title() -> None:
    assert [s.id for s in SIGNATURES.all if not s.symptom and not s.examples] == []


def test_signatures_of_deaths_have_a_remedy_or_a_why() -> None:
    mute = [
        s.id for s in SIGNATURES.all if s.role == "cause" and s.severity == "engine_death" and not (s.remedy or s.why)
    ]
    assert mute == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD.replace("title", "titel"), "unknown key 'titel'"),
        (GOOD.replace('title="t"', 'title=""'), "title is missing"),
        (GOOD.replace('pattern="some words"', 'pattern="some (words"'), "is no regular expression"),
        (GOOD.replace("request", "fatal"), "severity 'fatal' is none of"),
        (GOOD + 'role="reason"\n', "role 'reason' is none of"),
        (GOOD.replace('find="some words"', 'find="12"'), "no word of three letters"),
        (GOOD.replace('find="some words"\n', ""), "find is missing"),
        (GOOD + GOOD, "already used"),
        (GOOD + 'known="vllm-0"\n', "known 'vllm-0' is no advisory"),
        (GOOD + 'refines="b"\n', "refines 'b'"),
        (GOOD + 'derive={x="__import__(1)"}\n', "only + - * /"),
        (GOOD + "[[signature.variant]]\ntitle='x'\n", "a variant needs frames and a title"),
        ("id = ", "x.toml:"),
    ],
)
def test_signature_file_mistake_names_file_entry_and_reason(text: str, reason: str) -> None:
    with pytest.raises(SignatureError) as caught:
        build({"x.toml": text})
    assert "x.toml" in str(caught.value)
    assert reason in str(caught.value)


def test_signature_derives_figures_from_facts() -> None:
    figures = {"blocks": 21.0, "block_size": 64.0, "tokens": 3446.0, "share": 0.1}
    assert evaluate("blocks * block_size", figures) == 1344
    assert evaluate("ceil(tokens / block_size)", figures) == 54
    assert evaluate("ceil2(share * 54 / blocks)", figures) == 0.26
    with pytest.raises(ValueError, match="not over"):
        evaluate("over(block_size, tokens)", figures)


def test_signature_names_an_http_body() -> None:
    busy = '{"error":{"message":"The engine is currently busy and cannot accept new requests.","code":503}}'
    assert [f.id for f in classify_text(busy)] == ["http_queue_full"]
    dead = '{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","code":500}}'
    assert [(f.id, f.role) for f in classify_text(dead)] == [("engine_dead_error", "echo")]


@pytest.mark.parametrize(
    "line", ["Caf\u00e9 Killed process 12 (vllm)", "a\udcffKilled,process", "(EngineCore_DP0) _Killed_", ""]
)
def test_words_of_a_line_are_those_of_the_index(line: str) -> None:
    assert {w.decode() for w in words_of(line) if len(w) > 2} == set(WORD.findall(line))


def test_lines_of_a_profile_that_remedies_give_are_valid() -> None:
    given = [(s.id, line) for s in SIGNATURES.all for line in re.findall(r"accept: \[\{.*?\}\]", s.remedy)]
    assert len(given) >= 2
    for name, line in given:
        (accepted,) = YAML(typ="safe").load(line.replace("YYYY-MM-DD", "2099-01-31"))["accept"]
        assert AcceptedFailure.model_validate(accepted).id == name


SGLANG = 'File "/opt/env/lib/python3.12/site-packages/sglang/srt/model_executor/model_runner.py", line 9, in forward'
VLLM = 'File "/opt/env/lib/python3.12/site-packages/vllm/v1/worker/gpu_model_runner.py", line 9, in execute_model'


@pytest.mark.parametrize(
    ("frame", "exception", "has", "lacks"),
    [
        (
            SGLANG,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
            "--mem-fraction-static",
            "--gpu-m",
        ),
        (
            VLLM,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
            "--gpu-memory-utilization",
            "SGLang",
        ),
        (
            SGLANG,
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "CUDA_LAUNCH_BLOCKING",
            "--gpu-m",
        ),
        (VLLM, "RuntimeError: CUDA error: an illegal memory access was encountered", "--enforce-eager", "--eager-mode"),
    ],
)
def test_remedy_names_options_of_the_engine_that_wrote_the_log(
    frame: str, exception: str, has: str, lacks: str
) -> None:
    text = f"Traceback (most recent call last):\n  {frame}\n    x()\n{exception}\n"
    [failure] = classify_text(f"ERROR: failed\n{text}\n")
    assert has in failure.remedy
    assert lacks not in failure.remedy


def test_remedy_of_a_log_of_llamacpp_has_no_option_of_vllm() -> None:
    start = (
        "slot update_slots: id  0 | task 1 | new prompt\nsrv    send_error: task id = 1, error: Invalid input batch.\n"
    )
    found = classify_text(f"{start}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    assert not any("--gpu-memory" in f.remedy or "--max-num" in f.remedy for f in found)
