import json
from pathlib import Path
from typing import Any

import pytest

from loadchaos.analysis.incidents.record import IncidentRecord, RunEnvironment
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.typed_json import from_json
from loadchaos.report.incident import folder
from loadchaos.report.incident.decisive_lines import batch, decisive
from loadchaos.report.incident.page import replay_command


def write(run_folder: RunFolder, incident: dict[str, Any]) -> Path:
    return folder.write(run_folder, from_json(IncidentRecord, incident))


@pytest.fixture
def death(hostile: str) -> dict[str, Any]:
    """Incident as in incident.json."""
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


def test_folder_has_facts_page_and_log_excerpt(run_folder: RunFolder, death: dict[str, Any]) -> None:
    home = write(run_folder, death)
    assert home.name == "001-encoder_cache_miss"
    assert from_json(IncidentRecord, json.loads((home / "incident.json").read_text())) == from_json(
        IncidentRecord, death
    )
    excerpt = (home / "server.log.excerpt").read_text()
    assert excerpt.startswith("# server.log, lines 1 to 120\n")
    assert "AssertionError: Encoder cache miss for 9f86d081884c7d65." in excerpt
    assert {p.name for p in home.iterdir()} == folder.FILES - {"requests.jsonl"}, "no bodies were handed in"


def test_page_has_all_sections(run_folder: RunFolder, death: dict[str, Any]) -> None:
    page = (write(run_folder, death) / "incident.md").read_text()
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


def test_page_has_server_and_gpu_metrics(run_folder: RunFolder, death: dict[str, Any]) -> None:
    engine = {"whose": "engine 0", "requests_running": 80.0, "requests_waiting": 3.0, "kv_usage_ratio": 0.42}
    death["figures"] = [
        {"at_s": 24.0, **engine, "generation_tokens_total": 1000.0},
        {"at_s": 24.1, "whose": "gpu0 (NVIDIA H200) of here", "gpu_memory_used_bytes": 120 * 2**30,
         "gpu_memory_free_bytes": 20 * 2**30, "gpu_utilisation_ratio": 0.9, "gpu_temperature_c": 71.0},
        {"at_s": 29.0, **engine, "generation_tokens_total": 2000.0},
    ]  # fmt: skip
    page = (write(run_folder, death) / "incident.md").read_text()
    assert "| +24.000 s | engine 0 | 80 | 3 | 42 % |  |  |" in page
    assert "| +29.000 s | engine 0 | 80 | 3 | 42 % | 200 |  |" in page
    assert "- gpu0 (NVIDIA H200) of here: 120.0 of 140.0 GiB in use, 90 % busy, 71 C" in page
    assert "GPU and driver: not reported by this server" in page


def test_page_describes_the_failure_and_the_environment(run_folder: RunFolder, death: dict[str, Any]) -> None:
    death["exit"] = {"reason": "exited with code 0"}
    death["sent_before"] = {"images": {"begun": 280, "ok": 200}}
    death["environment"] |= {"flags": "{'port': 1}", "settings": {"max_num_seqs": 64}, "system": {"GPU": "GPU 0: H200"}}
    page = (write(run_folder, death) / "incident.md").read_text()
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


def test_log_excerpt_is_the_traceback_without_repeats() -> None:
    trace = ["Traceback (most recent call last):", *(f'  File "m.py", line {n}, in f' for n in range(30))]
    before = ["noise"] * 50 + ["EngineCore encountered a fatal error.", *trace]
    after = ["told once more", *trace, "FooError: bar"]
    shown = decisive(before, "FooError: bar", after, traceback=True)
    assert shown[:3] == ["noise", "EngineCore encountered a fatal error.", trace[0]]
    assert shown[-2:] == ["FooError: bar", "told once more"]
    assert '  File "m.py", line 0, in f' in shown
    assert "... 27 more lines like these" in shown
    assert len(decisive(before, "x", [], traceback=False)) < 20


def test_batch_dump_is_separated_from_the_log() -> None:
    dump = "ERROR [dump_input.py:79] Dumping scheduler output for model execution: SchedulerOutput(...)"
    assert batch(["a", dump]) == [dump]
    assert decisive([dump, "b"], "c", [], traceback=False) == ["b", "c"]


def test_page_names_earlier_incidents_of_the_same_id(run_folder: RunFolder, death: dict[str, Any]) -> None:
    write(run_folder, death)
    page = (write(run_folder, {**death, "n": 2}) / "incident.md").read_text()
    assert "it happened before in this run, after a restart of the same server (001-encoder_cache_miss)" in page


def test_replay_command_drops_display_options() -> None:
    argv = ["loadchaos", "run", "p", "--no-live", "--exporter-port", "0", "--out=x", "--set", "a=1"]
    assert replay_command(RunEnvironment(argv=tuple(argv), seed=1)) == "loadchaos run p --set a=1 --seed 1"


def test_page_fences_server_text(run_folder: RunFolder, death: dict[str, Any]) -> None:
    page = (write(run_folder, death) / "incident.md").read_text()
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


def test_folder_written_twice_is_equal(run_folder: RunFolder, death: dict[str, Any]) -> None:
    first = write(run_folder, death)
    before = {p.name: p.read_bytes() for p in first.iterdir()}
    second = write(run_folder, death)
    assert {p.name: p.read_bytes() for p in second.iterdir()} == before
    assert len(list(run_folder.incidents.iterdir())) == 1


def test_folder_moves_when_its_id_changes(run_folder: RunFolder, death: dict[str, Any]) -> None:
    write(run_folder, {**death, "id": "engine_death_unexplained"})
    home = write(run_folder, death)
    assert [p.name for p in run_folder.incidents.iterdir()] == [home.name]


def test_folder_not_in_the_verdict_is_removed_unless_it_has_foreign_files(
    run_folder: RunFolder, death: dict[str, Any]
) -> None:
    kept = write(run_folder, death)
    write(run_folder, {**death, "n": 2})
    mine = write(run_folder, {**death, "n": 3})
    (mine / "my-notes.txt").write_text("do not delete")
    folder.remove_others(run_folder, [kept])
    assert sorted(p.name[:3] for p in run_folder.incidents.iterdir()) == ["001", "003"]


def test_folder_of_an_id_with_a_path_stays_inside_the_run(run_folder: RunFolder, death: dict[str, Any]) -> None:
    home = write(run_folder, {**death, "id": "../../etc/passwd", "evidence": {"source": "../../x", "line": 1}})
    assert home.parent == run_folder.incidents


def test_page_of_an_incident_with_few_facts(run_folder: RunFolder) -> None:
    home = write(run_folder, {"n": 9, "id": "alive_but_hung"})
    assert "alive\\_but\\_hung" in (home / "incident.md").read_text()


def test_replay_command_keeps_the_options_of_a_watched_command() -> None:
    argv = ("loadchaos", "watch", "--no-live", "--", "k6", "run", "--no-live", "--quiet", "--out", "x")
    assert replay_command(RunEnvironment(argv=argv)) == "loadchaos watch -- k6 run --no-live --quiet --out x"


def test_replay_command_keeps_other_options() -> None:
    assert replay_command(RunEnvironment(argv=("x/loadchaos", "run", "p", "--seed", "3"), seed=3)) == (
        "loadchaos run p --seed 3"
    )
    assert replay_command(RunEnvironment()) == "loadchaos run PROFILE"


def test_replay_command_for_other_prompts_has_another_seed() -> None:
    for argv in (
        ("x/loadchaos", "run", "p"),
        ("x/loadchaos", "run", "--seed", "3", "p"),
        ("x", "run", "--seed=3", "p"),
    ):
        assert replay_command(RunEnvironment(argv=argv, seed=3), other_prompts=True) == "loadchaos run p --seed 4"
