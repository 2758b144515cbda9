import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from loadchaos.chaos.base import AttackedReplica
from loadchaos.chaos.injector import AttackInjector, AttackTarget
from loadchaos.core.errors import OptionError
from loadchaos.core.redact import Redactor
from loadchaos.profile.attack import AttackPlan
from loadchaos.server.dialects import DIALECTS
from tests.chaos.conftest import AdminServer
from tests.rows import EmittedRows as Rows

OK = (200, b"")


@contextlib.asynccontextmanager
async def attacking(server: AdminServer, rows: Rows, *specs: Any, **target: Any) -> AsyncIterator[AttackInjector]:
    dialect = DIALECTS[target.pop("dialect", "vllm")]
    replicas = target.pop("replicas", [AttackedReplica("a", server.url)])
    headers = {"Authorization": "Bearer planted-secret"}
    attacked = AttackTarget(dialect, replicas, headers, **target)
    attacks = AttackInjector(specs, attacked, rows.append, Redactor(["planted-secret"]))
    try:
        yield attacks
    finally:
        await attacks.stop()


async def acted(server: AdminServer, rows: Rows, *specs: Any, **target: Any) -> None:
    """Run attacks until each has ended once."""
    async with attacking(server, rows, *specs, **target) as attacks:
        await attacks.start()
        await rows.until(lambda: len(rows.of(what="end")) == len(specs))


async def test_injector_repeats_an_attack_with_begin_and_end_rows(server: AdminServer, rows: Rows) -> None:
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


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((404, b'{"detail":"Not Found"}'), "VLLM_SERVER_DEV_MODE=1"),
        ((405, b'{"detail":"Method Not Allowed"}'), "Method Not Allowed"),
        ((200, b'{"success":false}'), '{"success":false}'),
        ((500, b"key planted-secret"), "key [redacted]"),
    ],
)
async def test_admin_attack_records_a_failed_answer_unchanged(
    server: AdminServer, rows: Rows, answer: tuple[int, bytes], text: str
) -> None:
    server.answers["/reset_prefix_cache"] = answer
    await acted(server, rows, {"admin": "reset_prefix_cache"})
    end = rows.of(what="end")[0]
    assert end["ok"] is False
    assert end["status"] == answer[0]
    assert text in end["text"]


async def test_admin_attack_on_a_closed_port_is_not_done(server: AdminServer, rows: Rows) -> None:
    closed = [AttackedReplica("a", "http://127.0.0.1:9")]
    await acted(server, rows, {"admin": "reset_mm_cache"}, replicas=closed)
    end = rows.of(what="end")[0]
    assert (end["ok"], end["status"]) == (False, None)
    assert "Connect" in end["text"]


async def test_admin_attack_params_go_into_the_query_and_add_effects(server: AdminServer, rows: Rows) -> None:
    server.answers["/reset_prefix_cache"] = (200, b'{"success":true}')
    spec = {"admin": "reset_prefix_cache", "params": {"reset_running_requests": True}}
    await acted(server, rows, spec)
    assert server.asked[0][2] == {"reset_running_requests": "true"}
    assert "async_placeholder_underflow" in rows[0]["effects"]


async def test_admin_attack_params_go_into_the_body_where_there_is_one(server: AdminServer, rows: Rows) -> None:
    server.answers["/abort_requests"] = (200, b'{"status":"aborted","aborted":2}')
    some = {"admin": "abort_requests", "params": {"request_ids": ["x"]}}
    await acted(server, rows, {"admin": "abort_requests"}, some)
    assert {"abort_all": True} in [asked[3] for asked in server.asked]
    assert {"request_ids": ["x"]} in [asked[3] for asked in server.asked]


async def test_admin_attack_params_keep_their_type_in_a_body_and_repeat_in_a_query(
    server: AdminServer, rows: Rows
) -> None:
    def planned(**entry: Any) -> dict[str, Any]:
        return AttackPlan.model_validate(entry).spec()

    server.answers |= {"/scale_elastic_ep": OK, "/wake_up": OK}
    specs = [
        planned(admin="scale_elastic_ep", params={"new_data_parallel_size": 2}),
        planned(admin="wake_up", params={"tags": ["weights", "kv_cache"]}),
    ]
    await acted(server, rows, *specs)
    assert {"new_data_parallel_size": 2} in [asked[3] for asked in server.asked]
    assert server.queries["/wake_up"] == "tags=weights&tags=kv_cache"


async def test_admin_attack_404_of_the_operation_is_no_missing_endpoint(server: AdminServer, rows: Rows) -> None:
    server.answers["/v1/load_lora_adapter"] = (404, b'{"error":{"message":"No adapter found for /nonexistent"}}')
    await acted(server, rows, {"admin": "load_lora_adapter", "params": {"lora_name": "x"}})
    assert rows.of(what="end")[0]["text"] == '{"error":{"message":"No adapter found for /nonexistent"}}'


async def test_injector_undoes_an_act_that_holds_before_its_end_row(server: AdminServer, rows: Rows) -> None:
    server.answers |= {"/pause": (200, b'{"status":"paused"}'), "/resume": (200, b'{"status":"resumed"}')}
    await acted(server, rows, {"admin": "pause", "params": {"mode": "keep"}, "for_s": 0.1})
    assert [r["what"] for r in rows] == ["begin", "undo", "end"]
    assert server.paths() == ["/pause", "/resume"]
    assert server.asked[0][2] == {"mode": "keep"}
    assert rows[2]["text"] == '{"status":"paused"}'
    assert rows[2]["at_ns"] - rows[0]["at_ns"] >= 0.1e9
    assert "finish_abort" not in rows[0]["effects"]


async def test_injector_stop_undoes_acts_that_still_hold(server: AdminServer, rows: Rows) -> None:
    server.answers |= {"/sleep": OK, "/wake_up": OK}
    async with attacking(server, rows, {"admin": "sleep", "for_s": 3600}) as attacks:
        await attacks.start()
        await rows.until(lambda: "/sleep" in server.paths())
    assert server.paths() == ["/sleep", "/wake_up"]
    assert rows.of(what="undo")[0]["ok"] is True
    assert "finish_abort" in rows[0]["effects"]


async def test_injector_triggers_follow_another_act(server: AdminServer, rows: Rows) -> None:
    server.answers |= {"/sleep": OK, "/wake_up": OK, "/reset_mm_cache": OK, "/reset_encoder_cache": OK}
    specs = [
        {"admin": "sleep", "for_s": 1.0},
        {"admin": "reset_mm_cache", "trigger": ("after", "wake_up")},
        {"admin": "reset_encoder_cache", "trigger": ("during", "sleep"), "times": 1},
    ]
    replicas = [AttackedReplica("a", server.url), AttackedReplica("b", server.url)]
    async with attacking(server, rows, *specs, replicas=replicas) as attacks:
        await attacks.start()
        await rows.until(lambda: {r["replica"] for r in rows.of(attack="reset_mm_cache", what="end")} == {"a", "b"}, 30)
    asleep = [(r["attack"], r["what"]) for r in rows if r["replica"] == "a"]
    assert asleep.index(("sleep", "undo")) < asleep.index(("reset_mm_cache", "begin"))
    assert {r["n"] for r in rows.of(attack="reset_encoder_cache")} == {1}
    where = rows.of(attack="reset_encoder_cache", what="end")[0]["replica"]
    held = [(r["attack"], r["what"]) for r in rows if r["replica"] == where]
    assert held.index(("sleep", "begin")) < held.index(("reset_encoder_cache", "begin")) < held.index(("sleep", "end"))


async def test_injector_refuses_a_trigger_that_no_attack_fires(server: AdminServer, rows: Rows) -> None:
    with pytest.raises(
        OptionError, match="no attack of this profile does that; there are: abort_requests, pause, resume"
    ):
        async with attacking(
            server, rows, {"admin": "pause"}, {"admin": "abort_requests", "trigger": ("after", "wake_up")}
        ):
            pass


async def test_injector_on_random_reaches_every_replica(server: AdminServer, rows: Rows) -> None:
    server.answers["/reset_mm_cache"] = OK
    replicas = [AttackedReplica(name, server.url) for name in "abc"]
    spec = {"admin": "reset_mm_cache", "on": "random", "every_s": 0.02}
    async with attacking(server, rows, spec, replicas=replicas) as attacks:
        await attacks.start()
        await rows.until(lambda: {r["replica"] for r in rows.of(what="end")} == {"a", "b", "c"})
    assert all(len({r["replica"] for r in rows.of(n=n)}) == 1 for n in {r["n"] for r in rows})


async def test_injector_skips_a_replica_without_leave(server: AdminServer, rows: Rows) -> None:
    """It asks before each act: a listener may be exchanged at any time."""
    server.answers["/reset_mm_cache"] = OK
    refusals = iter([None, "It forwards."])
    refusal = {"refusal": lambda _url: next(refusals, None)}
    async with attacking(server, rows, {"admin": "reset_mm_cache", "every_s": 0.05}, **refusal) as attacks:
        await attacks.start()
        await rows.until(lambda: len(rows.of(what="end")) == 2)
    assert [row["what"] for row in rows[:4]] == ["begin", "end", "skipped", "begin"]
    assert rows[2]["text"] == "It forwards."
    assert len(server.asked) == len(rows.of(what="begin"))


async def test_injector_does_not_undo_on_another_server(server: AdminServer, rows: Rows) -> None:
    server.answers |= {"/pause": OK, "/resume": OK}
    refusals = iter([None])  # a tunnel takes the place of the server during the hold
    refusal = {"refusal": lambda _url: next(refusals, "It forwards.")}
    await acted(server, rows, {"admin": "pause", "hold": 0.01}, **refusal)
    assert [asked[1] for asked in server.asked] == ["/pause"]
    assert {(undo["ok"], undo["text"]) for undo in rows.of(what="undo")} == {(False, "It forwards.")}


async def test_injector_undoes_a_call_without_an_answer(server: AdminServer, rows: Rows) -> None:
    server.answers |= {"/pause": OK, "/resume": OK}
    server.slow_s["/pause"] = 0.5
    async with attacking(server, rows, {"admin": "pause"}) as attacks:
        await attacks.start()
        await rows.until(lambda: server.asked)
    assert server.paths() == ["/pause", "/resume"]
    assert rows.of(what="end")[0]["ok"] is None


async def test_injector_does_not_undo_a_refused_act(server: AdminServer, rows: Rows) -> None:
    await acted(server, rows, {"admin": "pause"})
    assert server.paths() == ["/pause"]


async def test_injector_pause_sends_nothing_and_writes_few_skipped_rows(server: AdminServer, rows: Rows) -> None:
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


async def test_injector_skips_an_act_that_is_still_in_force(server: AdminServer, rows: Rows) -> None:
    server.answers["/pause"] = server.answers["/resume"] = OK
    async with attacking(server, rows) as attacks:
        attacks.fire("admin", "pause", {})
        attacks.fire("admin", "pause", {})
        await rows.until(lambda: rows.of(what="skipped"))
        assert (rows.of(what="skipped")[0]["text"], len(rows.of(what="begin"))) == (
            "the act before is still in force",
            1,
        )
    assert sorted(r["what"] for r in rows if r["n"] == -1) == ["begin", "end", "undo"]


async def test_injector_on_selects_the_replicas(server: AdminServer, rows: Rows) -> None:
    server.answers["/reset_mm_cache"] = OK
    replicas = [AttackedReplica(name, server.url) for name in "abc"]
    for on, expected in (("each", {"a", "b", "c"}), ("one", {"a"}), ("b", {"b"})):
        rows.clear()
        spec: dict[str, Any] = {"admin": "reset_mm_cache", "on": on, "params": {}, "every_s": None, "jitter": 0.0}
        async with attacking(server, rows, spec, replicas=replicas) as attacks:
            await attacks.start()
            await rows.until(lambda names=expected: len(rows.of(what="end")) == len(names))  # type: ignore[misc]  # its default is of the loop
        assert {r["replica"] for r in rows} == expected


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"admin": "reset_mm_cash"}, "did you mean reset_mm_cache"),
        ({"admin": "reset_mm_cache", "on": "z"}, "each, one, random or a replica"),
        ({"admin": "collective_rpc", "params": {"method": "__del__"}}, "method is one of check_health"),
        ({"every_s": 2}, "an attack needs its kind"),
    ],
)
async def test_injector_refuses_a_bad_spec_and_names_valid_ones(
    server: AdminServer, rows: Rows, spec: Any, text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        async with attacking(server, rows, spec):
            pass


async def test_injector_refuses_admin_attacks_of_a_dialect_without_them(server: AdminServer, rows: Rows) -> None:
    with pytest.raises(OptionError, match="has no admin operations"):
        async with attacking(server, rows, {"admin": "reset_mm_cache"}, dialect="openai"):
            pass


async def test_preflight_finds_endpoints_without_calling_them(server: AdminServer, rows: Rows) -> None:
    server.answers["/reset_mm_cache"] = OK
    specs = [{"admin": "reset_mm_cache"}, {"admin": "sleep"}]
    async with attacking(server, rows, *specs) as attacks:
        (first, found), (second, missing) = await attacks.preflight()
    assert (first, found.ok) == ("reset_mm_cache", True)
    assert (second, missing.ok) == ("sleep", False)
    assert "VLLM_SERVER_DEV_MODE=1" in missing.text
    assert {method for method, *_ in server.asked} == {"GET"}


async def test_preflight_names_the_version_that_an_operation_needs(server: AdminServer, rows: Rows) -> None:
    async with attacking(server, rows, {"admin": "reset_mm_cache"}, version="0.11.0") as attacks:
        _, done = (await attacks.preflight())[0]
    assert "it exists from version 0.11.2, this server is 0.11.0" in done.text


async def test_preflight_never_gets_a_path_whose_get_acts(server: AdminServer, rows: Rows) -> None:
    server.answers["/flush_cache"] = OK
    async with attacking(server, rows, {"admin": "flush_cache"}, dialect="sglang") as attacks:
        _, done = (await attacks.preflight())[0]
    assert done.ok is True
    assert [method for method, *_ in server.asked] == ["OPTIONS"]


def test_dialect_undo_operations_exist() -> None:
    for dialect in DIALECTS.values():
        for name, operation in dialect.admin.items():
            assert name == operation.name
            assert operation.undo is None or operation.undo in dialect.admin
