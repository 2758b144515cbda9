"""Attacks on a real server: what is sent, what is recorded, what is taken back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from loadchaos.chaos import AttackedReplica, AttackInjector
from loadchaos.core.errors import OptionError
from loadchaos.core.redact import Redactor
from loadchaos.profile.attack import AttackPlan
from loadchaos.server.dialects import DIALECTS

OK = (200, b"")


@contextlib.asynccontextmanager
async def attacking(server: Any, rows: Any, *specs: Any, **more: Any) -> AsyncIterator[AttackInjector]:
    dialect = DIALECTS[more.pop("dialect", "vllm")]
    replicas = more.pop("replicas", [AttackedReplica("a", server.url)])
    headers = {"Authorization": "Bearer planted-secret"}
    attacks = AttackInjector(specs, dialect, replicas, rows.append, Redactor(["planted-secret"]), headers, **more)
    try:
        yield attacks
    finally:
        await attacks.stop()


def test_an_attack_is_repeated_with_begin_and_end_rows(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers["/reset_mm_cache"] = OK
        async with attacking(server, rows, {"admin": "reset_mm_cache", "every_s": 0.05}) as attacks:
            await attacks.start()
            await rows.until(lambda: len(rows.of(what="end")) >= 3)
        begin, end = rows[0], rows.of(what="end")[0]
        assert (begin["row"], begin["what"], begin["ok"], begin["n"]) == ("attack", "begin", None, 1)
        assert (end["ok"], end["status"], end["replica"], end["attack"]) == (True, 200, "a", "reset_mm_cache")
        assert end["took_ns"] > 0
        assert "mm_cache_desync_request" in begin["effects"]
        assert "encoder_cache_miss" not in begin["effects"]  # it leaves the encoder cache alone
        assert server.asked[0][4]["Authorization"] == "Bearer planted-secret"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((404, b'{"detail":"Not Found"}'), "VLLM_SERVER_DEV_MODE=1"),
        ((405, b'{"detail":"Method Not Allowed"}'), "Method Not Allowed"),
        ((200, b'{"success":false}'), '{"success":false}'),
        ((500, b"key planted-secret"), "key [redacted]"),
    ],
)
def test_an_answer_that_is_no_success_is_told_as_it_is(
    server: Any, rows: Any, answer: tuple[int, bytes], text: str
) -> None:
    async def story() -> None:
        server.answers["/reset_prefix_cache"] = answer
        async with attacking(server, rows, {"admin": "reset_prefix_cache"}) as attacks:
            await attacks.start()
            await rows.until(lambda: rows.of(what="end"))
        end = rows.of(what="end")[0]
        assert end["ok"] is False
        assert end["status"] == answer[0]
        assert text in end["text"]

    asyncio.run(story())


def test_a_server_that_is_not_there_is_told_as_not_done(server: Any, rows: Any) -> None:
    async def story() -> None:
        nobody = [AttackedReplica("a", "http://127.0.0.1:9")]
        async with attacking(server, rows, {"admin": "reset_mm_cache"}, replicas=nobody) as attacks:
            await attacks.start()
            await rows.until(lambda: rows.of(what="end"))
        end = rows.of(what="end")[0]
        assert (end["ok"], end["status"]) == (False, None)
        assert "Connect" in end["text"]

    asyncio.run(story())


def test_parameters_go_into_the_query_and_add_their_effects(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers["/reset_prefix_cache"] = (200, b'{"success":true}')
        spec = {"admin": "reset_prefix_cache", "params": {"reset_running_requests": True}}
        async with attacking(server, rows, spec) as attacks:
            await attacks.start()
            await rows.until(lambda: rows.of(what="end"))
        assert server.asked[0][2] == {"reset_running_requests": "true"}
        assert "async_placeholder_underflow" in rows[0]["effects"]

    asyncio.run(story())


def test_parameters_of_an_operation_with_a_body_go_there(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers["/abort_requests"] = (200, b'{"status":"aborted","aborted":2}')
        async with attacking(
            server, rows, {"admin": "abort_requests"}, {"admin": "abort_requests", "params": {"request_ids": ["x"]}}
        ) as attacks:
            await attacks.start()
            await rows.until(lambda: len(rows.of(what="end")) == 2)
        assert {"abort_all": True} in [asked[3] for asked in server.asked]
        assert {"request_ids": ["x"]} in [asked[3] for asked in server.asked]

    asyncio.run(story())


def test_a_profile_s_parameters_keep_their_kind_in_a_body_and_repeat_in_a_query(server: Any, rows: Any) -> None:
    def planned(**entry: Any) -> dict[str, Any]:
        return AttackPlan.model_validate(entry).spec()

    async def story() -> None:
        server.answers |= {"/scale_elastic_ep": OK, "/wake_up": OK}
        specs = [
            planned(admin="scale_elastic_ep", params={"new_data_parallel_size": 2}),
            planned(admin="wake_up", params={"tags": ["weights", "kv_cache"]}),
        ]
        async with attacking(server, rows, *specs) as attacks:
            await attacks.start()
            await rows.until(lambda: len(rows.of(what="end")) == 2)
        assert {"new_data_parallel_size": 2} in [asked[3] for asked in server.asked]
        assert server.queries["/wake_up"] == "tags=weights&tags=kv_cache"

    asyncio.run(story())


def test_a_404_of_the_operation_itself_is_no_missing_endpoint(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers["/v1/load_lora_adapter"] = (404, b'{"error":{"message":"No adapter found for /nonexistent"}}')
        async with attacking(server, rows, {"admin": "load_lora_adapter", "params": {"lora_name": "x"}}) as attacks:
            await attacks.start()
            await rows.until(lambda: rows.of(what="end"))
        assert rows.of(what="end")[0]["text"] == '{"error":{"message":"No adapter found for /nonexistent"}}'

    asyncio.run(story())


def test_what_holds_is_taken_back_and_its_window_ends_then(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers |= {"/pause": (200, b'{"status":"paused"}'), "/resume": (200, b'{"status":"resumed"}')}
        async with attacking(server, rows, {"admin": "pause", "params": {"mode": "keep"}, "hold_s": 0.1}) as attacks:
            await attacks.start()
            await rows.until(lambda: rows.of(what="end"))
        assert [r["what"] for r in rows] == ["begin", "undo", "end"]
        assert server.paths() == ["/pause", "/resume"]
        assert server.asked[0][2] == {"mode": "keep"}
        assert rows[2]["text"] == '{"status":"paused"}'
        assert rows[2]["at_ns"] - rows[0]["at_ns"] >= 0.1e9
        assert "finish_abort" not in rows[0]["effects"]

    asyncio.run(story())


def test_what_still_holds_at_the_stop_is_taken_back(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers |= {"/sleep": OK, "/wake_up": OK}
        async with attacking(server, rows, {"admin": "sleep", "hold_s": 3600}) as attacks:
            await attacks.start()
            await rows.until(lambda: "/sleep" in server.paths())
        assert server.paths() == ["/sleep", "/wake_up"]
        assert rows.of(what="undo")[0]["ok"] is True
        assert "finish_abort" in rows[0]["effects"]

    asyncio.run(story())


def test_an_act_follows_each_time_another_was_done_or_took_hold(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers |= {"/sleep": OK, "/wake_up": OK, "/reset_mm_cache": OK, "/reset_encoder_cache": OK}
        specs = [
            {"admin": "sleep", "hold_s": 1.0},
            {"admin": "reset_mm_cache", "trigger": ("after", "wake_up")},
            {"admin": "reset_encoder_cache", "trigger": ("during", "sleep"), "times": 1},
        ]
        replicas = [AttackedReplica("a", server.url), AttackedReplica("b", server.url)]
        async with attacking(server, rows, *specs, replicas=replicas) as attacks:
            await attacks.start()
            await rows.until(
                lambda: {r["replica"] for r in rows.of(attack="reset_mm_cache", what="end")} == {"a", "b"}, 30
            )
        asleep = [(r["attack"], r["what"]) for r in rows if r["replica"] == "a"]
        assert asleep.index(("sleep", "undo")) < asleep.index(("reset_mm_cache", "begin"))
        assert {r["n"] for r in rows.of(attack="reset_encoder_cache")} == {1}
        where = rows.of(attack="reset_encoder_cache", what="end")[0]["replica"]
        held = [(r["attack"], r["what"]) for r in rows if r["replica"] == where]
        assert (
            held.index(("sleep", "begin")) < held.index(("reset_encoder_cache", "begin")) < held.index(("sleep", "end"))
        )

    asyncio.run(story())


def test_waiting_for_an_act_that_nobody_does_is_refused(server: Any, rows: Any) -> None:
    async def story() -> None:
        async with attacking(
            server, rows, {"admin": "pause"}, {"admin": "abort_requests", "trigger": ("after", "wake_up")}
        ):
            pass

    with pytest.raises(
        OptionError, match="no attack of this profile does that; there are: abort_requests, pause, resume"
    ):
        asyncio.run(story())


def test_a_random_replica_is_each_of_them_some_time(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers["/reset_mm_cache"] = OK
        replicas = [AttackedReplica(name, server.url) for name in "abc"]
        spec = {"admin": "reset_mm_cache", "on": "random", "every_s": 0.02}
        async with attacking(server, rows, spec, replicas=replicas) as attacks:
            await attacks.start()
            await rows.until(lambda: {r["replica"] for r in rows.of(what="end")} == {"a", "b", "c"})
        assert all(len({r["replica"] for r in rows.of(n=n)}) == 1 for n in {r["n"] for r in rows})

    asyncio.run(story())


def test_a_call_without_an_answer_is_taken_back_too(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers |= {"/pause": OK, "/resume": OK}
        server.slow_s["/pause"] = 0.5
        async with attacking(server, rows, {"admin": "pause"}) as attacks:
            await attacks.start()
            await rows.until(lambda: server.asked)
        assert server.paths() == ["/pause", "/resume"]
        assert rows.of(what="end")[0]["ok"] is None

    asyncio.run(story())


def test_a_pause_that_was_refused_is_not_taken_back(server: Any, rows: Any) -> None:
    async def story() -> None:
        async with attacking(server, rows, {"admin": "pause"}) as attacks:
            await attacks.start()
            await rows.until(lambda: rows.of(what="end"))
        assert server.paths() == ["/pause"]

    asyncio.run(story())


def test_while_the_server_is_down_nothing_is_sent_and_skipped_rows_are_few(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers["/reset_mm_cache"] = OK
        async with attacking(server, rows, {"admin": "reset_mm_cache", "every_s": 0.02}) as attacks:
            attacks.pause("the server is down")
            await attacks.start()
            await rows.until(lambda: rows.of(what="skipped"))
            await asyncio.sleep(0.2)
            assert not server.asked
            assert len(rows) == 1
            assert rows[0]["text"] == "the server is down"
            attacks.resume()
            await rows.until(lambda: rows.of(what="end"))

    asyncio.run(story())


def test_what_is_in_force_is_not_begun_a_second_time(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers["/pause"] = server.answers["/resume"] = OK
        async with attacking(server, rows) as attacks:
            attacks.fire("admin", "pause", {})
            attacks.fire("admin", "pause", {})
            await rows.until(lambda: rows.of(what="skipped"))
            assert (rows.of(what="skipped")[0]["text"], len(rows.of(what="begin"))) == ("it is still in force", 1)
        assert sorted(r["what"] for r in rows if r["n"] == -1) == ["begin", "end", "undo"]

    asyncio.run(story())


def test_replicas_are_attacked_as_on_says(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers["/reset_mm_cache"] = OK
        replicas = [AttackedReplica(name, server.url) for name in "abc"]
        for on, expected in (("each", {"a", "b", "c"}), ("one", {"a"}), ("b", {"b"})):
            rows.clear()
            spec = SimpleNamespace(admin="reset_mm_cache", on=on, params={}, every_s=None, jitter=0.0)
            async with attacking(server, rows, spec, replicas=replicas) as attacks:
                await attacks.start()
                await rows.until(lambda names=expected: len(rows.of(what="end")) == len(names))
            assert {r["replica"] for r in rows} == expected

    asyncio.run(story())


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"admin": "reset_mm_cash"}, "did you mean reset_mm_cache"),
        ({"admin": "reset_mm_cache", "on": "z"}, "each, one, random or a replica"),
        ({"admin": "collective_rpc", "params": {"method": "__del__"}}, "method is one of check_health"),
        ({"every_s": 2}, "an attack names what it is"),
    ],
)
def test_a_spec_that_cannot_be_done_is_refused_with_what_can(server: Any, rows: Any, spec: Any, text: str) -> None:
    async def story() -> None:
        async with attacking(server, rows, spec):
            pass

    with pytest.raises(OptionError, match=text):
        asyncio.run(story())


def test_a_dialect_without_admin_operations_says_so(server: Any, rows: Any) -> None:
    async def story() -> None:
        async with attacking(server, rows, {"admin": "reset_mm_cache"}, dialect="openai"):
            pass

    with pytest.raises(OptionError, match="knows no admin operations"):
        asyncio.run(story())


def test_the_preflight_finds_what_is_there_and_does_nothing(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers["/reset_mm_cache"] = OK
        specs = [{"admin": "reset_mm_cache"}, {"admin": "sleep"}]
        async with attacking(server, rows, *specs) as attacks:
            (first, there), (second, missing) = await attacks.preflight()
        assert (first, there.ok) == ("reset_mm_cache", True)
        assert (second, missing.ok) == ("sleep", False)
        assert "VLLM_SERVER_DEV_MODE=1" in missing.text
        assert {method for method, *_ in server.asked} == {"GET"}

    asyncio.run(story())


def test_the_preflight_says_when_the_version_is_too_old(server: Any, rows: Any) -> None:
    async def story() -> None:
        async with attacking(server, rows, {"admin": "reset_mm_cache"}, version="0.11.0") as attacks:
            _, done = (await attacks.preflight())[0]
        assert "it came with 0.11.2, this one is 0.11.0" in done.text

    asyncio.run(story())


def test_the_preflight_never_gets_a_path_whose_get_acts(server: Any, rows: Any) -> None:
    async def story() -> None:
        server.answers["/flush_cache"] = OK
        async with attacking(server, rows, {"admin": "flush_cache"}, dialect="sglang") as attacks:
            _, done = (await attacks.preflight())[0]
        assert done.ok is True
        assert [method for method, *_ in server.asked] == ["OPTIONS"]

    asyncio.run(story())


def test_every_undo_is_an_operation_of_its_dialect() -> None:
    for dialect in DIALECTS.values():
        for name, operation in dialect.admin.items():
            assert name == operation.name
            assert operation.undo is None or operation.undo in dialect.admin
