"""Incident folders: complete, ready to paste, safe to render, and the same when written again."""

import json
from typing import Any

import pytest

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.report.incident import folder
from loadchaos.report.incident.log_excerpt import batch, decisive
from loadchaos.report.incident.page import replay_command


@pytest.fixture
def death(hostile: str) -> dict[str, Any]:
    """An incident as the judge gives it."""
    flying = [
        {"id": f"0-{i}", "step": i, "traffic": "images", "tokens": 400 + i, "images": 2, "edge": None, "age_s": 0.5}
        for i in range(60)
    ]
    return {
        "schema": 1,
        "n": 1,
        "id": "encoder_cache_miss",
        "folder": "001-encoder_cache_miss",
        "kind": "death",
        "replica": "a",
        "severity": "engine_death",
        "title": f"Encoder cache miss {hostile}",
        "attribution": "server",
        "opened_at_s": 30.0,
        "noticed_at_s": 30.4,
        "signs": ["connection refused", hostile],
        "known": [{"issue": "vllm-project/vllm#38551", "fixed": "0.27.1"}],
        "remedy": "upgrade; no MTP",
        "evidence": {"source": "server.log", "line": 101, "text": "Encoder cache miss"},
        "lost_requests": 76,
        "lost": {"reset": 76},
        "in_flight_at_death": 60,
        "in_flight": flying,
        "admitted": [],
        "attacks": [{"attack": "reset_mm_cache", "effects": ["mm_cache_desync"], "began_before_s": 0.3}],
        "log_lines": {"server.log": {"first": 100, "last": 103}},
        "recovered_after_s": None,
        "timeline": [{"at_s": 30.0, "text": "dying: ``` and <b>"}],
        "environment": {
            "profile": "mtp_mm",
            "argv": ["/usr/bin/loadchaos", "run", "mtp_mm"],
            "seed": 7,
            "version": "0.1.0",
            "target": {"kind": "launched", "url": "http://127.0.0.1:8000"},
            "command": ["vllm", "--model", "a b"],
            "facts": {"dialect": "vllm", "version": "0.18.0", "text": {"words": [["a", 1]] * 50}},
        },
    }


def test_the_folder_has_the_facts_the_page_and_the_log_around_it(run_folder: RunFolder, death: dict[str, Any]) -> None:
    home = folder.write(run_folder, death)
    assert home.name == "001-encoder_cache_miss"
    assert json.loads((home / "incident.json").read_text()) == death
    excerpt = (home / "server.log.excerpt").read_text()
    assert excerpt.startswith("# server.log, lines 1 to 120\n")
    assert "AssertionError: Encoder cache miss for 9f86d081884c7d65." in excerpt
    assert {p.name for p in home.iterdir()} == folder.FILES - {"requests.jsonl"}, "no bodies were handed in"


def test_the_page_is_ready_to_paste(run_folder: RunFolder, death: dict[str, Any]) -> None:
    page = (folder.write(run_folder, death) / "incident.md").read_text()
    for part in (
        "engine death, `encoder_cache_miss`",
        "30.0 s after the load began",
        "400 ms later",
        "76 requests lost",
        "https://github.com/vllm-project/vllm/issues/38551, fixed in 0.27.1",
        "(EngineCore pid=7) AssertionError",
        "60 x `images`, prompts of 400 to 459 tokens, 120 images",
        "`reset_mm_cache`, the last one 300 ms before the failure; it may",
        "cause `mm_cache_desync`",
        "<summary>60 requests</summary>",
        "loadchaos run mtp_mm --seed 7",
        "- upgrade",
        "- no MTP",
        "--model 'a b'",
    ):
        assert part in page, part


def test_the_page_has_what_the_server_and_its_gpus_measured(run_folder: RunFolder, death: dict[str, Any]) -> None:
    engine = {"whose": "engine 0", "requests_running": 80.0, "requests_waiting": 3.0, "kv_usage_ratio": 0.42}
    death["figures"] = [
        {"at_s": 24.0, **engine, "generation_tokens_total": 1000.0},
        {"at_s": 24.1, "whose": "gpu0 (NVIDIA H200) of here", "gpu_memory_used_bytes": 120 * 2**30,
         "gpu_memory_free_bytes": 20 * 2**30, "gpu_utilisation_ratio": 0.9, "gpu_temperature_c": 71.0},
        {"at_s": 29.0, **engine, "generation_tokens_total": 2000.0},
    ]  # fmt: skip
    page = (folder.write(run_folder, death) / "incident.md").read_text()
    assert "| +24.000 s | engine 0 | 80 | 3 | 42 % |  |  |" in page
    assert "| +29.000 s | engine 0 | 80 | 3 | 42 % | 200 |  |" in page
    assert "- gpu0 (NVIDIA H200) of here: 120.0 of 140.0 GiB in use, 90 % busy, 71 C" in page
    assert "GPU and driver: not reported by this server" in page


def test_the_page_says_in_a_sentence_what_happened_and_what_it_runs_on(
    run_folder: RunFolder, death: dict[str, Any]
) -> None:
    death["exit"] = {"reason": "exited with code 0"}
    death["sent_before"] = {"images": {"begun": 280, "ok": 200}}
    death["environment"] |= {"flags": "{'port': 1}", "settings": {"max_num_seqs": 64}, "system": {"GPU": "GPU 0: H200"}}
    page = (folder.write(run_folder, death) / "incident.md").read_text()
    for part in (
        "vllm 0.18.0 died with 60 requests in flight 30.0 s after the load began: `Encoder cache miss`.",
        "Its process exited with code 0. It did not come back.",
        "- server: vllm 0.18.0, server launched by loadchaos",
        "flags (from its log): `{'port': 1}`",
        "max_num_seqs 64",
        "- GPU: `GPU 0: H200`",
        "Sent before the failure: 280 x `images` (200 ok). In flight at that time: 60 requests.",
        "- none of the remedies below",
    ):
        assert part in page, part


def test_the_log_is_shown_from_the_head_of_its_traceback_to_where_it_repeats_itself() -> None:
    trace = ["Traceback (most recent call last):", *(f'  File "m.py", line {n}, in f' for n in range(30))]
    before = ["noise"] * 50 + ["EngineCore encountered a fatal error.", *trace]
    after = ["told once more", *trace, "FooError: bar"]
    shown = decisive(before, "FooError: bar", after, traceback=True)
    assert shown[:3] == ["noise", "EngineCore encountered a fatal error.", trace[0]]
    assert shown[-2:] == ["FooError: bar", "told once more"]
    assert '  File "m.py", line 0, in f' in shown
    assert "... 27 more lines like these" in shown
    assert len(decisive(before, "x", [], traceback=False)) < 20


def test_what_the_dying_engine_dumped_stands_by_itself() -> None:
    dump = "ERROR [dump_input.py:79] Dumping scheduler output for model execution: SchedulerOutput(...)"
    assert batch(["a", dump]) == [dump]
    assert decisive([dump, "b"], "c", [], traceback=False) == ["b", "c"]


def test_an_earlier_incident_of_the_same_name_is_told(run_folder: RunFolder, death: dict[str, Any]) -> None:
    folder.write(run_folder, death)
    page = (folder.write(run_folder, {**death, "n": 2}) / "incident.md").read_text()
    assert "it happened before in this run, after a restart of the same server (001-encoder_cache_miss)" in page


def test_the_command_to_repeat_has_none_of_what_only_shows_things() -> None:
    argv = ["loadchaos", "run", "p", "--no-live", "--exporter-port", "0", "--out=x", "--set", "a=1"]
    assert replay_command({"argv": argv, "seed": 1}) == "loadchaos run p --set a=1 --seed 1"


def test_no_text_of_the_server_leaves_its_fence_or_becomes_markup(run_folder: RunFolder, death: dict[str, Any]) -> None:
    page = (folder.write(run_folder, death) / "incident.md").read_text()
    assert "\x1b" not in page
    outside, fence = [], ""
    for line in page.splitlines():
        mark = line[: len(line) - len(line.lstrip("`"))]
        if len(mark) >= 3 and (not fence or line == fence):
            fence = "" if fence else mark
        elif not fence:
            outside.append("".join(line.split("`")[::2]))  # what stands outside of code spans
    assert not fence
    prose = "\n".join(outside)
    assert "<script" not in prose.replace("\\<", "")
    assert "<b>" not in prose


def test_writing_it_twice_is_writing_it_once(run_folder: RunFolder, death: dict[str, Any]) -> None:
    first = folder.write(run_folder, death)
    before = {p.name: p.read_bytes() for p in first.iterdir()}
    second = folder.write(run_folder, death)
    assert {p.name: p.read_bytes() for p in second.iterdir()} == before
    assert len(list(run_folder.incidents.iterdir())) == 1


def test_an_incident_that_gets_its_name_later_moves_there(run_folder: RunFolder, death: dict[str, Any]) -> None:
    folder.write(run_folder, {**death, "id": "engine_death_unexplained"})
    home = folder.write(run_folder, death)
    assert [p.name for p in run_folder.incidents.iterdir()] == [home.name]


def test_what_the_final_judgement_does_not_know_goes_unless_others_wrote_there(
    run_folder: RunFolder, death: dict[str, Any]
) -> None:
    kept = folder.write(run_folder, death)
    folder.write(run_folder, {**death, "n": 2})
    mine = folder.write(run_folder, {**death, "n": 3})
    (mine / "my-notes.txt").write_text("do not delete")
    folder.remove_others(run_folder, [kept])
    assert sorted(p.name[:3] for p in run_folder.incidents.iterdir()) == ["001", "003"]


def test_an_id_with_a_path_in_it_stays_inside_the_run_folder(run_folder: RunFolder, death: dict[str, Any]) -> None:
    home = folder.write(run_folder, {**death, "id": "../../etc/passwd", "evidence": {"source": "../../x", "line": 1}})
    assert home.parent == run_folder.incidents


def test_an_incident_with_hardly_any_facts_still_makes_a_page(run_folder: RunFolder) -> None:
    home = folder.write(run_folder, {"n": 9, "id": "alive_but_hung"})
    assert "alive\\_but\\_hung" in (home / "incident.md").read_text()


def test_the_replay_keeps_what_was_asked_for() -> None:
    assert replay_command({"argv": ["x/loadchaos", "run", "p", "--seed", "3"], "seed": 3}) == "loadchaos run p --seed 3"
    assert replay_command({}) == "loadchaos run PROFILE"
