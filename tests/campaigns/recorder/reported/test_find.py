import os
import shutil
import time
from pathlib import Path

import pytest

from loadchaos.analysis.figures.reported import WireFigures, compare_reported
from loadchaos.campaigns.recorder.reported import find
from loadchaos.campaigns.recorder.reported.find import find_result_file

DATA = Path(__file__).parent / "data"
SINCE_NS = 1_800_000_000 * 10**9


def put(name: str, path: Path, after_s: float = 1.0) -> Path:
    """Put a result file of `after_s` seconds after the start of the command."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(DATA / name, path)
    at_ns = SINCE_NS + int(after_s * 1e9)
    os.utime(path, ns=(at_ns, at_ns))
    return path


def test_file_below_the_working_folder_is_found(tmp_path: Path) -> None:
    result = put("aiperf-0.13.0.json", tmp_path / "artifacts" / "sim" / "profile_export_aiperf.json")
    put("vllm-bench-0.32.0.json", tmp_path / "old.json", after_s=-1)
    (tmp_path / "notes.json").write_text("{}")
    found = find_result_file(tmp_path, [], SINCE_NS)
    assert found is not None
    assert (found.file, found.tool, found.more_files) == (str(result), "AIPerf", 0)


def test_file_of_before_the_start_is_none_of_the_command(tmp_path: Path) -> None:
    put("vllm-bench-0.32.0.json", tmp_path / "old.json", after_s=-1)
    assert find_result_file(tmp_path, ["--result-filename", "old.json"], SINCE_NS) is None


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["--result-filename", "{out}/r.txt"], "r.txt"),
        (["--result-dir={out}"], "r.json"),
        (["--output", "kind=json,path={out}/r.out"], "r.out"),
        (["--artifact-dir", "{out}"], "sim/profile_export_aiperf.json"),
        (["--csv", "{out}/load"], "load_stats.csv"),
        (["sh", "-c", "tool --out {out}/r.json"], "r.json"),
    ],
)
def test_path_in_the_words_of_the_command_is_looked_at(words: list[str], place: str, tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    name = "locust-2.47.0_stats.csv" if place.endswith(".csv") else "aiperf-0.13.0.json"
    result = put(name, out / place)
    found = find_result_file(work, [word.replace("{out}", str(out)) for word in words], SINCE_NS)
    assert found is not None
    assert found.file == str(result)


def test_file_with_the_most_requests_of_the_newest_tool_counts(tmp_path: Path) -> None:
    """Locust's CSV file is closed after its JSON file and lacks the newest requests."""
    whole = put("locust-2.47.0.json", tmp_path / "out.json")
    put("locust-2.47.0_stats.csv", tmp_path / "out_stats.csv", after_s=2)
    put("aiperf-0.13.0.json", tmp_path / "earlier.json", after_s=0.5)
    found = find_result_file(tmp_path, [], SINCE_NS)
    assert found is not None
    assert (found.file, found.more_files) == (str(whole), 2)


def test_newest_of_equal_results_counts(tmp_path: Path) -> None:
    put("vllm-bench-0.32.0.json", tmp_path / "1.json")
    newest = put("vllm-bench-0.32.0.json", tmp_path / "2.json", after_s=2)
    found = find_result_file(tmp_path, [], SINCE_NS)
    assert found is not None
    assert (found.file, found.more_files) == (str(newest), 1)


def test_named_file_that_no_reader_understands_is_told(tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    for name, text in (("before.json", "{}"), ("cut.json", '{"completed": 9, "dura')):
        (tmp_path / name).write_text(text)
    os.utime(before, ns=(SINCE_NS - 1, SINCE_NS - 1))
    assert find_result_file(tmp_path, ["--prompts", "before.json"], SINCE_NS) is None, "an input"
    os.utime(tmp_path / "cut.json", ns=(SINCE_NS + 1, SINCE_NS + 1))
    found = find_result_file(tmp_path, ["--out", "cut.json"], SINCE_NS)
    assert found is not None
    assert (found.tool, found.file) == ("", str(tmp_path / "cut.json"))
    assert "is not read" in compare_reported(found, WireFigures(outcomes={"ok": 3})).sentence
    assert find_result_file(tmp_path, [], SINCE_NS) is None, "any file of a test suite"


def test_search_ends_in_a_large_tree_and_in_a_circle_of_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "MOST_ENTRIES", 20)
    (tmp_path / "circle").symlink_to(tmp_path)
    near = put("vllm-bench-0.32.0.json", tmp_path / "near.json")
    for number in range(50):
        put("vllm-bench-0.32.0.json", tmp_path / "deep" / f"{number}" / "far.json", after_s=2)
    started_s = time.monotonic()
    found = find_result_file(tmp_path, ["/", "."], SINCE_NS)
    assert time.monotonic() - started_s < 5
    assert found is not None
    assert found.file == str(near)


def test_run_folders_of_the_watch_are_left_out(tmp_path: Path) -> None:
    put("vllm-bench-0.32.0.json", tmp_path / "runs" / "watch-1" / "x.json")
    assert find_result_file(tmp_path, [], SINCE_NS, leave_out=tmp_path / "runs") is None
    assert find_result_file(tmp_path, [], SINCE_NS, leave_out=tmp_path / "gone") is not None


def test_words_that_are_no_paths_are_passed_over(tmp_path: Path) -> None:
    words = ["", "=", ",", "\0", "x" * 5000, "--metric-percentiles", "50,99", "http://127.0.0.1:1/v1", "{{}}"]
    assert find_result_file(tmp_path, words, SINCE_NS) is None


def test_file_whose_name_is_no_utf_8_is_named(tmp_path: Path) -> None:
    """Its name stands in a row, which is UTF-8."""
    put("aiperf-0.13.0.json", tmp_path / os.fsdecode(b"r\xff.json"))
    found = find_result_file(tmp_path, [], SINCE_NS)
    assert found is not None
    assert found.file.encode().endswith("r\ufffd.json".encode())
