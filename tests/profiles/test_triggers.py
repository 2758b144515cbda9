"""Profiles by trigger: with the planted bug, without it, without the trigger.

Whole runs of the embedded server, shortened by --set.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.profiles.test_profile_runs import run


@dataclass(frozen=True)
class Trigger:
    """A profile, what it finds, and how its trigger is taken away.

    Args:
        name: the profile.
        finds: id of the failure that its planted bug causes.
        short: overrides that shorten it.
        absent: overrides that take the trigger away.
        missing: the check that then is unknown.
    """

    name: str
    finds: str
    short: tuple[str, ...]
    absent: tuple[str, ...]
    missing: str


TRIGGERS = (
    Trigger(
        "abort_storm",
        "lost_requests_held",
        ("load.0.for=1s", "load.1.repeat=1", "load.2.requests=8", "exposure.at_least=200"),
        ("target.embedded.flags.max_num_seqs=1024", "load.1.burst=20", "exposure.at_least=10"),
        "requires queueing",
    ),
    Trigger(
        "kv_pressure",
        "kv_capacity_deadlock",
        (
            "load.0.for=1s",
            "load.1.requests=60",
            "limits.first_byte=20s",
            "limits.between_bytes=20s",
            "exposure.at_least=10",
            "load.2.requests=1",
        ),
        ("target.embedded.flags.num_gpu_blocks=8192", "target.embedded.flags.speed=4"),
        "requires preemption",
    ),
    Trigger(
        "prefix_cache",
        "error_in_kv_cache",
        ("load.0.requests=10", "load.1.requests=200", "exposure.at_least=100"),
        ("target.embedded.flags.enable_prefix_caching=false",),
        "requires prefix_cache_hits",
    ),
    Trigger(
        "long_context",
        "index_oob_indexkernel",
        ("load.1.requests=30",),
        ("target.embedded.flags.max_model_len=1024",),
        "exposure",
    ),
    Trigger(
        "engine_pause",
        "unexplained_stalled",
        ("load.0.for=25s", "limits.first_byte=12s", "load.1.requests=8", "attacks.1.at=14s", "exposure.at_least=3"),
        ("attacks=[]",),
        "requires development_endpoints",
    ),
    Trigger(
        "lora_thrash",
        "adapter_ignored",
        ("load.0.for=1s", "load.1.for=12s"),
        ("target.embedded.flags.lora_modules=",),
        "requires lora_adapters",
    ),
    Trigger(
        "tool_marks",
        "schema_violated",
        (),
        ("traffic.0.output.max=2", "traffic.1.output.max=2", "traffic.2.output.max=2"),
        "exposure",
    ),
    Trigger(
        "http_abuse",
        "alive_but_hung",
        ("load.0.for=12s", "load.1.requests=8", "limits.first_byte=8s", "exposure.at_least=30"),
        ("traffic.1.weight=0", "traffic.2.weight=0", "traffic.3.weight=0", "traffic.4.weight=0"),
        "exposure",
    ),
)
BY_NAME = pytest.mark.parametrize("trigger", TRIGGERS, ids=[t.name for t in TRIGGERS])


@pytest.mark.slow
@BY_NAME
def test_trigger_profile_finds_its_planted_bug(trigger: Trigger, tmp_path: Path) -> None:
    code, verdict, text = run(tmp_path, trigger.name, *trigger.short)
    assert (code, verdict["verdict"]) == (1, "fail"), text
    assert trigger.finds in {f["id"] for f in verdict["failures"]}, text


@pytest.mark.slow
@BY_NAME
def test_trigger_profile_passes_without_the_bug(trigger: Trigger, tmp_path: Path) -> None:
    code, verdict, text = run(tmp_path, trigger.name, "target.embedded.defects=[]", *trigger.short)
    assert (code, verdict["verdict"], verdict["failures"]) == (0, "pass", []), text


@pytest.mark.slow
@BY_NAME
def test_trigger_profile_is_unknown_without_its_trigger(trigger: Trigger, tmp_path: Path) -> None:
    overrides = ("target.embedded.defects=[]", *trigger.short, *trigger.absent)
    code, verdict, text = run(tmp_path, trigger.name, *overrides)
    assert (code, verdict["verdict"]) == (3, "unknown"), text
    assert trigger.missing in {c["name"] for c in verdict["checks"] if c["verdict"] == "unknown"}
