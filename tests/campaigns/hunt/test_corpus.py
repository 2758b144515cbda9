"""Genes, mutation and the choice of the next workload. Pure: no server, no clock."""

import json
import random
import statistics
from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from loadchaos.campaigns.hunt.corpus import Corpus
from loadchaos.campaigns.hunt.genes import GenePool, ServerLimits, pool_of
from loadchaos.campaigns.hunt.journal import HuntFailure, WorkloadRow
from loadchaos.campaigns.hunt.mutation import Breeder
from loadchaos.campaigns.hunt.workload import Workload, traffic_entry
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.load import registry
from loadchaos.profile.profile import from_mapping
from tests.campaigns.hunt.conftest import FACTS, LIMITS, Rules, failure, result, row, stairs
from tests.rows import folded


def hunted(corpus: Corpus, rules: Rules, most: int) -> int:
    """Workloads until the first finding; `most` without one."""
    for n in range(1, most + 1):
        choice = corpus.choose()
        corpus.fold(row(choice, **rules(choice.workload)))
        if corpus.findings:
            return n
    return most


def test_every_workload_is_a_valid_profile(pool: GenePool) -> None:
    rng = random.Random(7)
    found: list[Workload] = []
    breeder = Breeder(pool)
    for i in range(120):
        workload = breeder.drawn(rng) if i < 40 else breeder.changed(rng.choice(found), found, rng)[0]
        target = {"launch": {"command": ["serve"], "url": "http://127.0.0.1:1"}}
        from_mapping({**workload.profile(pool), "target": target}, registry.full_registry())
        assert from_json(Workload, json.loads(json.dumps(to_json(workload)))) == workload
        found.append(workload)
    values = Counter(v.partition("=")[0] for w in found for v in w.values())
    assert {"traffic.images", "traffic.top_k", "traffic.abort", "attacks.admin", "load.questions"} <= set(values)
    assert not any("image_size" in t and "images" not in t for w in found for t in w.traffic)


def test_genes_need_what_the_server_has() -> None:
    plain = replace(FACTS, images=False, development_endpoints=False)
    pool = pool_of(ServerLimits(plain, {}, ("a",)))
    names = {name for name, values in pool.choices["traffic"].items() if not values}
    assert {"images", "image_size", "unique", "reuse_distance", "uuid", "adapters"} <= names
    assert not pool.attacks
    workloads = [Breeder(pool).drawn(random.Random(n)) for n in range(50)]
    assert not any(w.attacks or any("images" in t for t in w.traffic) for w in workloads)
    small = pool_of(ServerLimits(replace(plain, max_model_len=512)))
    lengths = [int(str(t).rpartition("..")[2]) for t in small.choices["traffic"]["tokens"]]
    assert max(lengths) < 512
    assert "sleep" not in pool_of(ServerLimits(FACTS)).choices["attacks"]["admin"], "sleep mode is not on"
    assert "sleep" in pool_of(LIMITS).choices["attacks"]["admin"]
    assert "reset_encoder_cache" not in pool_of(LIMITS).choices["attacks"]["admin"], "kills a healthy server by design"


def test_genes_of_the_user_replace_and_leave_out() -> None:
    pool = pool_of(LIMITS, {"traffic": {"images": False, "tokens": [64, 65], "top_k": [7]}, "load": {"users": [4]}})
    workloads = [Breeder(pool).drawn(random.Random(n)) for n in range(40)]
    assert {t["tokens"] for w in workloads for t in w.traffic} == {64, 65}
    assert not any("images" in t for w in workloads for t in w.traffic)
    assert sum("top_k" in t for w in workloads for t in w.traffic) > 15, "a gene that the user names is used often"
    assert {w.load["users"] for w in workloads} == {4}


def test_load_has_as_many_requests_as_its_users_need(pool: GenePool) -> None:
    assert pool.most_requests == 64
    breeder, rng = Breeder(pool), random.Random(2)
    drawn = [breeder.drawn(rng) for _ in range(200)]
    changed = [breeder.changed(rng.choice(drawn), drawn, rng)[0] for _ in range(200)]
    found: dict[tuple[int, bool], set[int]] = {}
    for workload in drawn + changed:
        load = workload.load
        found.setdefault((load["users"], load["form"] == "waves"), set()).add(load["requests"])
    steady = {users: requests for (users, waves), requests in found.items() if not waves}
    assert steady == {n: {max(16, min(64, n))} for n in (1, 2, 4, 8, 16, 32, 64, 128)}
    assert found[16, True] == {32}, "half of the requests of a wave's users would be no second wave"
    large = pool_of(replace(LIMITS, requests=512))
    sizes = {w.load["requests"] for w in (Breeder(large).drawn(rng) for _ in range(100))}
    assert (min(sizes), max(sizes)) == (128, 512)


def test_requests_of_the_users_file_are_used_for_every_load() -> None:
    pool = pool_of(LIMITS, {"load": {"requests": [8, 100]}})
    drawn = [Breeder(pool).drawn(random.Random(n)) for n in range(40)]
    assert {w.load["requests"] for w in drawn} == {8, 100}


def test_schedule_follows_from_seed_and_feedback(pool: GenePool) -> None:
    first, again, other = Corpus(3, pool), Corpus(3, pool), Corpus(4, pool)
    rows = []
    for _ in range(40):
        choice = first.choose()
        assert choice == again.choose()
        rows.append(row(choice, **stairs(choice.workload)))
        first.fold(rows[-1])
        again.fold(from_json(WorkloadRow, json.loads(json.dumps(to_json(rows[-1])))))
    assert [other.choose().workload for _ in range(3)] != [r.workload for r in rows[:3]]
    continued = folded(Corpus(3, pool), rows)
    assert [continued.choose() for _ in range(5)] == [first.choose() for _ in range(5)]


def test_rare_features_give_more_energy_and_choices_take_it_away(pool: GenePool) -> None:
    corpus = Corpus(0, pool)
    choices = [corpus.choose() for _ in range(10)]
    for choice in choices:
        corpus.fold(row(choice, **result("grew:common:1", *(["pair:rare&event"] if choice.number == 5 else []))))
    common, rare = corpus.entries
    assert (common.number, rare.number) == (1, 5)
    assert corpus.energy(rare) > 2 * corpus.energy(common)
    child = replace(corpus.choose(), parent=5)
    before = corpus.energy(rare)
    corpus.fold(row(child, **result("grew:common:1")))
    assert corpus.energy(rare) < before


def test_workload_without_news_is_no_entry(pool: GenePool) -> None:
    corpus = Corpus(0, pool)
    assert corpus.fold(row(corpus.choose(), **result("a:1", lines=["INFO started N of M"])))
    assert not corpus.fold(row(corpus.choose(), **result("a:1", lines=["INFO started N of K"]))), "the same template"
    assert corpus.fold(row(corpus.choose(), **result("a:1", lines=["WARNING preempted a request of the batch"])))
    idle = result("a:1", idle_lines=["INFO model loaded in N seconds"])
    assert not corpus.fold(row(corpus.choose(), **idle)), "lines from before the load are no feedback"
    assert not corpus.fold(row(corpus.choose(), **result("a:1", lines=["INFO model loaded in N seconds"])))


def test_values_that_lead_to_a_known_death_become_rare(pool: GenePool) -> None:
    corpus = Corpus(1, pool)
    for n in range(200):
        choice = corpus.choose()
        corpus.fold(row(choice, **result(f"a:{n}", failures=(failure(),) if _has(choice.workload) else ())))
    deadly, harmless = corpus.weigh("traffic.top_k=20"), corpus.weigh("traffic.top_k=1")
    assert deadly < 0.1 < 0.5 < harmless
    fresh = [Breeder(pool, corpus.weigh).drawn(random.Random(n)) for n in range(300)]
    naive = [Breeder(pool).drawn(random.Random(n)) for n in range(300)]
    assert 3 * sum(_has(w) for w in fresh) < sum(_has(w) for w in naive)


def test_changed_workloads_leave_out_what_is_known_to_be_deadly(pool: GenePool) -> None:
    deadly = {"tokens": 64, "output": 8, "weight": 1, "top_k": 20, "whole": True}
    load = {"users": 4, "requests": 32, "form": "steady"}
    parent = Workload(load, (deadly,), ({"admin": "pause", "every": "1s"},))
    weights = {"traffic.top_k=20": 0.1, 'attacks.admin="pause"': 0.1, "traffic.tokens=64": 0.1}
    breeder = Breeder(pool, lambda value: weights.get(value, 0.25))
    children = [breeder.changed(parent, [], random.Random(n))[0] for n in range(200)]
    assert 2 < sum(_has(c) for c in children) < 40, "rare, but never impossible"
    assert sum(any(a.get("admin") == "pause" for a in c.attacks) for c in children) < 60
    assert sum(any(t.get("whole") for t in c.traffic) for c in children) > 150, "one death proves nothing about a gene"
    assert all("tokens" in t for c in children for t in c.traffic)


def test_few_workloads_end_in_a_known_death(pool: GenePool) -> None:
    """A third of the workloads that are drawn have the deadly genes."""
    deaths = 0
    for seed in range(8):
        corpus = Corpus(seed, pool)
        for _ in range(40):
            choice = corpus.choose()
            died = any(t.get("seeded") or "n" in t or "top_k" in t for t in choice.workload.traffic)
            deaths += died
            news = [f"grew:{value}" for value in choice.workload.values()]
            corpus.fold(row(choice, **result(*news, failures=(failure(),) if died else ())))
    assert deaths < 0.25 * 8 * 40


def test_drawn_workloads_try_pairs_of_values_that_were_not_tried(pool: GenePool) -> None:
    def pairs(feedback: bool) -> int:
        corpus = Corpus(1, pool, feedback)
        found = set[tuple[str, str]]()
        for _ in range(30):
            choice = corpus.choose()
            found.update(combinations(sorted(choice.workload.values()), 2))
            corpus.fold(row(choice, **result()))
        return len(found)

    assert pairs(True) > 1.3 * pairs(False)


def _has(workload: Workload) -> bool:
    return any(t.get("top_k") == 20 for t in workload.traffic)


def test_feedback_needs_half_the_workloads_of_chance(pool: GenePool) -> None:
    with_feedback = [hunted(Corpus(seed, pool), stairs, 300) for seed in range(11)]
    by_chance = [hunted(Corpus(seed, pool, feedback=False), stairs, 300) for seed in range(11)]
    assert 2 * statistics.median(with_feedback) <= statistics.median(by_chance)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (failure("a", "f.py g"), failure("a", "f.py g"), True),
        (failure("a", "f.py g"), failure("a", "f.py h"), False),
        (failure("a", "f.py g"), failure("b", "f.py g"), False),
        ({**failure("unknown_exception", ""), "title": "x"}, {**failure("unknown_exception", ""), "title": "y"}, False),
    ],
)
def test_findings_are_grouped_by_id_and_guilty_frame(
    one: dict[str, object], other: dict[str, object], same: bool
) -> None:
    assert (from_json(HuntFailure, one).key == from_json(HuntFailure, other).key) is same


def test_failures_that_an_attack_explains_are_no_findings(pool: GenePool) -> None:
    corpus = Corpus(0, pool)
    expected = {**failure(), "attribution": "expected"}
    corpus.fold(row(corpus.choose(), **result("a:1", failures=(expected, {**failure("b"), "accepted": True}))))
    assert corpus.findings == {}
    refused = {**failure("unexplained_http_error", "", "request"), "refused": True}
    corpus.fold(row(corpus.choose(), **result("a:1", failures=(refused,))))
    assert corpus.findings == {}, "genes may ask for what a server does not support"
    assert from_json(HuntFailure, {**refused, "refused": False}).is_finding
    corpus.fold(row(corpus.choose(), **result("a:1", failures=({**failure(), "attribution": "self-inflicted"},))))
    assert list(corpus.findings) == ["engine_died|f.py g"]


def test_first_workloads_ask_nothing_and_the_third_one_does(pool: GenePool) -> None:
    asking = Counter[int]()
    for seed in range(20):
        corpus = Corpus(seed, pool)
        for _ in range(4):
            choice = corpus.choose()
            asking[choice.number] += bool(choice.workload.load.get("questions"))
            corpus.fold(row(choice, **result("metric:a")))
    assert (asking[1], asking[2], asking[3]) == (0, 0, 20)
    assert 0 < asking[4] < 20, "as drawn"


@pytest.mark.parametrize(("gene", "asking"), [([True], True), (False, False)])
def test_questions_that_the_user_chose_stay_as_drawn(gene: object, asking: bool) -> None:
    chosen: dict[str, dict[str, object]] = {"load": {"questions": gene}}
    found = [Corpus(seed, pool_of(LIMITS, chosen)).choose().workload.load.get("questions") for seed in range(20)]
    assert any(found) is asking


def entry(pool: GenePool, **genes: Any) -> dict[str, Any]:
    return traffic_entry("t", {"tokens": 64, "output": 8, **genes}, pool)


def test_endpoint_gene_leaves_out_what_a_body_cannot_hold(pool: GenePool) -> None:
    genes = {"images": 1, "uuid": "fresh", "n": 2, "temperature": 0.7, "tools": "auto"}
    chat = entry(pool, **genes)
    assert "endpoint" not in chat
    assert (chat["payload"]["images"]["uuid"], chat["payload"]["sampling"]["n"]) == ("fresh", 2)
    responses = entry(pool, endpoint="responses", **genes)
    assert responses["endpoint"] == "responses"
    assert "uuid" not in responses["payload"]["images"]
    assert responses["payload"]["sampling"] == {"temperature": 0.7}
    completions = entry(pool, endpoint="completions", **genes)
    assert set(completions["payload"]) == {"text", "sampling"}


def test_endpoint_gene_sends_a_text_where_a_body_holds_no_conversation(pool: GenePool) -> None:
    assert entry(pool, endpoint="completions", turns=4)["payload"] == {"text": {"tokens": 160}}
    assert entry(pool, endpoint="completions", image_position=True)["payload"] == {"text": {"tokens": 64}}


def test_endpoint_genes_are_those_that_the_server_has() -> None:
    assert pool_of(ServerLimits(FACTS)).choices["traffic"]["endpoint"] == ()
    assert pool_of(ServerLimits(FACTS, endpoints=("messages",))).choices["traffic"]["endpoint"] == ("messages",)


def test_image_position_gene_writes_prompt_and_image(pool: GenePool) -> None:
    found = entry(pool, image_position=True, images=4, near_limit={"band": "-8..-1", "step": 1}, image_size="448x448")
    assert found["payload"] == {"image_positions": {"size": "448x448"}}
