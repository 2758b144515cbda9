import pytest

from loadchaos.core.model import KERNEL_LOG
from tests.analysis.conftest import History

OURS, XID = (
    "[ 4.0] Memory cgroup out of memory: Killed process 11 (VLLM::EngineCor)",
    "[ 4.0] NVRM: Xid (PCI:0:3b:00): 79, x",
)
OTHERS = "[ 4.0] oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/x,task=java,pid=4242,uid=0"


def says(history: History, text: str) -> None:
    history.add("log", source="kmsg:/dev/kmsg", file=KERNEL_LOG, line=1, text=text)


@pytest.mark.parametrize(("text", "name"), [(OURS, "oom_killer"), (XID, "xid_79")])
def test_kernel_log_names_a_death_without_a_server_log(history: History, text: str, name: str) -> None:
    history.processes(engine="R")
    ids = history.begin().work(5).send(3)
    says(history, text)
    history.die(ids).run(5)
    [failure] = [f for f in history.end().verdict()["failures"] if f["severity"] == "engine_death"]
    assert (failure["id"], failure["evidence"]["source"], failure["count"]) == (name, KERNEL_LOG, 1)


def test_kernel_log_ignores_oom_kills_of_other_containers(history: History) -> None:
    history.processes(engine="R").begin().work(5)
    says(history, OTHERS)
    assert history.work(20).end().verdict()["failures"] == []


def test_kernel_log_xid_without_a_death_is_a_failure_of_the_node(history: History) -> None:
    history.begin().work(5)
    says(history, XID)
    [failure] = history.work(20).end().verdict()["failures"]
    assert (failure["id"], failure["severity"]) == ("xid_79", "node")


def test_kernel_log_is_no_log_of_the_server(history: History) -> None:
    ids = history.begin().work(5).send(3)
    says(history, OTHERS)
    [failure] = history.die(ids).run(5).end().verdict()["failures"]
    assert "Pass --server-log" in failure["remedy"] or failure["id"] == "engine_dead_error"
