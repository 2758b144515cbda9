import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadchaos.core.ledger.reader import Tail
from tests.run.conftest import Row, Start, StartWorker, embedded_target, limited


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """File system of this size in KiB; skips without mount permission."""
    made: list[Path] = []

    def make(kilobytes: int) -> Path:
        place = tmp_path / f"tiny-{len(made)}"
        place.mkdir()
        mount = shutil.which("mount")
        if mount is None or os.geteuid() != 0:
            pytest.skip("mounting a tmpfs needs root")
        done = subprocess.run(
            [mount, "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(f"no tmpfs could be mounted: {done.stderr.decode().strip()}")
        made.append(place)
        return place

    yield make
    for place in made:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
def test_ledger_file_that_cannot_grow_ends_the_run_as_unknown(start: Start, for_long: Row) -> None:
    run = start(**for_long, prefix=limited("RLIMIT_FSIZE", 20000))
    assert run.ends(100) == 3
    assert "could not be written" in run.output
    assert "PASS" not in run.output
    assert run.verdict()["verdict"] == "unknown"
    assert run.verdict()["failures"] == []


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [24, 64, 128])
def test_full_disk_ends_the_run_as_unknown(
    start: Start, for_long: Row, tiny_disk: Callable[[int], Path], kilobytes: int
) -> None:
    run = start(**for_long, out=str(tiny_disk(kilobytes)))
    assert run.ends(100) == 3
    assert "written" in run.output
    assert "PASS" not in run.output


@pytest.mark.slow
def test_full_disk_does_not_hide_a_failure(start: Start, for_long: Row, tiny_disk: Callable[[int], Path]) -> None:
    target = embedded_target("near_max_oob", max_model_len=2048, num_speculative_tokens=0)
    traffic = [
        {"name": "text", "weight": 30, "payload": {"text": {"tokens": "16..32"}}, "output": {"max": 8}},
        {"name": "killer", "weight": 1, "payload": {"text": {"tokens": "1500..1600"}}, "output": {"max": 8}},
    ]
    run = start(**for_long, target={"on_death": "restart", **target}, traffic=traffic, out=str(tiny_disk(350)))
    assert run.ends(100) == 1
    assert "index_oob_indexkernel" in run.output


@pytest.mark.slow
def test_low_disk_drops_only_rows_of_successful_requests(start: Start, tiny_disk: Callable[[int], Path]) -> None:
    place = tiny_disk(8000)
    load = [{"rate": "20/s", "law": "constant", "for": "14s", "max_in_flight": 64}]
    run = start(load=load, out=str(place), limits={"first_byte": "10s", "between_bytes": "5s", "total": "20s"})
    home = next(iter(run.wait(lambda: list(place.glob("*/requests-0.jsonl")), "rows"))).parent
    run.wait(lambda: b'"row":"end"' in (home / "requests-0.jsonl").read_bytes(), "an answer")
    free = shutil.disk_usage(place).free
    (place / "ballast").write_bytes(b"x" * (free - 300_000))
    run.wait(lambda: b'"row":"well"' in (home / "requests-0.jsonl").read_bytes(), "rows to be folded")
    (place / "ballast").unlink()
    assert run.ends(100) == 0, run.output
    verdict = json.loads((home / "verdict.json").read_text())
    assert verdict["outcomes"] == {"ok": 280}
    assert verdict["latency"]["text"]["ttft_s"]["n"] == 280
    assert ["get one row together" in verdict["notes"][0], "its rows again" in verdict["notes"][1]] == [True, True]
    rows = [json.loads(line) for line in (home / "requests-0.jsonl").read_bytes().splitlines()]
    kinds = [r["row"] for r in rows if r["row"] in ("end", "well")]
    assert kinds[0] == kinds[-1] == "end"
    assert sum(r["n"] for r in rows if r["row"] == "well") + kinds.count("end") == 280


@pytest.mark.slow
def test_full_disk_of_a_remote_worker_loses_its_share_and_is_no_pass(
    start: Start, worker: StartWorker, tiny_disk: Callable[[int], Path], unused_port: int, tmp_path: Path
) -> None:
    load = [{"rate": "20/s", "law": "constant", "for": "15s", "max_in_flight": 64}]
    run = start("--master", "--expect-workers", "2", "--master-bind-port", str(unused_port), load=load)
    workers = [worker(unused_port, out=place) for place in (tmp_path / "roomy", tiny_disk(60))]
    assert run.ends(120) == 3, run.output
    assert [w.process.wait(60) for w in workers] == [0, 3], [w.output for w in workers]
    verdict = run.verdict()
    assert verdict["verdict"] == "unknown"
    assert sum(verdict["outcomes"].values()) == 300
    assert verdict["outcomes"]["missed"] > 0
    assert "failed" in run.check("workers")["actual"], run.check("workers")
    assert (run.folder / "report.html").exists()


@pytest.mark.slow
def test_low_disk_of_a_remote_worker_is_printed_by_the_master(
    start: Start, worker: StartWorker, tiny_disk: Callable[[int], Path], unused_port: int
) -> None:
    place = tiny_disk(8000)
    load = [{"rate": "20/s", "law": "constant", "for": "14s", "max_in_flight": 64}]
    hours = {"LOADCHAOS_HOUR_S": "4"}
    run = start("--master", "--expect-workers", "1", "--master-bind-port", str(unused_port), load=load, env=hours)
    it = worker(unused_port, env=hours, out=place)
    run.wait_for("requests-0.jsonl", 5, 120, row="end")
    (place / "ballast").write_bytes(b"x" * (shutil.disk_usage(place).free - 300_000))
    run.wait(lambda: run.rows("requests-0.jsonl*", row="well"), "rows to be folded")
    (place / "ballast").unlink()
    assert run.ends(100) == 0, run.output
    assert it.process.wait(60) == 0, it.output
    verdict = run.verdict()
    assert verdict["outcomes"] == {"ok": 280}
    assert ["get one row together" in note for note in verdict["notes"]].count(True) == 1, verdict["notes"]
    assert " of disk are free: requests that go well" in run.output
    (there,) = place.glob("*/")
    here = list(Tail(run.folder / "requests-0.jsonl").rows())
    assert here == list(Tail(there / "requests-0.jsonl").rows()), "in parts, of which some are Parquet by now"
    assert len(list(run.folder.glob("requests-0.jsonl*"))) > 2
    assert list(there.glob("*.parquet")) and list(run.folder.glob("requests-0.*parquet"))
