"""`loadchaos run --audit cache`: distinct and equal prompts by turns."""

import json
import re
from pathlib import Path

import pytest

from loadchaos.campaigns.repeat.audit import _variant
from loadchaos.cli.profiles import profile_of
from loadchaos.report.repeat_result import Audited
from loadchaos.report.terminal.audit import render
from tests.campaigns.repeat.test_repeat import repeated
from tests.invoking import output_of

LOAD = ("--rate", "40", "--num-prompts", "40", "--random-input-len", "400", "--random-output-len", "4")


@pytest.mark.slow
def test_equal_prompts_hit_the_prefix_cache_and_distinct_ones_do_not(tmp_path: Path) -> None:
    words = ("run", "--embedded", *LOAD, "--audit", "cache", "--no-questions", "--no-live", "--exporter-port", "0")
    page = output_of(*words, "--repeat", "2", "--out", tmp_path)
    assert re.search(r"PASS +cache audit of .*: 2 runs with distinct prompts, 2 with equal ones, by turns", page)
    found = re.search(r"prefix cache +(\S+) % of the prompt tokens, (\S+) % with equal prompts", page)
    assert found is not None
    assert float(found[1]) < 5
    assert float(found[2]) > 80
    [folder] = tmp_path.glob("audit-*")
    assert "too few runs to compare" in output_of("compare", folder / "distinct", folder / "equal")


def test_variants_change_prompts_and_images_alone() -> None:
    changes = ["traffic.0.payload.text.shared_prefix={tokens: 20}"]
    profile = profile_of("smoke", changes)
    distinct, equal = (_variant(profile, equal=equal).to_json() for equal in (False, True))
    assert distinct["traffic"][0]["payload"] == {"text": {"tokens": "32..512"}}
    assert equal["traffic"][0]["payload"]["text"]["shared_prefix"] == {"tokens": 512, "groups": 1}
    images = [found["traffic"][2]["payload"]["images"] for found in (distinct, equal)]
    assert [image["unique"] for image in images] == ["100%", "0%"]
    assert images[0]["size"] == images[1]["size"] == "448x448"
    for found in (distinct, equal):
        assert {k: v for k, v in found.items() if k != "traffic"} == {
            k: v for k, v in profile.to_json().items() if k != "traffic"
        }


def test_what_equal_prompts_change_is_told_with_its_noise(tmp_path: Path) -> None:
    distinct = Audited(result=repeated(1), hit_rates=(0.0, 0.02))
    text = render(distinct, Audited(result=repeated(2, ttft_s=0.05), hit_rates=()), 0, tmp_path)
    assert re.search(r"TTFT p50 +0\.\d\d times with equal prompts: [\d.]+ ms, [\d.]+ ms with distinct ones\n", text)
    assert "prefix cache    1.0 % of the prompt tokens, an unknown share with equal prompts" in text
    same = render(distinct, Audited(result=repeated(2), hit_rates=()), 0, tmp_path)
    assert "with distinct ones (not told apart from the noise)" in same


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--audit", "cache", "--repeat", "until=5%"), "--repeat until=5%: a number of runs of each kind was expected"),
        (("--audit", "cache", "--notify", "https://x.example/"), "--audit: --notify is of a single run"),
    ],
)
def test_options_that_do_not_fit_are_refused(words: tuple[str, ...], why: str, tmp_path: Path) -> None:
    assert why in output_of("run", "smoke", "--target", "http://127.0.0.1:1", *words, "--out", tmp_path, code=2)
    assert list(tmp_path.iterdir()) == []


def test_prompts_of_a_file_are_refused(tmp_path: Path) -> None:
    (file := tmp_path / "r.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "x"}]}) + "\n")
    words = (
        "run",
        "--target",
        "http://127.0.0.1:1",
        "--rate",
        "5",
        "--num-prompts",
        "1",
        "--dataset-name",
        "custom",
        "--dataset-path",
        file,
    )
    assert "has no payload text" in output_of(*words, "--audit", "cache", "--out", tmp_path / "runs", code=2)
