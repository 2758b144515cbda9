"""`loadchaos classify` and `loadchaos signatures` as people use them: files, stdin, gzip, exit codes."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadchaos.cli.main import main

CRASHES = Path(__file__).parents[1] / "crashes"
DEATH = (CRASHES / "vllm" / "encoder-cache-miss-in-the-drafter.log").read_bytes().partition(b"\n\n")[2]
QUIET = (CRASHES / "benign" / "vllm-start-up.log").read_bytes().partition(b"\n\n")[2]
KEYS = {"id", "severity", "title", "role", "evidence", "process", "at", "frames", "known", "remedy", "alt"}


def call(*args: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args], input=stdin)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_bytes(DEATH)
    return path


def test_a_death_is_told_with_line_frame_issue_and_what_to_send(log: Path) -> None:
    result = call("classify", log)
    assert result.exit_code == 1
    assert "1 engine death" in result.output
    for part in ("encoder_cache_miss", "propose_draft_token_ids", "issues/38551", "fixed in 0.27.1", "send", "line "):
        assert part in result.output


def test_a_healthy_log_gives_nothing_and_exit_0(tmp_path: Path) -> None:
    path = tmp_path / "quiet.log"
    path.write_bytes(QUIET)
    result = call("classify", path)
    assert (result.exit_code, "nothing found" in result.output) == (0, True)
    assert json.loads(call("classify", "--json", path).output) == []


def test_json_has_the_keys_that_scripts_rely_on(log: Path) -> None:
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
def test_files_are_read_as_people_have_them(tmp_path: Path, how: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(encoded(DEATH, how))
    [failure] = json.loads(call("classify", path, "--json").output)
    assert failure["id"] == "encoder_cache_miss"


def test_stdin_is_read_with_a_dash_or_without_any_file() -> None:
    for args in (["classify", "--json"], ["classify", "-", "--json"]):
        result = call(*args, stdin=DEATH)
        assert json.loads(result.output)[0]["id"] == "encoder_cache_miss", args
    assert call("classify", stdin=b"").exit_code == 0


def test_ctrl_c_ends_a_log_that_still_grows_and_what_came_so_far_is_told() -> None:
    argv = [sys.executable, "-m", "loadchaos", "classify", "--json"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(DEATH + b"INFO it goes on\n" * 100_000)  # far more than a pipe holds: it reads by now
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        [failure] = json.loads(process.stdout.read())
        assert (failure["id"], process.wait(30)) == ("encoder_cache_miss", 1)


def test_one_error_body_is_read_as_such() -> None:
    body = b'{"error": {"message": "This model\'s maximum context length is 2048 tokens.", "code": 400}}'
    assert json.loads(call("classify", "--json", stdin=body).output)[0]["id"] == "over_context_length"


@pytest.mark.parametrize(
    ("body", "id_"),
    [
        (b'{"error":{"message":"banana in slot 3","param":null,"code":400}}', "unknown_error_answer"),
        (b'{"object":"error","message":"strange","code":500}', "unknown_error_answer"),
        (b'data: {"error": {"message": "slot 3 is gone", "code": 400}}\n\ndata: [DONE]\n', "unknown_error_answer"),
        (b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}', "engine_dead_error"),
        (b"Internal Server Error", "unknown_error_answer"),
    ],
)  # fmt: skip
def test_an_error_answer_whose_text_is_no_known_refusal_is_flagged(body: bytes, id_: str) -> None:
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
def test_a_known_refusal_and_an_answer_are_nothing(body: bytes) -> None:
    assert (call("classify", "--json", stdin=body).exit_code, call("classify", stdin=body).exit_code) == (0, 0)


def test_what_cannot_be_read_is_exit_2_and_the_other_files_are_still_told(log: Path, tmp_path: Path) -> None:
    binary = tmp_path / "core"
    binary.write_bytes(b"\x7fELF\0\0\0\0")
    for bad in (tmp_path / "none.log", tmp_path, binary):
        result = call("classify", bad, log)
        assert result.exit_code == 2, bad
        assert "encoder_cache_miss" in result.output
        assert str(bad) in result.output


@pytest.mark.parametrize("hole", [b"\0" * 10_000, b"x\xff\xfe\0y\n"])
def test_a_log_with_a_hole_where_it_was_truncated_is_a_log(tmp_path: Path, hole: bytes) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(hole + DEATH)
    assert [f["id"] for f in json.loads(call("classify", path, "--json").output)] == ["encoder_cache_miss"]


def test_a_gzip_that_breaks_off_is_told_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(DEATH * 20)[:-200])
    result = call("classify", path)
    assert result.exit_code == 2
    assert "cannot be read" in result.output


def test_several_files_in_json_say_which_is_which(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.log"
    other.write_bytes(DEATH)
    assert [f["file"] for f in json.loads(call("classify", log, other, "--json").output)] == [str(log), str(other)]


def test_the_answer_holds_no_secret_of_the_log() -> None:
    line = b"RuntimeError: CUDA error: an illegal memory access was encountered at https://u:hunter2hunter2@h/x\n"
    result = call("classify", "--json", stdin=b"(EngineCore pid=1) ERROR 11-20 15:53:40 [core.py:1] " + line * 2)
    assert "hunter2hunter2" not in result.output
    assert "cuda_illegal_memory_access" in result.output


def test_a_line_without_an_end_costs_no_memory_and_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_bytes(b"x" * 3_000_000 + b"\n" + DEATH)
    [failure] = json.loads(call("classify", path, "--json").output)
    assert failure["evidence"]["line"] > 1


def test_signatures_are_listed_by_speaker_and_explained_by_id() -> None:
    listed = call("signatures")
    assert listed.exit_code == 0
    assert "vllm:" in listed.output
    assert len(listed.output.splitlines()) > 200
    told = call("signatures", "encoder_cache_miss").output
    for part in ("pattern", "example", "remedy", "issues/38551"):
        assert part in told
    assert json.loads(call("signatures", "encoder_cache_miss", "--json").output)[0]["id"] == "encoder_cache_miss"


def test_a_signature_nobody_knows_is_answered_with_the_nearest() -> None:
    result = call("signatures", "encoder_cache_mis")
    assert (result.exit_code, "did you mean encoder_cache_miss?" in result.output) == (2, True)
