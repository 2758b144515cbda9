import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadchaos.campaigns.recorder import writer as writers
from loadchaos.campaigns.recorder.frames import FrameKind
from loadchaos.campaigns.recorder.from_recording import recording_of, trace_of_recording
from loadchaos.campaigns.recorder.ring import segments_of
from loadchaos.campaigns.recorder.writer import RecordingWriter
from loadchaos.core.errors import OptionError
from loadchaos.profile import request_trace
from tests.campaigns.recorder.conftest import (
    DONE,
    WAIT_S,
    StartRecording,
    begins,
    event,
    plain,
    post,
    read_all,
    read_until,
    serve_answers,
    setup_of,
)
from tests.raw_sockets import LAST_CHUNK, SSE_HEAD, ConnectionServer, Handler, read_request
from tests.waiting import until

KEY = b"sk-live-4f9Qz7Lm2Xw8Vb3Nc6Rt"
PROMPT = "Zebulon guards the vault of Quixmoor while Wilhelmina dreams"


def chat(prompt: str, **more: Any) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": prompt}], **more}, separators=(",", ":")
    ).encode()


def files_of(folder: Path) -> bytes:
    return b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())


def test_recording_has_no_word_header_or_answer(recording: StartRecording) -> None:
    made = recording(serve_answers)
    made.send(chat(PROMPT, stream=True), b"Authorization: Bearer " + KEY, b"X-Tenant: Humperdinck")
    assert [r["outcome"] for r in made.rows("end")] == ["ok"]
    assert made.rows("body")[0]["shape"]["messages"][0]["content"]["$text"][0] == len(PROMPT)
    text = files_of(made.folder).decode()
    words = [*PROMPT.split(), KEY.decode(), "Bearer", "Humperdinck", "Tenant", "Host", '"two"']
    assert [w for w in words if w in text and w not in ("of", "the", "while")] == []
    assert made.setup.key not in text


def test_recording_has_times_tokens_and_usage(recording: StartRecording) -> None:
    made = recording(serve_answers)
    made.send(chat("one", stream=True))
    made.send(chat("two"))
    streamed, whole = made.rows("end", 2)
    begins = made.rows("begin", 2)
    assert (streamed["finish"], streamed["status"]) == ("stop", 200)
    assert begins[0]["at_ns"] <= streamed["first_ns"] <= streamed["at_ns"]
    assert whole["usage"] == {"prompt_tokens": 7, "completion_tokens": 3}


def test_bodies_are_kept_without_secrets(recording: StartRecording) -> None:
    made = recording(serve_answers, bodies=True)
    picture = "data:image/png;base64,sk-aaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    made.send(
        chat(f"{PROMPT} and my key is {KEY.decode()}", api_key="hunter2hunter2", picture=picture, db_password="Xyzzy"),
        b"Authorization: Bearer hunter2hunter2",
    )
    body = made.rows("body")[0]["body"]
    assert body["messages"][0]["content"].startswith(PROMPT)
    text = files_of(made.folder).decode()
    assert KEY.decode() not in text
    assert "hunter2hunter2" not in text
    assert "Xyzzy" not in text
    assert body["picture"] == picture


def test_killed_writer_loses_no_row_that_is_a_second_old(recording: StartRecording) -> None:
    made = recording(serve_answers)
    for n in range(5):
        made.send(chat(f"{n}"))
    made.rows("end", 1)  # its writer has started
    time.sleep(1.0)
    pid = made.channel.writer_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert made.send(chat("during")).startswith(b"HTTP/1.1 200")
    lines = files_of(made.folder).split(b"\n")
    ends = [r for line in lines if line for r in [json.loads(line)] if r["row"] == "end"]
    assert len(ends) >= 5


def test_killed_writer_is_started_again_with_the_same_hashes(
    recording: StartRecording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadchaos.campaigns.recorder.channel._RESTART_S", 0.01)
    made = recording(serve_answers)
    made.send(chat("same"))
    made.rows("end", 1)
    pid = made.channel.writer_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert made.notice("writer_ended")["code"] == -9
    until(lambda: made.channel.writer_pid != pid, "another writer")
    for _ in range(50):
        made.send(chat("same"))
        if len(made.rows("body", 0)) > 1:
            break
        time.sleep(0.05)
    bodies = made.rows("body", 2)
    assert bodies[0]["shape"] == bodies[1]["shape"]


def test_requests_of_an_open_stream_are_on_disk_before_their_end(recording: StartRecording) -> None:
    stop = threading.Event()

    def serve(c: socket.socket) -> None:
        read_request(c)
        c.sendall(SSE_HEAD + event("one") + event("two"))
        assert stop.wait(WAIT_S)

    made = recording(serve)
    with made.proxy.connect() as client:
        client.sendall(post(chat("open", stream=True)))
        read_until(client, event("two"))
        assert list(made.rows("progress")[0]["tokens"].values()) == [2]
        assert len(made.rows("body")) == 1
        stop.set()


def test_large_body_is_passed_on_and_recorded_by_its_length(
    recording: StartRecording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadchaos.campaigns.recorder.channel.MAX_BODY_BYTES", 1 << 20)
    made = recording(serve_answers)
    body = chat("x" * (3 << 20))
    assert made.send(body).startswith(b"HTTP/1.1 200")
    row = made.rows("body")[0]
    assert row["bytes"] == len(body)
    assert "too large" in row["why"]


def test_full_disk_stops_the_recording_and_not_the_proxy(recording: StartRecording) -> None:
    made = recording(serve_answers)
    made.send(chat("before"))
    made.rows("end")
    assert made.channel.writer_pid is not None
    # Files that may not grow: what a full disk looks like without being root.
    resource.prlimit(made.channel.writer_pid, resource.RLIMIT_FSIZE, (100, 100))
    for n in range(5):
        assert made.send(chat(f"{n}")).startswith(b"HTTP/1.1 200")
    assert made.notice("stopped")["why"]
    for n in range(5):
        assert made.send(chat(f"{n}")).startswith(b"HTTP/1.1 200")


def test_recording_goes_on_when_the_disk_has_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "RETRY_S", 0.0)
    writer = RecordingWriter()
    writer.feed(FrameKind.SETUP, 0, json.dumps(setup_of(tmp_path)).encode())
    end = json.dumps({"at_ns": 1, "outcome": "ok"}).encode()
    real_write = os.write

    def full(file: int, data: Any) -> int:
        if len(data) > 20:
            return real_write(file, data[:20])
        raise OSError(28, "No space left on device")

    writer.feed(FrameKind.END, 1, end)
    monkeypatch.setattr(os, "write", full)
    writer.flush()
    assert writer.notices == [{"what": "stopped", "why": "No space left on device"}]
    monkeypatch.setattr(os, "write", real_write)
    writer.feed(FrameKind.END, 2, end)
    writer.flush()
    assert writer.notices[1] == {"what": "resumed", "rows": 1}
    rows = [json.loads(line) for line in segments_of(tmp_path / "ring")[-1].read_bytes().splitlines()]
    assert [(r["row"], r.get("rows"), r.get("id")) for r in rows[1:]] == [("gap", 1, None), ("end", None, 2)]


def test_trace_of_a_recording_has_shared_prefixes_turns_and_aborts(recording: StartRecording, tmp_path: Path) -> None:
    def serve(c: socket.socket) -> None:
        while request := read_request(c):
            if b"hang" in request:
                c.sendall(SSE_HEAD + event("one") + event("two"))
                c.recv(1)
                return
            c.sendall(SSE_HEAD + event("one") + event(None, "stop") + DONE + LAST_CHUNK)

    made = recording(serve)
    system = {"role": "system", "content": "rules " * 100}
    first = [system, {"role": "user", "content": "first question"}]
    second = [*first, {"role": "assistant", "content": "one"}, {"role": "user", "content": "second question"}]
    for messages in (first, second, [system, {"role": "user", "content": "another one"}]):
        body = json.dumps({"messages": messages, "stream": True, "max_tokens": 50}).encode()
        made.send(body, end=LAST_CHUNK)
    with made.proxy.connect() as client:
        client.sendall(post(chat("hang", stream=True)))
        read_until(client, event("two"))
    made.rows("end", 4)
    frozen = made.freeze("signal")

    assert recording_of(made.folder) == frozen
    trace = trace_of_recording(frozen, tmp_path / "scratch")
    request_trace.write(trace, tmp_path / "scratch")
    trace = request_trace.read(tmp_path / "scratch" / request_trace.FILE)
    assert [s.outcome for s in trace.sends] == ["ok", "ok", "ok", "aborted"]
    assert [[c.request for c in s.after] for s in trace.sends] == [[], [trace.sends[0].id], [], []]
    assert [(a.request, a.after_token) for a in trace.aborts] == [(trace.sends[3].id, 2)]
    bodies = [json.loads(trace.body_file(s).read_bytes()) for s in trace.sends]
    assert bodies[1]["messages"][:2] == bodies[0]["messages"]
    assert bodies[2]["messages"][0] == bodies[0]["messages"][0]
    assert bodies[2]["messages"][1] != bodies[0]["messages"][1]
    assert all(s.stream for s in trace.sends)
    assert "question" not in files_of(tmp_path / "scratch").decode()


def test_requests_at_a_path_of_their_own_are_sent_there_again(recording: StartRecording, tmp_path: Path) -> None:
    made = recording(serve_answers)
    with made.proxy.connect() as client:
        request = post(chat(PROMPT, max_tokens=9), b"Connection: close")
        client.sendall(request.replace(b"/v1/chat/completions", b"/api/v3/chat/completions?key=abc"))
        read_all(client)
    made.rows("end")
    trace = trace_of_recording(made.freeze("signal"), tmp_path / "scratch")
    assert [send.path for send in trace.sends] == ["/api/v3/chat/completions"]
    assert json.loads(trace.body_file(trace.sends[0]).read_bytes())["max_tokens"] == 3, "as long as the recorded answer"


def test_trace_of_bodies_has_the_bodies(recording: StartRecording, tmp_path: Path) -> None:
    made = recording(serve_answers, bodies=True)
    made.send(chat(PROMPT, max_tokens=9))
    made.rows("end")
    trace = trace_of_recording(made.freeze("signal"), tmp_path / "scratch")
    assert json.loads(trace.body_file(trace.sends[0]).read_bytes()) == json.loads(chat(PROMPT, max_tokens=9))


def test_torn_rows_are_left_out(recording: StartRecording, tmp_path: Path) -> None:
    made = recording(serve_answers)
    made.send(chat("one"))
    made.rows("end")
    frozen = made.freeze("signal")
    with segments_of(frozen)[0].open("ab") as f:
        f.write(b'{"row":"begin","id":99,"at')
    assert len(trace_of_recording(frozen, tmp_path / "scratch").sends) == 1


def test_recording_without_a_request_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "ring"
    folder.mkdir()
    (folder / "segment-000001.jsonl").write_text('{"row":"recording","recording":"ab","unix_ns":1,"at_ns":1}\n')
    with pytest.raises(OptionError, match="no request that can be sent again"):
        trace_of_recording(folder, tmp_path / "scratch")
    assert recording_of(tmp_path / "elsewhere") is None


class Command:
    """`loadchaos record` in a process of its own."""

    def __init__(self, upstream_port: int, out: Path, *more: str) -> None:
        argv = [sys.executable, "-m", "loadchaos", "record", "--upstream", f"http://127.0.0.1:{upstream_port}"]
        argv += ["--listen", "127.0.0.1:0", "--out", str(out), *more]
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.port = int(self.line("listening").split(",")[0].rpartition(":")[2])
        self.line("recording")

    def line(self, begin: str) -> str:
        assert self.process.stderr is not None
        for text in self.process.stderr:
            self.lines.append(text)
            if text.startswith(begin):
                return text
        raise AssertionError(f"no line {begin}: {self.lines}")

    def send(self, body: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), WAIT_S) as client:
            client.sendall(post(body, b"Connection: close"))
            return read_all(client)

    def writer(self) -> psutil.Process:
        return psutil.Process(self.process.pid).children()[0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


StartCommand = Callable[..., tuple[Command, ConnectionServer]]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[StartCommand]:
    made: list[Command | ConnectionServer] = []

    def start(handler: Handler, *more: str) -> tuple[Command, ConnectionServer]:
        server = ConnectionServer(handler)
        started = Command(server.port, tmp_path / "out", *more)
        made.extend([server, started])
        return started, server

    yield start
    for one in made:
        one.close()


def test_command_keeps_the_ring_when_the_server_dies(command: StartCommand, tmp_path: Path) -> None:
    def serve(c: socket.socket) -> None:
        request = read_request(c)
        if b"die" in request:
            c.sendall(plain(b'{"error":{"message":"EngineCore encountered an issue: EngineDeadError"}}', b"500 Error"))
        else:
            c.sendall(plain())

    record, _ = command(serve)
    for prompt in ("one", "two", "die"):
        assert record.send(chat(prompt))
    kept = record.line("kept")
    assert "engine died" in kept
    folder = Path(kept.split(" ")[1])
    assert len(trace_of_recording(folder, tmp_path / "scratch").sends) == 3
    record.process.send_signal(signal.SIGTERM)
    assert record.process.wait(WAIT_S) == 0


@pytest.mark.usefixtures("hears_sighup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ending_command_lets_open_answers_end(number: signal.Signals, command: StartCommand, tmp_path: Path) -> None:
    go_on = threading.Event()

    def serve(c: socket.socket) -> None:
        assert go_on.wait(WAIT_S)
        c.sendall(event(None, "stop") + DONE + LAST_CHUNK)
        c.recv(1)

    record, _ = command(begins(serve))
    with socket.create_connection(("127.0.0.1", record.port), WAIT_S) as client:
        client.sendall(post(chat("one", stream=True)))
        read_until(client, event("one"))
        record.process.send_signal(number)
        record.line("ending")
        go_on.set()
        assert read_all(client).endswith(LAST_CHUNK)
    assert record.process.wait(WAIT_S) == 0
    assert b'"outcome":"ok"' in files_of(tmp_path / "out")


def test_second_signal_ends_at_once(command: StartCommand) -> None:
    record, _ = command(begins(lambda c: c.recv(1)))
    with socket.create_connection(("127.0.0.1", record.port), WAIT_S) as client:
        client.sendall(post(chat("one", stream=True)))
        read_until(client, event("one"))
        record.process.send_signal(signal.SIGTERM)
        record.line("ending")
        record.process.send_signal(signal.SIGINT)
        assert record.process.wait(WAIT_S) == 0


def test_killed_command_loses_nothing(command: StartCommand, tmp_path: Path) -> None:
    record, _ = command(lambda c: (read_request(c), c.sendall(plain())))
    for n in range(20):
        record.send(chat(f"{n}"))
    writer = record.writer()
    record.process.kill()
    writer.wait(WAIT_S)
    assert len(trace_of_recording(tmp_path / "out" / "ring", tmp_path / "scratch").sends) == 20


def test_kill_of_command_and_writer_loses_at_most_a_second(command: StartCommand, tmp_path: Path) -> None:
    record, _ = command(lambda c: (read_request(c), c.sendall(plain())))
    for n in range(20):
        record.send(chat(f"{n}"))
    ring = tmp_path / "out" / "ring"
    until(lambda: any(file.stat().st_size for file in ring.glob("*")), "the first rows of the writer")
    time.sleep(1.0)
    writer = record.writer()
    writer.kill()
    record.process.kill()
    writer.wait(WAIT_S)
    assert len(trace_of_recording(ring, tmp_path / "scratch").sends) == 20


def test_server_that_goes_away_is_named_and_kept(command: StartCommand) -> None:
    record, server = command(lambda c: (read_request(c), c.sendall(plain())))
    record.send(chat("one"))
    server.close()
    assert record.send(chat("two")).startswith(b"HTTP/1.1 502")
    assert record.send(chat("three")).startswith(b"HTTP/1.1 502")
    assert "Connection refused; clients get status 502" in record.line(f"http://127.0.0.1:{server.port}: no connection")
    assert "refuses connections" in record.line("kept")


def test_signal_keeps_the_ring(command: StartCommand, tmp_path: Path) -> None:
    record, _ = command(lambda c: (read_request(c), c.sendall(plain())))
    record.send(chat("one"))
    record.process.send_signal(signal.SIGUSR1)
    assert "-signal" in record.line("kept")
