import socket
import time
from collections.abc import Iterator

import pytest

from loadchaos.load.wire import sockets as timestamps
from loadchaos.load.wire.sockets import Connection, Origin
from tests.rows import S


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection.open(Origin(f"http://127.0.0.1:{listener.getsockname()[1]}"), 1, 10)
        peer, _ = listener.accept()
        with peer:
            yield connection, peer
        connection.close()


def read(connection: Connection) -> tuple[int, bytes]:
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        try:
            data, stamp, _, _ = connection.read_now()
        except BlockingIOError:
            time.sleep(0.001)
            continue
        return seen(timestamps.StampClock(), stamp, time.monotonic_ns(), time.time_ns()), data
    raise AssertionError("nothing came")


def seen(it: timestamps.StampClock, stamp: timestamps.ArrivalStamp, now_ns: int, wall_ns: int) -> int:
    it.sync(now_ns, wall_ns)
    return it.arrival(stamp, now_ns)


def test_timestamps_of_late_reads_are_the_arrival_times(pair: tuple[Connection, socket.socket]) -> None:
    connection, peer = pair
    for _ in range(10):  # a kernel begins to stamp a moment after the first socket asked for it
        left_ns = time.monotonic_ns()
        peer.sendall(b"a token")
        sent_ns = time.monotonic_ns()
        time.sleep(0.3)
        came_ns, data = read(connection)
        assert data == b"a token"
        assert left_ns <= came_ns
        if came_ns <= sent_ns + S // 10:
            return
    with socket.socket() as one:
        timestamps._ask_for_stamps(one)
        if timestamps._TIMESTAMPNS is None or not one.getsockopt(socket.SOL_SOCKET, timestamps._TIMESTAMPNS):
            pytest.skip("this kernel does not stamp packets")
    raise AssertionError("the kernel's stamp is not taken")


def test_timestamps_end_of_stream_has_no_stamp(pair: tuple[Connection, socket.socket]) -> None:
    connection, peer = pair
    before_ns = time.monotonic_ns()
    peer.shutdown(socket.SHUT_WR)
    came_ns, data = read(connection)
    assert data == b""
    assert before_ns <= came_ns <= time.monotonic_ns()


def stamp(wall_ns: int) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, 35, timestamps._timespec.pack(wall_ns // S, wall_ns % S))]


def clock(ahead_ns: int) -> timestamps.StampClock:
    it = timestamps.StampClock()
    it.ahead_ns = ahead_ns
    return it


def test_stamp_clock_ignores_an_interruption_between_reads() -> None:
    it = clock(-1000 * S)
    for late_ns in (0, 900_000, 40_000_000, 300_000, 5_000_000_000):
        now_ns = 7 * S
        assert seen(it, stamp(1006 * S), now_ns, 1007 * S + late_ns) == 6 * S


@pytest.mark.parametrize("by_s", [-3600, -1, 1, 3600])
def test_stamp_clock_follows_a_wall_clock_that_was_set(by_s: int) -> None:
    it = clock(-1000 * S)
    for n in range(10):
        now_ns = (7 + n) * S
        came_ns = seen(it, stamp(now_ns - S // 2 + (1000 + by_s) * S), now_ns, now_ns + (1000 + by_s) * S)
        assert came_ns <= now_ns, "nothing comes after it was read"
        if n >= 3:
            assert came_ns == now_ns - S // 2


def test_stamp_clock_ignores_a_stamp_from_before_the_clock_was_set() -> None:
    it = clock(-1000 * S)
    assert seen(it, stamp(100 * S), 7 * S, 1007 * S) == 7 * S
    assert seen(it, [], 7 * S, 1007 * S) == 7 * S
