"""Property: a healthy server is never called dead or hung."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from loadchaos.analysis.state.machine import StateMachine
from tests.analysis.conftest import World
from tests.rows import S

NEVER = {"dead", "hung", "terminated"}


def saturate(w: World, rng: random.Random) -> None:
    w.serve(rng.uniform(5, 20), in_flight=rng.randint(1, 500))


def rest(w: World, rng: random.Random) -> None:
    w.idle(rng.uniform(1, 15))


def compile_first_request(w: World, rng: random.Random) -> None:
    """A helper compiles for 15 s: CPU use, no tokens, counters stand still."""
    w.in_flight, w.tokens = rng.randint(1, 50), 0
    generated = w.generated
    w.working = True
    for _ in range(rng.randint(10, 18)):
        w.run(1)
        w.generated = generated
    w.serve(2)


def prefill_128k(w: World, rng: random.Random) -> None:
    """A long prefill: 40 s without a token or a counter."""
    compile_first_request(w, rng)
    w.in_flight, w.tokens, w.working = 1, 0, True
    generated = w.generated
    for _ in range(rng.randint(20, 40)):
        w.run(1)
        w.generated = generated
    w.serve(2)


def stale_gauges(w: World, rng: random.Random) -> None:
    """LMDeploy refreshes gauges every 10 s: they lag behind."""
    w.serve(3)
    w.gauges_stale = True
    w.idle(rng.uniform(3, 12))
    w.gauges_stale = False


def partition(w: World, rng: random.Random) -> None:
    w.in_flight = rng.choice([0, 0, 5, 80])
    w.part().stall(rng.uniform(1, 90)).open(restarted=False).serve(3)


def late_health(w: World, rng: random.Random) -> None:
    w.health = "timeout"
    w.serve(rng.uniform(1, 15), in_flight=300)
    w.health = 200


def gateway_says_503(w: World, rng: random.Random) -> None:
    w.health, w.body = 503, "<html><h1>503 Service Temporarily Unavailable</h1></html>"
    w.serve(rng.uniform(1, 5))
    w.health, w.body = 200, None


def one_refusal(w: World, rng: random.Random) -> None:
    w.serve(1).refuse_probe(rng.choice(["tcp", "health"])).serve(1)


def drains_its_listener(w: World, rng: random.Random) -> None:
    w.tcp = w.health = "refused"
    w.serve(rng.uniform(0.5, 5)).open(restarted=False).serve(1)


def we_sleep(w: World, rng: random.Random) -> None:
    w.serve(1)
    w.now += round(rng.uniform(6, 600) * S)
    w.stall(rng.uniform(0, 3)).serve(1)


def rollout_behind_a_service(w: World, rng: random.Random) -> None:
    old = w.start_time
    for _ in range(rng.randint(3, 10)):
        w.start_time = rng.choice([old, old + 3600])
        w.serve(2)
    w.start_time = old + 3600
    w.serve(3)


def scrape_fails(w: World, rng: random.Random) -> None:
    w.metrics = False
    w.serve(rng.uniform(2, 20))
    w.metrics = True


def pause_attack(w: World, rng: random.Random) -> None:
    n = rng.randint(1, 10**9)
    w.add(
        "attack", attack="pause", n=n, what="begin", replica="server", effects=["alive_but_hung", "stalled", "timeout"]
    )
    w.in_flight = 5
    w.stall(rng.uniform(5, 100))
    w.add("attack", attack="pause", n=n, what="end", ok=True, replica="server", effects=["alive_but_hung", "stalled"])
    w.serve(3)


def worker_of_a_pool_ends(w: World, rng: random.Random) -> None:
    w.serve(1).lose_process(rng.randint(100, 10**6), "other", name="pt_main_thread").serve(1)


def compile_pool_while_engine_waits(w: World, rng: random.Random) -> None:
    """The engine core waits without CPU use while its compiler works."""
    if not w.pids:
        return
    w.serve(2)
    pid = 500
    w.pids[pid] = ("other", "R")
    w.in_flight, w.tokens, w.working = 3, 0, False
    for _ in range(rng.randint(10, 25)):
        w.cpu[pid] = w.cpu.get(pid, 0.0) + 0.9
        w.run(1)
    w.lose_process(pid, "other", name="cc1plus")
    del w.pids[pid], w.cpu[pid]
    w.serve(2)


def canary_beside_nothing(w: World, rng: random.Random) -> None:
    """Only the canary asks, and its first answer compiles for a while."""
    w.idle(1)
    for n in range(rng.randint(2, 6)):
        base = {"n": rng.randint(1, 10**9), "kind": "exact", "when": "load", "word": ""}
        w.add("canary", what="ask", **base)
        w.working = True
        for _ in range(rng.randint(1, 15) if n == 0 else 1):
            w.generated += 40
            w.run(1)
        w.add("canary", what="answer", status=200, text="1 2 3", error="", **base)
        w.idle(rng.uniform(1, 5))


def api_server_prepares_a_long_prompt(w: World, rng: random.Random) -> None:
    """The API server tokenises and decodes images before the engine works."""
    w.serve(2)
    w.in_flight, w.tokens, w.working, w.gauges_stale, w.running = 3, 0, False, True, 0.0
    for _ in range(rng.randint(10, 25)):
        w.cpu[10] = w.cpu.get(10, 0.0) + rng.uniform(0.7, 1.0)
        w.run(1)
    w.gauges_stale = False
    w.serve(2)


def starved(w: World, rng: random.Random) -> None:
    """Other processes hold the CPU: the engine is ready (R) and waits."""
    before = dict(w.pids)
    w.pids = {pid: (role, "R" if role == "engine_core" else state) for pid, (role, state) in before.items()}
    w.serve(2).stall(rng.uniform(2, 30))
    w.pids = before
    w.serve(2)


def waits_for_an_image(w: World, rng: random.Random) -> None:
    """The API server fetches an image from a slow host; nothing computes."""
    w.serve(2)
    w.in_flight, w.tokens, w.working, w.gauges_stale, w.running = 1, 0, False, True, 0.0
    w.run(rng.uniform(3, 8))
    w.gauges_stale = False
    w.serve(2)


def log_quotes_a_crash(w: World, rng: random.Random) -> None:
    """A prompt about a crash is in the log while single requests fail."""
    w.serve(1, in_flight=rng.randint(1, 4))
    w.add("heard", replica="server", what="dead", text="prompt: 'why does EngineDeadError come up?'")
    for _ in range(rng.randint(0, 2)):
        w.add("end", outcome=rng.choice(["http_error", "stream_error", "rejected"]), error="boom")
        w.serve(rng.uniform(0.3, 1))
    w.serve(1)


def prefill_of_many(w: World, rng: random.Random) -> None:
    """Several long prompts at once: no token for half a minute, though others had streamed fast before."""
    w.in_flight, w.tokens, w.working = rng.randint(3, 8), 0, True
    seconds = rng.uniform(5, 30)
    w.waiting_tokens = round(seconds * rng.uniform(1000, 4000))
    generated = w.generated
    for _ in range(round(seconds)):
        w.run(1)
        w.generated = generated
    w.waiting_tokens = 0
    w.serve(3)


def preempts(w: World, rng: random.Random) -> None:
    """The KV cache is full: a few requests get tokens, most wait to be computed again."""
    w.in_flight, w.working = rng.randint(10, 60), True
    for _ in range(rng.randint(3, 8)):
        w.tokens = 0
        w.run(rng.uniform(0.5, 4))
        w.tokens = rng.randint(1, 3)
        w.run(rng.uniform(0.3, 1))
    w.serve(2)


def slow_at_low_concurrency(w: World, rng: random.Random) -> None:
    """One or two requests on a slow machine: seconds between tokens, and many seconds before the first."""
    for _ in range(rng.randint(2, 5)):
        w.in_flight, w.tokens, w.working = rng.randint(1, 2), 0, True
        w.run(rng.uniform(3, 25))
        for _ in range(rng.randint(1, 4)):
            w.tokens = 1
            w.run(0.25)
            w.tokens = 0
            w.run(rng.uniform(1, 6))
    w.serve(1)


def some_requests_fail(w: World, rng: random.Random) -> None:
    """Every image gets 500, a reset or 429, and nothing else is sent for a while; the server is well."""
    w.in_flight, w.tokens, w.working, w.answers_at_once = rng.randint(1, 4), 0, False, True
    for _ in range(rng.randint(10, 90)):
        row = rng.choice([{"outcome": "http_error", "status": 500}, {"outcome": "shed", "status": 429}])
        w.add("end", error="boom", expect=["ok"], sent_ns=w.now, **row).run(rng.uniform(0.05, 0.3))
    w.answers_at_once = False
    w.serve(2)


EVENTS: list[Callable[[Any, random.Random], None]] = [
    saturate, rest, compile_first_request, prefill_128k, stale_gauges, partition, late_health, gateway_says_503,
    one_refusal, drains_its_listener, we_sleep, rollout_behind_a_service, scrape_fails, pause_attack,
    worker_of_a_pool_ends, compile_pool_while_engine_waits, canary_beside_nothing, api_server_prepares_a_long_prompt,
    waits_for_an_image, log_quotes_a_crash, starved, prefill_of_many, preempts, slow_at_low_concurrency,
    some_requests_fail,
]  # fmt: skip


BEHIND_A_GATEWAY = (
    saturate, rest, one_refusal, we_sleep, pause_attack, prefill_of_many, preempts, slow_at_low_concurrency,
)  # fmt: skip


def called_ill_behind_gateway(make_world: Callable[[], Any], seed: int) -> str | None:
    """The same where a gateway answers /health itself and hides metrics and processes."""
    rng = random.Random(seed)
    world = make_world()
    world.metrics = False
    world.idle(1)
    if rng.random() < 0.5:
        compile_first_request(world, rng)  # the first request of all: it has never streamed
    if slow := rng.random() < 0.3:  # many users of a slow machine: its gaps are long from the first request on
        for _ in range(rng.randint(8, 30)):
            world.in_flight, world.tokens = rng.randint(3, 24), 0
            world.run(rng.uniform(4, 9))
            world.tokens = 2
            world.run(rng.uniform(0.3, 1))
    events = [rng.choice(BEHIND_A_GATEWAY) for _ in range(rng.randint(2, 6))]
    for event in events:
        event(world, rng)
    ill = illness(StateMachine("server", known_server=False), world)
    return f"seed {seed}: slow {slow}, {[e.__name__ for e in events]}: {ill}" if ill else None


def illness(machine: StateMachine, world: World) -> Any:
    """The first false state of a healthy server."""
    for state in (state for row in world.rows for state in machine.changes_after(row)):
        if (state["to"] in NEVER and state["from"] != state["to"]) or state.get("outage"):
            return state
    return None


def called_ill(make_world: Callable[[], Any], seed: int) -> str | None:
    """Describe a false state in the history of a seed, None without one."""
    rng = random.Random(seed)
    world = make_world()
    world.metrics = rng.random() < 0.8
    if rng.random() < 0.6:
        world.pids = {10: ("api_server", "S"), 11: ("engine_core", "S"), 12: ("worker", "S")}
    world.serve(3)
    events = []
    for _ in range(rng.randint(2, 5)):
        event = rng.choice(EVENTS)
        events.append(event.__name__)
        event(world, rng)
    machine = StateMachine("server")
    ill = illness(machine, world) or (machine.state not in ("healthy", "degraded") and machine.state)
    return f"seed {seed}: {events}: {ill}" if ill else None


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.__name__)
def test_state_of_a_healthy_server_is_never_dead_or_hung(event: Any, make_world: Callable[[], Any]) -> None:
    for seed in range(6):
        world = make_world()
        if seed % 2:
            world.pids = {10: ("api_server", "S"), 11: ("engine_core", "S"), 12: ("worker", "S")}
        world.serve(3)
        event(world, random.Random(seed))
        machine = StateMachine("server")
        states = [s for row in world.rows for s in machine.changes_after(row)]
        assert not NEVER & {s["to"] for s in states}, f"seed {seed}: {states}"
        assert not any(s.get("outage") for s in states), f"seed {seed}: {states}"


SLOWLY = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("seeds", [range(80), pytest.param(range(1000, 11_000), marks=SLOWLY)], ids=len)
def test_state_of_random_healthy_histories_is_healthy(make_world: Callable[[], Any], seeds: range) -> None:
    assert [bad for seed in seeds if (bad := called_ill(make_world, seed))] == []


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(1000, 3000), marks=SLOWLY)], ids=len)
def test_state_behind_a_gateway_of_random_healthy_histories_is_healthy(
    make_world: Callable[[], Any], seeds: range
) -> None:
    assert [bad for seed in seeds if (bad := called_ill_behind_gateway(make_world, seed))] == []
