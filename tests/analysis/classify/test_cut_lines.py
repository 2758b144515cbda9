import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadchaos.analysis.classify.live import LiveClassifier
from loadchaos.analysis.classify.rejoin import rejoin
from loadchaos.analysis.judge import Judge
from loadchaos.cli.main import main
from loadchaos.core.ledger.reader import LogTail
from loadchaos.core.model import Terms
from loadchaos.core.redact import Redactor
from loadchaos.core.units import NS_PER_S as S
from loadchaos.core.whole_lines import HELD_NS, LineJoiner, WholeLine
from loadchaos.server.monitor.log_follower import FollowedLog, LogFollower
from tests.crash_logs import CRASHES, log_text
from tests.rows import EmittedRows
from tests.waiting import until_async

STAMP = "2026-04-02T11:15:40.123456789Z"
PART = 50
MS = S // 1000


def lines_of(path: Path) -> list[str]:
    return log_text(path).splitlines()


DEATHS = [CRASHES / "vllm" / f"{name}.log" for name in ("encoder-cache-miss-in-the-drafter", "worker-killed-0.32")]
DEATH = lines_of(DEATHS[0])


def parts_of(line: str, most: int = PART) -> list[str]:
    return [line[i : i + most] for i in range(0, max(len(line), 1), most)]


def cri(lines: list[str]) -> list[str]:
    """Parts of the kubelet."""
    found = []
    for line in lines:
        *parts, last = parts_of(line)
        found += [f"{STAMP} stderr P {part}" for part in parts]
        found.append(f"{STAMP} stderr F {last}")
    return found


def docker(lines: list[str]) -> list[str]:
    """Records of the json-file driver."""
    texts = [part for line in ["INFO: start", *lines] for part in parts_of(line + "\n")]
    return [json.dumps({"log": t, "stream": "stderr", "time": STAMP}, separators=(",", ":")) for t in texts]


def journal_bytes(lines: list[str]) -> list[str]:
    """Records of journald with coloured messages."""
    return [json.dumps({"MESSAGE": list(f"\x1b[0;36m{line}".encode()), "_PID": "1"}) for line in lines]


def journal_parts(lines: list[str]) -> list[str]:
    """Records of journald that were split; its limit is 48 KiB."""
    found = []
    for line in lines:
        *parts, last = parts_of(line)
        found += [json.dumps({"MESSAGE": part, "_PID": "1", "_LINE_BREAK": "line-max"}) for part in parts]
        found.append(json.dumps({"MESSAGE": last, "_PID": "1"}))
    return found


FORMS: dict[str, Callable[[list[str]], list[str]]] = {
    "cri": cri, "docker": docker, "journal bytes": journal_bytes, "journal parts": journal_parts,
}  # fmt: skip


def in_a_file(tmp_path: Path, lines: list[str]) -> list[tuple[str, str, int]]:
    (tmp_path / "x.log").write_text("\n".join(lines) + "\n")
    found = json.loads(CliRunner().invoke(main, ["classify", "--json", str(tmp_path / "x.log")]).output)
    return [(f["id"], f["title"], f["evidence"]["line"]) for f in found]


def row(n: int, text: str) -> Any:
    return {"row": "log", "at_ns": S + n * MS, "file": "server.log", "source": "server", "line": n, "text": text}


def in_a_run(lines: list[str], *, polled: bool) -> list[tuple[str, str, int]]:
    judge = Judge(Terms("test"))
    for n, line in enumerate(lines, 1):
        judge.fold(row(n, line))
        if polled:
            judge.findings()
    return [(f.id, f.title, f.evidence.line or 0) for f in judge.verdict().failures]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", DEATHS, ids=lambda p: p.stem)
def test_death_in_cut_lines_is_the_same_in_a_file_and_in_a_run(tmp_path: Path, path: Path, form: str) -> None:
    lines = lines_of(path)
    cut = FORMS[form](lines)
    [(id_, title, line)] = in_a_file(tmp_path, cut)
    assert [(id_, title)] == [found[:2] for found in in_a_file(tmp_path, lines)]
    assert in_a_run(cut, polled=False) == in_a_run(cut, polled=True) == [(id_, title, line)]


@pytest.mark.parametrize("form", FORMS)
def test_death_in_cut_lines_is_found_wherever_the_rows_are_polled(form: str) -> None:
    cut = FORMS[form](DEATH)
    wanted = in_a_run(cut, polled=False)
    for position in range(1, len(cut) + 1):
        live = LiveClassifier()
        found = []
        for n, line in enumerate(cut, 1):
            live.on_log(row(n, line), S + n * MS)
            if n == position:
                found += live.poll(S + n * MS)
        found += live.poll(None)
        assert [(f.id, f.title, f.evidence.line) for f in found] == wanted, position


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", sorted((CRASHES / "benign").glob("*.log")), ids=lambda p: p.stem)
def test_benign_log_in_cut_lines_has_no_failure(tmp_path: Path, path: Path, form: str) -> None:
    lines = lines_of(path)
    if len(lines) < 2:
        return  # one line is read as an HTTP body
    cut = FORMS[form](lines)
    assert in_a_file(tmp_path, cut) == []
    whole = [found[:2] for found in in_a_run(lines, polled=False)]  # a run also tells what the client did wrong
    assert [found[:2] for found in in_a_run(cut, polled=False)] == whole


@pytest.mark.parametrize("form", FORMS)
def test_joined_lines_have_the_number_and_the_time_of_their_first_part(form: str) -> None:
    joiner, cut = LineJoiner(), FORMS[form](DEATH)
    whole = [line for n, text in enumerate(cut, 1) for line in joiner.feed(text, n, n * MS, now_ns=n * MS)]
    assert joiner.flush() == []
    assert sum(line.raw_lines for line in whole) == len(cut)
    assert all(line.at_ns == line.line_no * MS for line in whole)
    for line in whole:
        assert cut[line.line_no - 1][:20] == line.text[:20] or "bytes" in form


def test_part_that_no_other_follows_is_given_after_two_seconds() -> None:
    joiner, half = LineJoiner(), f"{STAMP} stderr P half"
    assert joiner.feed(half, 1, S, now_ns=S) == []
    assert joiner.held_texts() == [half]
    assert joiner.expire(S + HELD_NS) == []
    assert joiner.expire(S + HELD_NS + 1) == [WholeLine(half, 1, S)]
    assert joiner.feed(f"{STAMP} stderr F end", 2) == [WholeLine(f"{STAMP} stderr F end", 2)]


def test_line_of_another_kind_ends_a_part() -> None:
    joiner, half = LineJoiner(), f"{STAMP} stderr P half"
    assert joiner.feed(half, 1) == []
    assert joiner.feed("INFO: no record of the kubelet", 2) == [
        WholeLine(half, 1), WholeLine("INFO: no record of the kubelet", 2),
    ]  # fmt: skip


def test_lines_of_other_streams_stand_between_parts() -> None:
    parts = [f"{STAMP} stderr P a", f"{STAMP} stdout F other", f"{STAMP} stderr P b", f"{STAMP} stderr F c"]
    assert list(rejoin(parts)) == [WholeLine(parts[1], 2), WholeLine(f"{STAMP} stderr P abc", 1, None, 3)]
    records = [{"MESSAGE": "a", "_PID": "1", "_LINE_BREAK": "line-max"}, {"MESSAGE": "other", "_PID": "2"}]
    lines = list(rejoin(map(json.dumps, [*records, {"MESSAGE": "b", "_PID": "1"}])))
    assert [json.loads(line.text)["MESSAGE"] for line in lines] == ["other", "ab"]


def test_endless_line_is_given_in_pieces() -> None:
    joiner = LineJoiner()
    found = [line for n in range(300) for line in joiner.feed(f"{STAMP} stderr P {'x' * 10_000}", n)]
    assert [len(line.text) >> 20 for line in found] == [1, 1]


def test_records_of_a_collector_that_drops_newlines_are_lines() -> None:
    records = [json.dumps({"log": f"line {n}", "stream": "stderr"}, separators=(",", ":")) for n in range(300)]
    assert [line.text for line in rejoin(records)] == records


def test_docker_part_of_16_kb_continues_without_any_proof() -> None:
    long = "x" * 16_384
    first, second = (
        json.dumps({"log": text, "stream": "stdout", "time": STAMP}, separators=(",", ":")) for text in (long, "yz\n")
    )
    [whole] = rejoin([first, second])
    assert json.loads(whole.text)["log"] == f"{long}yz\n"


@pytest.mark.parametrize("prefix", ["Apr 02 11:15:40 node vllm[7]: ", f"{STAMP[:19]}+00:00 node vllm[7]: ", ""])
def test_line_that_journald_split_at_48_kb_is_one_line(prefix: str) -> None:
    """A prompt in a logged request is no failure, wherever it is cut."""
    begin = "DEBUG 04-02 11:15:40 [logger.py:39] Request r-1 details: prompt: '"
    text = (
        begin
        + "x" * (49_152 - len(begin))
        + "\nERROR: EngineDeadError: Encoder cache miss for 9f8a.".replace("\n", " ")
    )
    cut = [prefix + text[:49_152], prefix + text[49_152:], f"{prefix}INFO: next"]
    assert [line.text for line in rejoin(cut)] == [prefix + text, f"{prefix}INFO: next"]
    assert in_a_run(cut, polled=True) == []


def journal_halves(first: str, second: str) -> list[str]:
    head = {"MESSAGE": first, "_PID": "1", "_LINE_BREAK": "line-max"}
    return [json.dumps(head), json.dumps({"MESSAGE": second, "_PID": "1"})]


def docker_halves(first: str, second: str) -> list[str]:
    texts = (first, f"{second}\n")
    return [json.dumps({"log": t, "stream": "stderr", "time": STAMP}, separators=(",", ":")) for t in texts]


@pytest.mark.parametrize(
    ("most", "halves"),
    [
        pytest.param(16_384, lambda a, b: [f"{STAMP} stderr P {a}", f"{STAMP} stderr F {b}"], id="CRI"),
        pytest.param(16_384, docker_halves, id="Docker, 16 kB"),
        pytest.param(4_096, journal_halves, id="journald's JSON"),
    ],
)
async def test_failure_over_a_cut_has_its_name_in_a_followed_log(
    tmp_path: Path, most: int, halves: Callable[[str, str], list[str]]
) -> None:
    """Both halves arrive apart, as in a run. Read each by itself, `MemoryError` would be one of the host."""
    log, kept = tmp_path / "engine.log", tmp_path / "logs" / "server.log"
    log.touch()
    begin, cause = (
        "(EngineCore pid=9) ERROR 04-02 11:15:40 [core.py:708] step ",
        "torch.OutOfMemoryError: CUDA out of memory.",
    )
    text = f"{begin}{'x' * (most - len(begin) - 12)} {cause}"
    follower = LogFollower(FollowedLog(str(log), "server", "server"), kept.parent, EmittedRows().append, Redactor())
    follower.start()
    for n, half in enumerate(halves(text[:most], text[most:]), 1):
        with log.open("a") as file:
            file.write(f"{half}\n")
        await until_async(lambda n=n: kept.exists() and kept.read_text().count("\n") == n)  # type: ignore[misc]
    await follower.stop()
    judge = Judge(Terms("test"))
    for line in LogTail(kept, kept.with_suffix(".index.jsonl")).rows(final=True):
        judge.fold({"file": "server.log", **line})
    assert [f.id for f in judge.verdict().failures] == ["cuda_oom_runtime"]
    assert [f[0] for f in in_a_run([text[:most], text[most:]], polled=False)] == ["host_oom_python"]
