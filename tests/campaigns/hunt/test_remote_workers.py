"""A hunt with workers on other machines: real sockets, and servers made of rules."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from loadchaos.campaigns.hunt import link
from loadchaos.campaigns.hunt.findings import collect
from loadchaos.campaigns.hunt.genes import GenePool
from loadchaos.campaigns.hunt.journal import Journal
from loadchaos.campaigns.hunt.remote_worker import HuntWorker
from loadchaos.campaigns.hunt.session import HuntSession, HuntSettings
from loadchaos.campaigns.hunt.worker_port import RemoteServer, WorkerPort
from loadchaos.campaigns.hunt.workers import SlotLostError
from loadchaos.core.errors import LoadchaosError, OptionError, TargetError
from loadchaos.load.cluster import messages
from tests.campaigns.hunt.conftest import FACTS, failure, result
from tests.campaigns.hunt.test_session import Answer, Reproducing, RuleRunner


class SlowRunner(RuleRunner):
    """Answers after a moment, as the master's own server does while workers join."""

    async def run(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        await asyncio.sleep(0.05)
        return await super().run(order)


@dataclass
class Machines:
    """A master with a server of its own, and workers."""

    folder: Path
    port: int
    lines: list[str] = field(default_factory=list)
    workers: list[asyncio.Task[int]] = field(default_factory=list)
    runners: list[RuleRunner] = field(default_factory=list)

    def worker(self, answer: Answer, runner: type[RuleRunner] = RuleRunner, **facts: Any) -> HuntWorker:
        """Start a worker whose server answers so."""
        server = runner(answer)
        probed = {"facts": replace(FACTS, **facts).to_json(), "settings": {}, "models": ["a"], "trouble": None}

        async def probe() -> Mapping[str, Any]:
            return probed

        server.probe = probe  # type: ignore[method-assign]
        folder = self.folder / f"worker-{len(self.workers)}"
        found = HuntWorker(("127.0.0.1", self.port), lambda _: server, folder, self.lines.append)
        self.workers.append(asyncio.create_task(found.run(20.0)))
        self.runners.append(server)
        return found

    async def hunt(self, answer: Answer, **settings: Any) -> int:
        """Run the master's hunt to its end."""
        folder = self.folder / "hunt"
        folder.mkdir()
        port = WorkerPort("127.0.0.1", self.port, 60.0, self.lines.append)
        given = HuntSettings(**{"seed": 1, "budget_s": 20.0, **settings})
        session = HuntSession(given, folder, [SlowRunner(answer)], Reproducing(), self.lines.append, port)
        return await session.run()

    def rows(self) -> list[dict[str, Any]]:
        return Journal(self.folder / "hunt").rows


@pytest.fixture
def machines(tmp_path: Path, unused_port: int, monkeypatch: pytest.MonkeyPatch) -> Machines:
    monkeypatch.setattr(link, "PING_S", 0.05)
    monkeypatch.setattr(link, "RESEND_S", 0.1)
    return Machines(tmp_path, unused_port)


def healthy(n: int) -> Mapping[str, Any]:
    return result(f"a:{n}")


def fails_at(number: int) -> Answer:
    return lambda n: result(f"b:{n}", failures=(failure(),) if n == number else ())


def test_worker_takes_workloads_and_sends_the_run_of_a_finding(machines: Machines) -> None:
    async def run() -> tuple[int, list[int]]:
        machines.worker(fails_at(4))
        machines.worker(healthy)
        code = await machines.hunt(healthy, most_findings=1)
        return code, await asyncio.gather(*machines.workers)

    code, ends = asyncio.run(run())
    assert (code, ends) == (1, [0, 0]), machines.lines
    found = collect(Journal(machines.folder / "hunt").rows, machines.folder / "hunt")[0]
    assert found.server
    assert f"first on {found.server} after" in found.describe()
    assert (machines.folder / "hunt" / found.folder / "run" / "events.jsonl").exists()
    assert all(r.stopped for r in machines.runners)
    servers = {row.get("server", "") for row in machines.rows()}
    assert len(servers) == 3, "the master's own server and both workers took part"
    numbers = [row["n"] for row in machines.rows()]
    assert len(numbers) == len(set(numbers))
    orders = machines.runners[0].orders
    assert {o["seed"] for o in orders} <= {row["seed"] for row in machines.rows()} | {orders[-1]["seed"]}
    assert not list((machines.folder / "worker-0" / "runs").iterdir()), "a worker keeps no run that the master has"


def test_run_of_a_known_failure_is_not_sent(machines: Machines) -> None:
    packed: list[Path] = []
    pack_run = link.pack_run

    def pack(run: Path) -> bytes:
        packed.append(run)
        return pack_run(run)

    async def run() -> None:
        machines.worker(lambda n: result(f"b:{n}", failures=(failure(),) if n < 9 else (failure("the_end"),)))
        await machines.hunt(healthy, most_findings=2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "pack_run", pack)
        asyncio.run(run())
    assert [p.parent.name for p in packed] == ["00001", "00009"]


def test_lost_worker_costs_its_workload_and_the_hunt_goes_on(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging(RuleRunner):
        async def run(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
            machines.workers[0].get_loop().call_soon(begun.set)
            await asyncio.sleep(3600)
            raise AssertionError

    begun = asyncio.Event()

    async def run() -> int:
        worker = machines.worker(healthy, Hanging)
        hunting = asyncio.create_task(machines.hunt(fails_at(40), most_findings=1))
        await asyncio.wait_for(begun.wait(), 20)
        for task in worker._tasks:
            task.cancel()  # as SIGKILL does: nothing is sent any more
        return await asyncio.wait_for(hunting, 20)

    monkeypatch.setattr(link, "LOST_AFTER_S", 0.5)
    assert asyncio.run(run()) == 1
    lost = [line for line in machines.lines if "lost" in line]
    assert len(lost) == 1
    assert "sent nothing for" in lost[0]
    assert len(machines.rows()) == 39, "all others of the 40 workloads have their rows"


@pytest.mark.parametrize("kind", [messages.ORDER, messages.RESULT, messages.ACK, messages.READY, messages.WELCOME])
def test_message_that_a_broken_connection_loses_is_sent_again(
    kind: str, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[str] = []

    def losing(send: Callable[..., None], at: int) -> Callable[..., None]:
        def sent(*args: Any) -> None:
            if args[at] == kind and len(dropped) < 2:
                dropped.append(kind)
            else:
                send(*args)

        return sent

    monkeypatch.setattr(HuntWorker, "_send", losing(HuntWorker._send, 1))
    monkeypatch.setattr(WorkerPort, "_send", losing(WorkerPort._send, 2))

    async def run() -> list[int]:
        machines.worker(fails_at(5))
        await machines.hunt(healthy, most_findings=1)
        return await asyncio.gather(*machines.workers)

    assert asyncio.run(run()) == [0]
    assert len(dropped) == 2
    mine = [row["n"] for row in machines.rows() if row.get("server")]
    assert len(mine) == 5, "each workload of the worker counts once"


def test_result_that_comes_again_is_not_that_of_the_next_workload(tmp_path: Path) -> None:
    sent: list[tuple[str, Mapping[str, Any]]] = []
    server = RemoteServer("far", lambda kind, data: sent.append((kind, data)), print)
    order = {"workload": {}, "seed": 1, "known": (), "folder": str(tmp_path)}

    async def run() -> list[Any]:
        found = []
        for number, name in ((1, "first"), (2, "second")):
            task = asyncio.create_task(server.run(order))
            await asyncio.sleep(0)
            server.answer_message(messages.RESULT, {"number": 1, "result": result("first")})
            server.answer_message(messages.RESULT, {"number": number, "result": result(name)})
            found.append((await asyncio.wait_for(task, 5))["features"])
        return found

    assert asyncio.run(run()) == [result("first")["features"], result("second")["features"]]
    assert [data["number"] for kind, data in sent if kind == messages.ORDER] == [1, 2]


def test_order_that_comes_again_is_run_once(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, pool: GenePool
) -> None:
    worker = HuntWorker(("127.0.0.1", machines.port), lambda _: RuleRunner(healthy), machines.folder, print)
    worker._pool = pool
    orders = [(messages.ORDER, {"number": number}) for number in (1, 1, 2, 1, 2)]
    begun: list[int] = []

    async def receive(_: HuntWorker) -> tuple[str, dict[str, Any]]:
        if not orders:
            raise EOFError
        return orders.pop(0)

    async def work(_: HuntWorker, order: Mapping[str, Any]) -> None:
        begun.append(order["number"])

    async def run() -> None:
        with pytest.raises(EOFError):
            await worker._listen()
        await asyncio.sleep(0)

    monkeypatch.setattr(HuntWorker, "_receive", receive)
    monkeypatch.setattr(HuntWorker, "_work", work)
    asyncio.run(run())
    assert begun == [1, 2]


def test_worker_without_its_master_ends_its_server(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LOST_AFTER_S", 0.5)

    async def run() -> int:
        port = WorkerPort("127.0.0.1", machines.port, 60.0, machines.lines.append)
        port.open()
        machines.worker(healthy)
        await asyncio.wait_for(port.joined(), 20)
        for task in port._tasks:
            task.cancel()
        code = await asyncio.wait_for(machines.workers[0], 20)
        link.close_socket(port._socket)
        return code

    assert asyncio.run(run()) == 3
    assert machines.runners[0].stopped
    assert any("the master sent nothing for" in line for line in machines.lines)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"version": "0.19.0"}, "its server is vllm 0.19.0, that of the hunt vllm 0.18.0"),
        ({"max_model_len": 4096}, "its server differs from that of the hunt in tokens"),
        ({"images": False}, "images"),
    ],
)
def test_worker_with_another_server_is_refused(facts: dict[str, Any], why: str, machines: Machines) -> None:
    async def run() -> None:
        machines.worker(fails_at(1), **facts)
        with pytest.raises(OptionError, match="refused: its server"):
            await asyncio.gather(machines.hunt(fails_at(60), most_findings=1), machines.workers[0])

    asyncio.run(run())
    assert any("was refused" in line and why in line for line in machines.lines)
    assert machines.runners[0].stopped
    assert machines.runners[0].orders == []


def test_master_of_a_hunt_refuses_workers_of_loads_and_other_versions() -> None:
    assert messages.mismatch(messages.versions("hunt"), "hunt") is None
    assert "with --launch" in (messages.mismatch(messages.versions(), "hunt") or "")
    assert "without --launch" in (messages.mismatch(messages.versions("hunt")) or "")
    old = {**messages.versions("hunt"), "loadchaos": "0.0.9"}
    assert "install the same version" in (messages.mismatch(old, "hunt") or "")


def test_worker_whose_master_never_answers_says_so(machines: Machines) -> None:
    async def run() -> None:
        worker = HuntWorker(("127.0.0.1", machines.port), lambda _: RuleRunner(healthy), machines.folder, print)
        await worker.run(0.3)

    with pytest.raises(TargetError, match="no master at "):
        asyncio.run(run())


def test_failing_server_of_a_worker_is_left_out_and_the_others_hunt_on(machines: Machines) -> None:
    def broken(n: int) -> Mapping[str, Any]:
        raise LoadchaosError("the server never became healthy") if n % 2 else SlotLostError("its process ended")

    async def run() -> tuple[int, int]:
        machines.worker(broken)
        return await machines.hunt(fails_at(60), most_findings=1), await machines.workers[0]

    assert asyncio.run(run()) == (1, 0)
    lost = [line for line in machines.lines if "lost: " in line]
    assert len(lost) == 3
    assert len(machines.rows()) == 57
    assert any("is not used any more" in line for line in machines.lines)


@pytest.mark.parametrize(
    "order",
    [
        {"workload": {"load": {"users": 1}, "traffic": []}},
        {"workload": {"load": None}},
        {"workload": ["rm"]},
        {"profile": {"target": {"launch": {"command": ["touch", "x"]}}}},
    ],
)
def test_worker_runs_genes_and_nothing_else(order: dict[str, Any], tmp_path: Path, pool: Any) -> None:
    worker = HuntWorker(("127.0.0.1", 1), lambda _: RuleRunner(healthy), tmp_path, print)
    worker._pool = pool
    with pytest.raises(OptionError, match="check that it is your master"):
        worker._profile({"number": 1, "seed": 1, **order})


def test_strange_messages_change_nothing(machines: Machines) -> None:
    async def run() -> int:
        port = WorkerPort("127.0.0.1", machines.port, 60.0, machines.lines.append)
        port.open()
        context = zmq.Context()
        stranger = context.socket(zmq.DEALER)
        stranger.connect(f"tcp://127.0.0.1:{machines.port}")
        for frame in (
            b"",
            b"\xc1",
            b"\x93\x01",
            link.pack(messages.HELLO, {}, "x"),
            link.pack(messages.HELLO, {"versions": 3}, "x"),
        ):
            stranger.send(frame)
        stranger.send_multipart([b"a", b"b", link.pack(messages.RESULT, {"number": 1}, "x")])
        machines.worker(healthy)
        worker = await asyncio.wait_for(port.joined(), 20)
        worker.answer_message(messages.RESULT, {"number": 99, "result": "text"})
        await port.close()
        stranger.close(0)
        context.term()
        return await machines.workers[0]

    assert asyncio.run(run()) == 0
    assert sum("was refused" in line for line in machines.lines) == 1


def packed(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def test_packed_run_is_unpacked_and_cannot_leave_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    (run / "incidents").mkdir(parents=True)
    (run / "incidents" / "a.md").write_text("text")
    link.unpack_run(link.pack_run(run), tmp_path / "again")
    assert (tmp_path / "again" / "incidents" / "a.md").read_text() == "text"
    for data in (packed(("../outside", b"x")), b"no archive", b"", link.pack_run(run)[:60]):
        with pytest.raises(ValueError, match="cannot be unpacked"):
            link.unpack_run(data, tmp_path / "into")
    assert not (tmp_path / "outside").exists()
    monkeypatch.setattr(link, "_MOST_BYTES", 3)
    with pytest.raises(ValueError, match="a run of more than"):
        link.unpack_run(packed(("a", b"1234")), tmp_path / "into")
