import bz2
import gzip
import json
import lzma
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadchaos.cli.main import main
from tests.crash_logs import CRASHES

DEATH = (CRASHES / "vllm" / "encoder-cache-miss-in-the-drafter.log").read_bytes().partition(b"\n\n")[2]
QUIET = (CRASHES / "benign" / "vllm-start-up.log").read_bytes().partition(b"\n\n")[2]
KEYS = {
    "id", "severity", "title", "role", "evidence", "process", "at", "frames", "known", "remedy", "alt", "candidates",
}  # fmt: skip


def call(*args: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args], input=stdin)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_bytes(DEATH)
    return path


def test_classify_death_has_line_frame_issue_and_remedy(log: Path) -> None:
    result = call("classify", log)
    assert result.exit_code == 1
    assert "1 engine death" in result.output
    for part in ("encoder_cache_miss", "propose_draft_token_ids", "issues/38551", "fixed in 0.27.1", "attach", "line "):
        assert part in result.output


def test_classify_healthy_log_exits_0(tmp_path: Path) -> None:
    path = tmp_path / "quiet.log"
    path.write_bytes(QUIET)
    result = call("classify", path)
    assert (result.exit_code, "no failure found" in result.output) == (0, True)
    assert json.loads(call("classify", "--json", path).output) == []


def test_classify_json_keys_are_stable(log: Path) -> None:
    result = call("classify", log, "--json")
    [failure] = json.loads(result.output)
    assert result.exit_code == 1
    assert set(failure) == KEYS
    assert set(failure["evidence"]) == {"line", "text"}
    assert failure["at"].count(":") == 2


def encoded(data: bytes, how: str) -> bytes:
    if how in ("gzip", "bzip2", "xz"):
        return {"gzip": gzip.compress(data), "bzip2": bz2.compress(data), "xz": lzma.compress(data)}[how]
    if how == "syslog":
        return b"".join(b"<30>Nov 20 15:53:40 gpu7 vllm[300]: " + line for line in data.splitlines(keepends=True))
    if how == "frozen":
        return b"<frozen runpy>:128: RuntimeWarning: 'vllm.x' found in sys.modules\n" + data
    if how == "utf-16":
        return data.decode().encode("utf-16")
    return data.replace(b"\n", b"\r\n") if how == "windows" else b"\xef\xbb\xbf" + data


@pytest.mark.parametrize("how", ["gzip", "bzip2", "xz", "utf-16", "windows", "bom", "syslog", "frozen"])
def test_classify_reads_compressed_and_encoded_files(tmp_path: Path, how: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(encoded(DEATH, how))
    [failure] = json.loads(call("classify", path, "--json").output)
    assert failure["id"] == "encoder_cache_miss"


def test_classify_reads_stdin() -> None:
    for args in (["classify", "--json"], ["classify", "-", "--json"]):
        result = call(*args, stdin=DEATH)
        assert json.loads(result.output)[0]["id"] == "encoder_cache_miss", args
    assert call("classify", stdin=b"").exit_code == 0


def test_classify_ctrl_c_ends_a_growing_log() -> None:
    argv = [sys.executable, "-m", "loadchaos", "classify", "--json"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(DEATH + b"INFO it goes on\n" * 100_000)  # far more than a pipe holds: it reads by now
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        [failure] = json.loads(process.stdout.read())
        assert (failure["id"], process.wait(30)) == ("encoder_cache_miss", 1)


@pytest.mark.parametrize(
    ("body", "id_"),
    [
        (b'{"error":{"message":"banana in slot 3","param":null,"code":400}}', "unknown_error_answer"),
        (b'{"object":"error","message":"strange","code":500}', "unknown_error_answer"),
        (b'data: {"error": {"message": "slot 3 is gone", "code": 400}}\n\ndata: [DONE]\n', "unknown_error_answer"),
        (b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}', "engine_dead_error"),
        (b"Internal Server Error", "unknown_error_answer"),
        (b'{"error": {"message": "This model\'s maximum context length is 2048 tokens."}}', "over_context_length"),
    ],
)  # fmt: skip
def test_classify_names_one_error_body(body: bytes, id_: str) -> None:
    result = call("classify", "--json", stdin=body)
    assert (result.exit_code, [f["id"] for f in json.loads(result.output)]) == (1, [id_])


@pytest.mark.parametrize(
    "body",
    [
        b'{"detail":"Not Found"}',
        b'{"error":{"message":"max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)","code":400}}',
        b'{"id":"chatcmpl-1","choices":[{"message":{"content":"an error: banana"}}]}',
        b'data: {"choices": [{"delta": {"content": "error"}}]}\n\ndata: [DONE]\n',
    ],
)
def test_classify_ignores_known_refusals_and_answers(body: bytes) -> None:
    assert (call("classify", "--json", stdin=body).exit_code, call("classify", stdin=body).exit_code) == (0, 0)


def test_classify_unreadable_file_exits_2_after_the_others(log: Path, tmp_path: Path) -> None:
    binary = tmp_path / "core"
    binary.write_bytes(b"\x7fELF\0\0\0\0")
    for bad in (tmp_path / "none.log", tmp_path, binary):
        result = call("classify", bad, log)
        assert result.exit_code == 2, bad
        assert "encoder_cache_miss" in result.output
        assert str(bad) in result.output


def test_classify_shows_the_error_of_a_log_of_one_line() -> None:
    line = b'time=2026-06-02T10:11:00Z level=ERROR msg="no request could be processed" error="odd"\n'
    [failure] = json.loads(call("classify", "--json", stdin=line).output)
    assert (failure["id"], failure["severity"]) == ("unexplained_error", "request")
    assert call("classify", stdin=line.replace(b"ERROR", b"INFO")).exit_code == 0


@pytest.mark.parametrize(("magic", "said"), [(b"PK\3\4", "a zip archive"), (b"\x28\xb5\x2f\xfd", "packed by zstd")])
def test_classify_names_a_packing_that_it_does_not_read(tmp_path: Path, magic: bytes, said: str) -> None:
    (tmp_path / "x").write_bytes(magic + bytes(100))
    result = call("classify", tmp_path / "x")
    assert (result.exit_code, said in result.output) == (2, True)


def test_classify_says_that_an_empty_log_has_nothing_to_classify(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    result = call("classify", tmp_path / "x")
    assert (result.exit_code, "nothing was classified" in result.output) == (0, True)


def test_classify_needs_no_memory_for_a_hole_without_line_ends(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(DEATH)
    call("classify", tmp_path / "x")  # the signatures stay in memory
    with (tmp_path / "x").open("ab") as f:
        f.truncate(64 << 20)
    tracemalloc.start()
    try:
        assert call("classify", tmp_path / "x").exit_code == 1
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("hole", [b"\0" * 10_000, b"x\xff\xfe\0y\n"])
def test_classify_reads_a_truncated_log_with_nuls(tmp_path: Path, hole: bytes) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(hole + DEATH)
    assert [f["id"] for f in json.loads(call("classify", path, "--json").output)] == ["encoder_cache_miss"]


def test_classify_reads_the_start_of_a_broken_gzip(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(DEATH * 20)[:-200])
    result = call("classify", path)
    assert result.exit_code == 2
    assert "cannot be read" in result.output


def test_classify_json_names_the_file(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.log"
    other.write_bytes(DEATH)
    assert [f["file"] for f in json.loads(call("classify", log, other, "--json").output)] == [str(log), str(other)]


def test_classify_redacts_secrets() -> None:
    line = b"RuntimeError: CUDA error: an illegal memory access was encountered at https://u:hunter2hunter2@h/x\n"
    result = call("classify", "--json", stdin=b"(EngineCore pid=1) ERROR 11-20 15:53:40 [core.py:1] " + line * 2)
    assert "hunter2hunter2" not in result.output
    assert "cuda_illegal_memory_access" in result.output


def test_classify_cuts_very_long_lines(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_bytes(b"x" * 3_000_000 + b"\n" + DEATH)
    [failure] = json.loads(call("classify", path, "--json").output)
    assert failure["evidence"]["line"] > 1


def test_signatures_lists_all_and_explains_one() -> None:
    listed = call("signatures")
    assert listed.exit_code == 0
    assert "vllm:" in listed.output
    assert len(listed.output.splitlines()) > 200
    text = call("signatures", "encoder_cache_miss").output
    for part in ("pattern", "example", "remedy", "issues/38551"):
        assert part in text
    assert json.loads(call("signatures", "encoder_cache_miss", "--json").output)[0]["id"] == "encoder_cache_miss"


def test_signatures_suggests_the_nearest_id() -> None:
    result = call("signatures", "encoder_cache_mis")
    assert (result.exit_code, "did you mean encoder_cache_miss?" in result.output) == (2, True)
