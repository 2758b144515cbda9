"""The logic of conditions: three values, and nothing is claimed that no fact says."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.analysis.advisories.advisory import ENGINES, OR, Advisory, VersionEvidence, all_shipped, engine
from loadchaos.analysis.advisories.condition import Fact, ServerFacts, holds, judge

SHIPPED = [one for name in ENGINES for one in all_shipped(name)]
ADVISORIES = st.sampled_from(SHIPPED)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(0, 16), st.sampled_from(["mtp", "eagle3", "cpu", "priority", "off"])
)


def names_of(one: Advisory) -> list[str]:
    return [name for names in one.when for name in names.split(OR)]


@st.composite
def servers(draw: st.DrawFn, one: Advisory) -> ServerFacts:
    names = draw(st.lists(st.sampled_from([*names_of(one), "seed"]), unique=True))
    facts = {name: Fact(draw(VALUES), "test") for name in names}
    releases = [*engine(one.engine).releases[-40:], "0.1", "99.0"]
    version = draw(st.one_of(st.none(), st.sampled_from(releases)))
    return ServerFacts(one.engine, Fact(version, "test") if version else None, facts, complete=draw(st.booleans()))


@given(st.data(), ADVISORIES)
def test_what_applies_has_an_affected_version_and_every_condition(data: st.DataObject, one: Advisory) -> None:
    facts = data.draw(servers(one))
    found = judge(one, facts)
    if found.result == "applies":
        assert facts.version is not None
        version = str(facts.version.value)
        assert one.has(version) is True or one.around(version) is not None
        for names, test in one.when.items():
            assert any((fact := facts.get(name)) and holds(test, fact.value) for name in names.split(OR))
        assert not found.missing
    if found.result == "may apply":
        assert found.missing
    if found.result == "does not apply":
        assert found.why_not


@pytest.mark.parametrize(
    ("version", "unaffected", "result", "reason"),
    [
        ("0.27.1", (), "applies", "0.22.1 and 0.32.0 have it, and no version between them is known without it"),
        ("0.22.1", (), "applies", "version 0.22.1 has it"),
        ("0.33.0", (), "unsettled", ""),
        ("0.22.0", (), "unsettled", ""),
        ("0.27.1", ("==0.24.0",), "unsettled", ""),
        (
            "0.27.1",
            ("==0.33.0",),
            "applies",
            "0.22.1 and 0.32.0 have it, and no version between them is known without it",
        ),
    ],
)
def test_version_between_two_that_have_it_has_it_unless_one_between_has_not(
    version: str, unaffected: tuple[str, ...], result: str, reason: str
) -> None:
    bad = tuple(VersionEvidence(versions=f"=={v}", reported="a/b#1") for v in ("0.22.1", "0.32.0"))
    good = tuple(VersionEvidence(versions=v, reported="a/b#1") for v in unaffected)
    one = Advisory(id="vllm-1", severity="hang", affected=bad, unaffected=good)
    found = judge(one, ServerFacts("vllm", Fact(version, "test")))
    assert (found.result, "".join(found.met)) == (result, reason)


@given(st.data(), ADVISORIES, st.sampled_from(["applies", "does not apply"]))
def test_another_fact_never_turns_a_decision_around(data: st.DataObject, one: Advisory, decided: str) -> None:
    facts = replace(data.draw(servers(one)), complete=False)
    if judge(one, facts).result != decided:
        return
    more = {
        name: Fact(data.draw(VALUES), "more") for name in one.when if name not in facts.facts and not facts.complete
    }
    assert judge(one, replace(facts, facts={**more, **facts.facts})).result == decided


@given(st.data(), ADVISORIES)
def test_a_condition_is_decided_alike_by_each_of_its_facts(data: st.DataObject, one: Advisory) -> None:
    """All conditions met and an affected version: it applies; one of them broken: it does not."""
    facts = {name: Fact(_meeting(test), "test") for names, test in one.when.items() for name in names.split(OR)}
    affected = [v for v in engine(one.engine).releases if one.has(v)]
    if not affected:
        return
    server = ServerFacts(one.engine, Fact(data.draw(st.sampled_from(affected)), "test"), facts)
    assert judge(one, server).result == "applies"
    if one.when:
        names = data.draw(st.sampled_from(sorted(one.when)))
        broken = {name: Fact(_breaking(one.when[names]), "test") for name in names.split(OR)}
        assert judge(one, replace(server, facts={**facts, **broken})).result == "does not apply"
        without = {n: f for n, f in facts.items() if n not in names.split(OR)}
        found = judge(one, replace(server, facts=without))
        assert (found.result, found.missing) == ("may apply", (names,))
    if one.traffic:
        assert judge(one, replace(server, never=one.traffic[:1])).result == "does not apply"


def _meeting(test: Any) -> Any:
    if isinstance(test, bool):
        return test
    return (
        {"<": "0", ">": "99"}[test[0]]
        if isinstance(test, str) and test[0] in "<>"
        else test
        if isinstance(test, str)
        else test[0]
    )


def _breaking(test: Any) -> Any:
    if isinstance(test, bool):
        return not test
    return {"<": "9999", ">": "0"}[test[0]] if isinstance(test, str) and test[0] in "<>" else "another"


@pytest.mark.parametrize(
    ("test", "value", "result"),
    [
        (True, "x", True), (True, None, False), (True, 0, False), (True, "none", False), (False, None, True),
        (False, True, False), (">=2", 2, True), (">=2", "1", False), ("<2", None, None), (">0", "many", None),
        ("mtp", "MTP", True), (("mtp", "eagle3"), "eagle3", True), (("mtp",), None, False), ("fcfs", "priority", False),
    ],
)  # fmt: skip
def test_condition_holds(test: Any, value: Any, result: bool | None) -> None:
    assert holds(test, value) is result


def advisory(**more: Any) -> Advisory:
    return Advisory(
        id="vllm-1",
        severity="hang",
        title="t",
        affected=(VersionEvidence(versions="==0.30.0", reported="a#1"),),
        **more,
    )


def server(version: str | None, facts: Mapping[str, Any] | None = None, *, complete: bool = True) -> ServerFacts:
    told = {name: Fact(value, "test") for name, value in (facts or {}).items()}
    return ServerFacts("vllm", Fact(version, "test") if version else None, told, complete=complete)


@pytest.mark.parametrize(
    ("one", "facts", "result", "missing"),
    [
        (advisory(), server("0.30.0"), "applies", ()),
        (advisory(), server(None), "may apply", ("version",)),
        (advisory(), server("0.31.0"), "unsettled", ()),
        (advisory(state="open"), server("0.31.0"), "may apply", ("whether 0.31.0 has it",)),
        (advisory(state="open"), server("0.29.0"), "unsettled", ()),
        (advisory(fixed="0.31.0"), server("0.31.0"), "does not apply", ()),
        (advisory(fixed="0.31.0 with --x"), server("0.31.0"), "unsettled", ()),
        (advisory(when={"enable_lora": True}), server("0.30.0"), "does not apply", ()),
        (advisory(when={"enable_lora": True}), server("0.30.0", complete=False), "may apply", ("enable_lora",)),
        (advisory(when={"hardware": "cpu"}), server("0.30.0"), "may apply", ("hardware",)),
        (advisory(when={"enable_prefix_caching": True}), server("0.30.0"), "applies", ()),  # the default
        (advisory(when={"enable_prefix_caching": True}), server("0.30.0", {"enable_prefix_caching": False}),
         "does not apply", ()),
        (advisory(when={"speculative_config.method": ("mtp",)}),
         server("0.30.0", {"speculative_config": None}, complete=False),
         "does not apply", ()),
        (advisory(when={"seed or max_num_seqs": "<8"}), server("0.30.0", {"seed": 3}), "applies", ()),
        (advisory(when={"seed or max_num_seqs": "<8"}), server("0.30.0", {"seed": 9}), "may apply",
         ("seed or max_num_seqs",)),
        (advisory(when={"seed or max_num_seqs": "<8"}), server("0.30.0", {"seed": 9, "max_num_seqs": 8}),
         "does not apply", ()),
        (advisory(when={"max_num_seqs": "<8"}), server("0.30.0"), "may apply", ("max_num_seqs",)),  # no default is known
        (advisory(when={"async_scheduling": True}), server("0.30.0"), "applies", ()),
        (advisory(when={"async_scheduling": True}), server("0.30.0", {"hardware": "cpu"}), "does not apply", ()),
        (advisory(when={"async_scheduling": True}),
         server("0.30.0", {"speculative_config": True, "speculative_config.method": "ngram"}), "does not apply", ()),
        (advisory(when={"async_scheduling": True}),
         server("0.30.0", {"speculative_config": True, "speculative_config.method": "mtp"}), "applies", ()),
        (advisory(when={"family": "gpt_oss"}), server("0.30.0", {"family": "GptOss"}), "applies", ()),
        (advisory(when={"family": "gpt_oss"}), server("0.30.0", {"family": "Llama"}), "does not apply", ()),
        (advisory(when={"family": "gpt_oss"}), server("0.30.0"), "may apply", ("family",)),
        (advisory(when={"lmcache": "<0.5.10"}), server("0.30.0", {"lmcache": "0.5.9"}), "applies", ()),
        (advisory(when={"lmcache": "<0.5.10"}), server("0.30.0", {"lmcache": "0.5.10"}), "does not apply", ()),
        (advisory(when={"lmcache": "<0.5.10"}), server("0.30.0"), "may apply", ("lmcache",)),
    ],
)  # fmt: skip
def test_advisory_is_judged(one: Advisory, facts: ServerFacts, result: str, missing: tuple[str, ...]) -> None:
    found = judge(one, facts)
    assert (found.result, found.missing) == (result, missing)


KV = "kv_transfer_config"
MULTI = {
    f"{KV}.kv_connector": "MultiConnector",
    f"{KV}.kv_connector_extra_config.connectors": [{"kv_connector": "NixlConnector"}, {"kv_connector": "X"}],
}


@pytest.mark.parametrize(
    ("facts", "complete", "name", "value"),
    [
        ({}, True, "connector", None),
        ({f"{KV}.kv_connector": "NixlConnector"}, True, "connector", "NixlConnector"),
        (MULTI, True, "connector", ("NixlConnector", "X")),
        ({"kv_offloading_size": 8}, True, "connector", "OffloadingConnector"),
        ({"kv_offloading_size": 8, f"{KV}.kv_connector": "X"}, True, "connector", "OffloadingConnector"),
        ({f"{KV}.kv_connector": "none"}, False, "connector", "none"),
        ({"connector": "MooncakeConnector"}, True, "connector", "MooncakeConnector"),
        ({"env.VLLM_USE_V2_MODEL_RUNNER": 1}, True, "model_runner", "V2"),
        ({"env.VLLM_USE_V2_MODEL_RUNNER": "0", "model_runner": "V2"}, True, "model_runner", "V1"),
        ({"model_runner": "V2"}, True, "model_runner", "V2"),
    ],
)
def test_fact_follows_from_options_and_variables(
    facts: Mapping[str, Any], complete: bool, name: str, value: object
) -> None:
    found = server("0.30.0", facts, complete=complete).get(name)
    assert found is not None
    assert found.value == value


@pytest.mark.parametrize(
    ("facts", "complete", "name"),
    [
        ({}, False, "connector"),
        ({f"{KV}.kv_connector": "MultiConnector"}, False, "connector"),
        ({"kv_offloading_size": 8, "kv_offloading_backend": "lmcache"}, True, "connector"),
        ({"kv_offloading_size": 8, "env.VLLM_USE_SIMPLE_KV_OFFLOAD": 1}, True, "connector"),
        ({"hardware": "cpu"}, True, "model_runner"),  # V2 with triton-cpu
    ],
)
def test_fact_that_does_not_follow_is_not_known(facts: Mapping[str, Any], complete: bool, name: str) -> None:
    assert server("0.30.0", facts, complete=complete).get(name) is None


def test_one_of_several_values_is_enough() -> None:
    assert holds(("NixlConnector",), ("OffloadingConnector", "NixlConnector"))
    assert not holds("MooncakeConnector", ("OffloadingConnector", "NixlConnector"))


def test_variable_is_not_off_where_only_a_log_is_known() -> None:
    one = advisory(when={"env.VLLM_BATCH_INVARIANT": True})
    assert judge(one, server("0.30.0")).result == "does not apply"
    assert judge(one, replace(server("0.30.0"), environment=False)).missing == ("env.VLLM_BATCH_INVARIANT",)
