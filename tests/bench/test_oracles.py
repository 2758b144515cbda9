"""The bench of the oracles: virtual time, faults that are thinned out, and one trial of each sort."""

import asyncio
import contextlib
import importlib
import io
import sys
import time

import pytest

from bench.oracles import Case, trial, whole_trial
from bench.virtual_server import Injection, virtual_time
from loadchaos.simulator.engine.types import RequestOutput


def test_virtual_time_jumps_over_waiting() -> None:
    begin_s = time.perf_counter()
    with virtual_time() as runner:
        before_s = time.monotonic()
        runner.run(asyncio.sleep(3600))
        assert 3600 <= time.monotonic() - before_s < 3601
    assert time.perf_counter() - begin_s < 30


def test_injection_keeps_a_share_of_the_faults_and_counts_them() -> None:
    injection = Injection(keep=0.25)
    passed = [injection.filtered(RequestOutput(f"r{n}", 1, fault="derailed")) for n in range(400)]
    spoiled = {o.request_id for o in passed if o is not None and o.fault}
    assert injection.touched == spoiled
    assert 60 < len(spoiled) < 140
    assert all(o is not None and o.new_tokens == 1 for o in passed), "the others keep their tokens"
    assert Injection(keep=0.0).filtered(RequestOutput("a", 0, swapped_with="b")) is None


def test_trial_finds_a_defect_within_500_requests() -> None:
    result = trial(Case("streams_swapped"), seed=1)
    assert result.found
    assert result.requests < 500


def test_trial_of_a_healthy_server_gives_no_alarm() -> None:
    result = whole_trial(Case(""), seed=1, limit_s=1.5)
    assert result.found == []
    assert min(result.requests, result.questions) > 20
    assert result.touched == 0
    assert {check.verdict for check in result.checks} == {"pass"}


def test_trial_finds_wrong_state_that_the_server_keeps() -> None:
    result = whole_trial(Case("poisoned_prefix_cache"), seed=1, limit_s=1.5)
    assert ("wrong_answer", "keyed") in result.found


def test_virtual_time_forgets_no_module_that_was_imported_meanwhile() -> None:
    sys.modules.pop("this", None)
    with virtual_time(), contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module("this")
        with pytest.raises(ImportError):
            importlib.import_module("sniffio")
    assert "this" in sys.modules
