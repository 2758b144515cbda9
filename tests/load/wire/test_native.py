"""The native reader counts what Python would have counted, and gives back everything else."""

import gc
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatch_build import SOURCE, compile_into
from loadchaos.core.histogram import bucket
from loadchaos.load.wire.answer_reader import AnswerRules
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.native import PURE, is_native, new_poller
from loadchaos.load.wire.sockets import Origin, Slot
from loadchaos.server.dialects import outcome_rules_of_any_server
from tests.fuzz import EACH, SEEDS, spoiled
from tests.load.wire.native_reading import Reading
from tests.load.wire.requests import wire_request
from tests.load.wire.test_any_answer import HTTP_WORDS, SSE_WORDS

pytestmark = pytest.mark.skipif(not is_native(), reason="there is no native reader")

ROOT = Path(__file__).parents[3]
FORMS = [
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":null}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"reasoning":"%s"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":1,"text":"%s","finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}],"token_ids":[1]}\n\n',
    b'data:{"id":"c","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n',
    b'event: message\ndata: {"id":"c","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n',
]
TEXTS = [
    b" the", b" river", b"a", b"", b"\\n", b'\\"', b"\\u00e9", b"\\ud83d\\ude00", b"\\ud83d", b'"', b"\\", b"\n", b"\r\n",
    b"\x00", b"\x7f", b"\xc3\xa9", b"\xe4\xb8\xad", b"\xff", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b'","x":"', b"\\x",
    b"x" * 300,
]  # fmt: skip
ENDS = [
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', b"data: [DONE]\n\n", b": alive\n\n",
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9}}\n\n', b'data: {"error":{"message":"x"}}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"z"},"finish_reason":"length"}]}\n\n',
]  # fmt: skip
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
RULES = AnswerRules(outcome_rules_of_any_server())
TIMES = {"at_ns", "due_ns", "sent_ns", "id", "detail", "itl_hist", "largest_gap_ns"}  # those of the answer are compared


def chunked(event: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.02:
        a = rng.randint(0, len(event))
        return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (event[:a], event[a:]) if part)
    digits = b"%X" if rng.random() < 0.1 else b"%04x" if rng.random() < 0.1 else b"%x"
    return digits % len(event) + b"\r\n" + event + b"\r\n"


def a_stream(rng: random.Random) -> list[bytes]:
    """Pieces of a chunked stream of runs of events of one form, as a network may cut them; some are broken."""
    pieces = [HEAD]
    for _ in range(rng.randint(1, 3)):
        form = rng.choice(FORMS)
        texts = TEXTS[:3] if rng.random() < 0.4 else TEXTS
        pieces += [chunked(form.replace(b"%s", rng.choice(texts)), rng) for _ in range(rng.randint(1, 12))]
        pieces += [chunked(end, rng) for end in rng.sample(ENDS, rng.choice([0, 0, 1, 2]))]
    pieces.append(rng.choice([b"0\r\n\r\n", b"0\r\n\r\n", b"", b"0\r\nX: y\r\n\r\n", b"5\r\nab"]))
    if rng.random() < 0.2:
        n = rng.randrange(len(pieces))
        pieces[n] = spoiled(pieces[n], rng.choice([HTTP_WORDS, SSE_WORDS]), rng)
    joined: list[bytes] = []
    for piece in pieces:
        if joined and rng.random() < 0.3:
            joined[-1] += piece
        elif piece and rng.random() < 0.1:
            a = rng.randint(0, len(piece))
            joined += [piece[:a], piece[a:]]
        else:
            joined.append(piece)
    return [piece for piece in joined if piece]


def result_of(reading: Reading, pieces: list[tuple[int, bytes]]) -> dict[str, Any]:
    slot = Slot(Origin("http://127.0.0.1:9"))
    progress = Progress()
    call = Exchange(wire_request(slot.target, stream=True, rules=RULES, fresh=True), slot, progress)
    reading.read(call, pieces)
    row = call.end_row()
    kept = {key: value for key, value in row.items() if key not in TIMES}
    answer, parser = call.answer, call._parser
    hidden = {"_template", "_sse", "_prefix", "rules"}
    of_answer = (
        {key: getattr(answer, key, None) for key in type(answer).__slots__ if key not in hidden} if answer else None
    )
    return {
        **kept,
        "answer": of_answer,
        "progress": (progress.tokens, progress.bytes_in),
        "parser": (parser.broken, parser.done, parser.excess),
    }


def compare(seed: object, streams: int) -> int:
    """Read random streams in both ways. Returns the bytes that were counted natively."""
    rng = random.Random(str(seed))
    native, pure = Reading(native=True), Reading(native=False)
    for _ in range(streams):
        at_ns = 10**9
        pieces = []
        for piece in a_stream(rng):
            at_ns += rng.choice([0, 1, 999, 20_000_000, rng.randrange(10**9)])
            pieces.append((at_ns, piece))
        assert result_of(native, pieces) == result_of(pure, pieces), pieces
    return native.counted


@pytest.mark.parametrize("seed", SEEDS)
def test_any_stream_gives_the_same_result_natively(seed: int) -> None:
    assert compare(seed, EACH * 5) > EACH * 5 * 100


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_a_hundred_thousand_streams_give_the_same_result_natively(part: int) -> None:
    assert compare(f"part {part}", 25_000) > 2_500_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_native_reader_is_clean_under_sanitizers(tmp_path: Path) -> None:
    """Its tests, with an extension that AddressSanitizer and UndefinedBehaviorSanitizer watch."""
    native = tmp_path / "_native.abi3.so"
    flags = ("-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    if not compile_into(native, ROOT / SOURCE, *flags):
        pytest.skip("there is no compiler with sanitizers")
    compiler = os.environ.get("CC", "cc")
    names = ("libasan.so", "libubsan.so")
    found = [subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip() for name in names]
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("loadchaos.load.wire._native", {str(native)!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules[spec.name] = module
import loadchaos.load.wire
loadchaos.load.wire._native = module
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not slow", {str(Path(__file__))!r}]))
"""
    env = {**os.environ, "LD_PRELOAD": " ".join(found), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=800)
    assert (done.returncode, "passed" in done.stdout) == (0, True), done.stdout[-3000:] + done.stderr[-3000:]


@given(value=st.one_of(st.integers(-5, 1000), st.integers(0, 1 << 53), st.integers(0, 52).map(lambda n: (1 << n) - 1)))
def test_native_bucket_is_the_histograms(value: int) -> None:
    poller = new_poller(1, 0)
    assert poller is not None
    assert poller.bucket(value) == bucket(value)


def test_a_steady_stream_is_counted_natively_but_for_its_begin_and_end() -> None:
    form, reading = FORMS[0], Reading(native=True)
    events = [form.replace(b"%s", b" word") for _ in range(100)]
    pieces = [HEAD, *(b"%x\r\n%s\r\n" % (len(e), e) for e in events), b"0\r\n\r\n"]
    found = result_of(reading, [(n * 1000, piece) for n, piece in enumerate(pieces)])
    assert found["chunks"] == 100
    assert reading.counted == sum(map(len, pieces[3:-1]))


def test_counts_of_the_native_reader_are_seen_while_the_answer_comes() -> None:
    """A sweep, a heartbeat and whoever waits for a token see what the lane holds."""
    slot, progress, seen = Slot(Origin("http://127.0.0.1:9")), Progress(), []
    call = Exchange(wire_request(slot.target, stream=True, rules=RULES, fresh=True), slot, progress)
    event = FORMS[0].replace(b"%s", b" word")

    def pieces() -> Iterator[tuple[int, bytes]]:
        yield 1, HEAD
        for n in range(2, 12):
            yield n, b"%x\r\n%s\r\n" % (len(event), event)
        seen.extend([call.silence_ns(100), call.token_silence_ns(100), call.tokens, progress.tokens])

    Reading(native=True).read(call, pieces())
    assert seen == [89, 89, 10, 10]
    row = call.end_row()
    assert (row["outcome"], row["chunks"], row["bytes_in"], row["last_byte_ns"]) == (
        "reset", 10, len(HEAD) + 10 * (len(event) + 6), 11,
    )  # fmt: skip


def test_environment_variable_forbids_the_native_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PURE, "1")
    assert (is_native(), new_poller(1, 0)) == (False, None)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection over TCP, (ours, the peer's)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    yield ours, peer
    ours.close()
    peer.close()


def started(ours: socket.socket) -> tuple[Any, Any]:
    """A poller that reads seven bytes at a time, and its lane of a connection for which somebody waits."""
    poller: Any = new_poller(7, 0)
    lane = poller.lane(ours.fileno())
    lane.set_reading(True)
    poller.start(lane, "owner")
    return poller, lane


def read_until(poller: Any, n: int) -> list[tuple[int, Any, Any]]:
    found: list[tuple[int, Any, Any]] = []
    until = time.monotonic() + 10
    while len(found) < n and time.monotonic() < until:
        found += poller.read(0, 1 << 60)[0]
    return found


def test_native_reader_leaves_bytes_unread_while_nobody_waits(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = pair
    poller = new_poller(100, 0)
    assert poller is not None
    lane = poller.lane(ours.fileno())
    poller.start(lane, "owner")
    peer.send(b"unexpected")
    assert read_until(poller, 1) == [(0, "owner", None)]
    assert ours.recv(100) == b"unexpected"
    poller.close()


def test_native_reader_gives_back_all_bytes_and_then_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = pair
    poller, lane = started(ours)
    data = bytes(range(256)) * 10
    peer.sendall(data)
    peer.close()
    found: list[bytes] = []
    while not found or found[-1]:
        found += [piece for _, _, piece in read_until(poller, 1)]
    assert b"".join(found) == data
    assert lane.outstanding == len(found)
    poller.stop(lane)
    poller.stop(lane)
    poller.close()


def test_native_reader_tells_a_reset_as_its_error(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = pair
    poller, _ = started(ours)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()
    ((_, _, error),) = read_until(poller, 1)
    assert isinstance(error, ConnectionResetError)
    poller.close()


def test_native_reader_counts_no_more_after_other_bytes(pair: tuple[socket.socket, socket.socket]) -> None:
    poller = new_poller(7, 0)
    assert poller is not None
    lane, texts, content = poller.lane(pair[0].fileno()), list[str](), list[str]()
    lane.arm(b"a", b"z", texts, content, {}, 0)
    token = b"4\r\nahiz\r\n"
    assert poller.count(lane, 5, token + b"other") == len(token)
    assert (texts, content, lane.armed) == (["hi"], ["hi"], False)
    assert poller.count(lane, 6, token) == 0  # Python reads the other bytes first
    poller.close()


def test_native_reader_is_collected_with_its_lanes(pair: tuple[socket.socket, socket.socket]) -> None:
    class Owner:
        lane: Any

    poller, owner = new_poller(7, 0), Owner()
    assert poller is not None
    owner.lane = poller.lane(pair[0].fileno())
    poller.start(owner.lane, owner)
    owner.lane.arm(b"a", b"b", [owner], None, {}, 0)
    with pytest.raises(TypeError):
        poller.start("no lane", owner)  # type: ignore[arg-type]
    del poller, owner
    gc.collect()
    assert not [it for it in gc.get_objects() if type(it) is Owner]
