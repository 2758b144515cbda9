"""Data sets and traces packed with gzip, with byte order marks, or with both: at every place where one is named."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadchaos.campaigns.replay.sources import read_source
from loadchaos.core.typed_json import from_json
from loadchaos.load.worker import bundle
from loadchaos.profile import request_trace
from loadchaos.profile.json_lines import json_lines, read_text
from loadchaos.profile.run_plan import RunPlan
from loadchaos.run.prompt_texts import _texts_of
from tests.invoking import output_of

CHAT = {"model": "m", "messages": [{"role": "user", "content": "the whole prompt of this request"}], "max_tokens": 3}
ARRIVALS = [{"timestamp": 1000 * n, "input_length": 40, "output_length": 2} for n in range(3)]
TRACE = [{"event": "trace", "version": 1}, {"event": "send", "id": "a", "body": "0" * 16}]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,40,2\n"
Pack = Callable[[str, str], Path]


def _lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(params=["marks", "gzip", "gzip with marks"])
def pack(request: pytest.FixtureRequest, tmp_path: Path) -> Pack:
    """Writes a file in one of the forms, and gives its path."""

    def write(name: str, text: str) -> Path:
        data = ("" if request.param == "gzip" else "\ufeff").encode() + text.encode()
        packed = request.param.startswith("gzip")
        path = tmp_path / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(data) if packed else data)
        return path

    return write


@pytest.mark.parametrize(
    ("name", "text"),
    [("r.jsonl", _lines(CHAT, CHAT)), pytest.param("r.json", json.dumps([CHAT, CHAT]), marks=pytest.mark.slow)],
)
def test_packed_requests_are_sent_by_a_run(name: str, text: str, pack: Pack, tmp_path: Path) -> None:
    file = pack(name, text)
    words = ("--embedded", "--dataset-name", "custom", "--dataset-path", file, "--num-prompts", "4", "--users", "1")
    output_of("run", *words, "--no-live", "--no-questions", "--out", tmp_path / "runs")
    (ledger,) = tmp_path.glob("runs/*/requests-0.jsonl")
    ends = [row for _, row in json_lines(ledger, read_text(ledger)) if isinstance(row, dict) and row["row"] == "end"]
    assert [(row["outcome"], row["completion_tokens"]) for row in ends] == [("ok", 3)] * 4


@pytest.mark.parametrize(
    ("name", "text", "requests"),
    [("t.jsonl", _lines(*ARRIVALS), 3), ("azure.csv", AZURE, 1)],
    ids=["mooncake", "azure"],
)
def test_packed_traces_give_the_arrivals_of_a_run(
    name: str, text: str, requests: int, pack: Pack, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    traffic = "traffic: [{name: text, payload: {text: {tokens: 10}}}]"
    file.write_text(f"name: replayed\n{traffic}\nload: [{{trace: {pack(name, text).name}}}]\n")
    assert f"{requests} request" in output_of("explain", file)


@pytest.mark.parametrize(
    ("name", "rows", "sends"),
    [("batch.jsonl", [CHAT, CHAT], 2), ("mooncake.jsonl", ARRIVALS, 3), ("trace.jsonl", TRACE, 1)],
)
def test_packed_files_are_replayed(name: str, rows: list[Any], sends: int, pack: Pack, tmp_path: Path) -> None:
    (tmp_path / request_trace.BODIES).mkdir()
    (tmp_path / request_trace.BODIES / f"{'0' * 16}.json").write_text(json.dumps(CHAT))
    trace = read_source(pack(name, _lines(*rows)), tmp_path / "scratch")
    assert len(trace.sends) == sends
    assert all(trace.body_file(send).is_file() for send in trace.sends)


def test_workers_on_other_machines_get_packed_files_with_what_they_name(pack: Pack, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"image")
    requests, azure = pack("r.jsonl", _lines({**CHAT, "image": "cat.png"}, CHAT)), pack("azure.csv", AZURE)
    traffic = {"name": "t", "payload": {"requests": {"file": str(requests)}}}
    profile = {"name": "t", "traffic": [traffic], "load": [{"trace": str(azure)}]}
    plan = {"profile": profile, "seed": 1, "base_url": "http://127.0.0.1:1", "folder": str(tmp_path), "workers": 1}
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "tls": {}}))
    (tmp_path / "facts.json").write_text(json.dumps({"base_url": "", "admin_url": "", "dialect": "vllm", "model": "m"}))
    assert from_json(RunPlan, plan).workers == 1
    files = bundle.pack(tmp_path).files
    assert sorted(Path(name).name for name in files) == sorted(["cat.png", requests.name, azure.name])


def test_prompts_of_packed_files_are_known(pack: Pack) -> None:
    assert CHAT["messages"][0]["content"] in list(_texts_of(pack("r.jsonl", _lines(CHAT))))  # type: ignore[index]


def test_broken_gzip_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl.gz").write_bytes(gzip.compress(_lines(CHAT).encode())[:-9])
    with pytest.raises(ValueError, match=r"r\.jsonl\.gz: the gzip data is broken"):
        read_text(tmp_path / "r.jsonl.gz")
