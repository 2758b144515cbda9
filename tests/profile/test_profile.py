import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from loadchaos.core import expectation_names, resources, typed_json
from loadchaos.core.errors import ProfileError
from loadchaos.core.model import DEFAULT_EXPECT
from loadchaos.profile import source
from loadchaos.profile.arrivals import planned_requests
from loadchaos.profile.explain import explain
from loadchaos.profile.profile import Registry, from_mapping, load
from loadchaos.profile.schema import schema
from loadchaos.profile.steps import steps
from loadchaos.simulator.options import SimulatorSpec, make_options
from tests.profile.conftest import Write

TRAFFIC = "traffic: [{name: t, payload: {text: {tokens: 8}}}]\n"
LOAD = "load: [{users: 1, requests: 1}]\n"

WRONG_PARTS = {
    "regex that cannot be compiled": ('traffic:\n  - name: t\n    payload:\n      structured:\n        regex: "(["',
     "x.yaml:6:16: traffic.0.payload.structured.regex: no valid regex"),
    "address of the server": ("target: {url: http://127.0.0.1:1}",
     "x.yaml:2:10: target.url: unknown key; it is an option: --target URL"),
    "removed key": ("target: {toxiproxy: http://127.0.0.1:8474}",
     "x.yaml:2:10: target.toxiproxy: unknown key; it was removed: leave it out, and the built-in proxy lays"),
    "unknown key": ("abuot: y", "x.yaml:2:1: abuot: unknown key; did you mean about?"),
    "unknown nested key": ("load: [{user: 1, requests: 1}]",
     "x.yaml:2:9: load.0.user: unknown key; did you mean users?"),
    "out of range": ("load:\n  - users: 0\n    requests: 1",
     "x.yaml:3:12: load.0.users: must be greater than 0 (got 0)"),
    "unit missing": ("load: [{users: 1, for: 30}]", "a duration needs a unit: 30s, 30m"),
    "rate without unit": ("load: [{rate: 20, for: 3s}]", "a rate such as 20/s"),
    "in a phase that repeats": ("load:\n  - repeat: 2\n    phases:\n      - {users: 0, requests: 1}",
     "x.yaml:5:17: load.0.phases.0.users: must be greater than 0 (got 0)"),
    "beside phases that repeat": ("load: [{repeat: 2, users: 3, phases: [{users: 1, requests: 1}]}]",
     "load.0: users belongs inside one of the repeated phases, not next to phases"),
    "too many phases": ("load: [{repeat: 10001, phases: [{users: 1, requests: 1}]}]",
     "load: more than 10,000 phases, repeats included: use fewer and longer phases"),
    "generic id that is accepted without a text": (
     "accept:\n  - {id: unexplained_http_error, because: known, until: 2027-01-01}",
     "x.yaml:3:10: accept.0.id: unexplained_http_error stands for any failure of its kind: text or frame was expected"),
    "no traffic": ("traffic: []", "traffic: "),
    "empty weights": ("traffic: [{name: t, weight: 0, payload: {text: {}}}]",
     "every weight is 0: set at least one above 0"),
    "unknown traffic of a phase": ("load:\n  - {users: 1, requests: 1, traffic: [t, no]}",
     "x.yaml:3:42: load.0.traffic.1: no traffic has the name 'no'"),
    "unknown traffic of a repeated phase": ("load: [{repeat: 2, phases: [{users: 1, requests: 1, traffic: [no]}]}]",
     "load.0.phases.0.traffic.0: no traffic has the name 'no'"),
    "phase without traffic": ("load: [{users: 1, requests: 1, traffic: []}]",
     "load.0.traffic: names of traffic were expected, or leave the key out"),
    "traffic of a phase that is no text": ("load: [{users: 1, requests: 1, traffic: [{t: 1}]}]",
     "load.0.traffic.0: text was expected"),
    "only phases of weightless traffic": (
     ("load: [{users: 1, requests: 1, traffic: [a]}]\n"
      "traffic: [{name: a, weight: 0, payload: {text: {}}}, {name: b, payload: {text: {}}}]"),
     "load: the weight of all traffic that the phases name is 0, so no phase sends anything"),
    "traffic of no phase": (
     ("load: [{users: 1, requests: 1, traffic: [b]}]\n"
      "traffic: [{name: a, payload: {text: {}}}, {name: b, payload: {text: {}}}]"),
     "traffic.0: no phase sends the traffic a"),
    "negative weight": ("traffic:\n  - {name: t, weight: -1, payload: {text: {}}}",
     "x.yaml:3:23: traffic.0.weight: must be at least 0 (got -1)"),
    "payload": ("traffic: [{name: t, payload: {texts: {}}}]",
     "traffic.0.payload.texts: unknown payload 'texts'; did you mean text?"),
    "payload option": ("traffic: [{name: t, payload: {images: {siez: 4x4}}}]",
     "traffic.0.payload.images.siez: unknown key; did you mean size?"),
    "behaviour": ("traffic: [{name: t, payload: {text: {}}, behaviour: abrt}]",
     "unknown behaviour 'abrt'; did you mean abort?"),
    "shares": (
     "traffic: [{name: t, payload: {text: {}}, behaviour: {abort: {share: 80%, at_token: 1}, plain: {share: 30%}}}]",
     "the shares add up to more than 100%"),
    "hang-ups at a token without a stream": (
     "traffic:\n  - {name: t, stream: false, payload: {text: {}}, behaviour: {abort: {at_token: 3}}}",
     "x.yaml:3:63: traffic.0.behaviour.abort: aborts within a stream, but stream is false: abort after a time"),
    "attack": ("target: {dialect: vllm}\nattacks: [{admin: reset_mm_cahce, every: 2s}]",
     "unknown attack 'reset_mm_cahce': vllm has no such attack; did you mean reset_mm_cache?"),
    "attack of another dialect": ("target: {dialect: lmdeploy}\nattacks: [{admin: reset_mm_cache, every: 2s}]",
     "lmdeploy has no such attack"),
    "dialect": ("target: {dialect: vlm}", "unknown dialect 'vlm'; did you mean vllm?"),
    "defect": ("target: {embedded: {defects: [mm_chunk_splitt]}}",
     "target.embedded.defects.0: unknown defect 'mm_chunk_splitt' of vllm; did you mean mm_chunk_split?"),
    "era as a number": ("target: {embedded: {era: 0.20}}", "a version is text"),
    "expect": ('expect: ["engine_death == 0"]', "unknown figure 'engine_death'; did you mean engine_deaths?"),
    "expect without unit": ('expect: ["t.ttft_p99 < 2"]', "a duration needs a unit"),
    "goodput without limits": ('expect: ["t.goodput >= 99%"]',
     "x.yaml:2:10: expect.0: goodput needs limits: slo: {ttft: 2s, itl_p99: 50ms}"),
    "slo without limits": ("slo: {}", "slo: at least one limit was expected: ttft, tpot"),
    "slo of an unknown latency": ("slo: {tftt: 2s}", "x.yaml:2:7: slo.tftt: unknown key; did you mean ttft?"),
    "slo of zero": ("slo: {ttft: 0s}", "x.yaml:2:13: slo.ttft: more than 0 was expected"),
    "expect without sense": ('expect: ["all is well"]', "`name op value`"),
    "duplicate key": ("name: y", 'x.yaml:2:1: found duplicate key "name"'),
    "tab": ("target:\n\tdialect: vllm", "x.yaml:3:1: a tab"),
    "two kinds of load": ("load: [{users: 1, rate: 1/s, for: 1s}]",
     "a phase needs one of users, rate, burst, trace or replay (got users and rate)"),
    "no end": ("load: [{users: 1}]", "needs either requests (per round) or for (a duration)"),
    "only warm-ups": ("load: [{users: 1, requests: 5, warm_up: true}]",
     "every phase is a warm-up, so nothing would be measured"),
    "rate without an end": ("load: [{rate: 5/s}]",
     "a phase with rate needs a duration, e.g. for: 10m, or a number of requests"),
    "shape without a length": ("load: [{rate: 5/s, law: ramp, to: 9/s, requests: 9}]",
     "the law ramp needs a duration, e.g. for: 10m; requests may end it earlier"),
    "what a law does not know": ("load: [{rate: 5/s, for: 3s, burstiness: 0.5}]",
     "x.yaml:2:8: load.0: burstiness has no effect with the law constant: it belongs to gamma"),
    "same name": ("traffic: [{name: t, payload: {text: {}}}, {name: t, payload: {text: {}}}]",
     "traffic 0 already has this name"),
    "both outputs": ("traffic: [{name: t, payload: {text: {}}, output: {max: 1, exact: 2}}]",
     "either max or exact was expected"),
    "no mapping where one is due": ("traffic: [{name: t, payload: {text: 30}}]",
     "x.yaml:2:37: traffic.0.payload.text: a mapping such as {key: value} was expected (got 30)"),
    "no list where one is due": ("expect: failures == 0",
     "x.yaml:2:9: expect: a list such as [a, b] was expected (got 'failures == 0')"),
    "no number": ("traffic: [{name: t, weight: lots, payload: {text: {}}}]",
     "traffic.0.weight: a number was expected (got 'lots')"),
    "a payload of nothing": ("traffic: [{name: t, payload: {}}]", "traffic.0.payload: at least one entry was expected"),
    "traffic's name": ("traffic: [{name: 1t, payload: {text: {}}}]",
     "traffic.0.name: a name of letters, digits, _ and - that begins with a letter was expected (got '1t')"),
    "comparison": ("attacks: [{admin: reset_mm_cache, every: 2s, when: {requests_running: 8}}]",
     "when.requests_running: text was expected (got 8)"),
    "comparison without a sign": ('attacks: [{admin: reset_mm_cache, every: 2s, when: {requests_running: "8"}}]',
     'when.requests_running: a comparison such as ">= 8" or "> 80%" was expected (got \'8\')'),
    "a weight without end": ("traffic: [{name: t, weight: 1e309, payload: {text: {}}}]",
     "traffic.0.weight: must be a finite number (got inf)"),
    "a dialect that is no text": ("target: {embedded: {dialect: {}}}",
     "target.embedded.dialect: the embedded server cannot simulate {}"),
    "users without end": ("load: [{users: 1000000000, for: 2s}]", "load.0.users: must be less than or equal to 100000"),
    "bursts without end": ("load: [{burst: 9, every: 1s, repeat: 1000000000}]", "load.0.repeat: must be less than"),
    "steps without end": ("load: [{rate: 1/s, to: 3/s, law: step, steps: 1000000000, for: 2s}]", "load.0.steps: must be"),
    "gaps of nothing": ("load: [{rate: 1/s, law: gamma, burstiness: 1e-300, for: 2s}]", "load.0.burstiness: must be at"),
    "days without end": ("load: [{rate: 1/s, to: 3/s, law: day, period: 1ms, for: 365d}]", "give a longer period"),
    "schema of a kind there is not": ("traffic: [{name: t, payload: {structured: {json_schema: smal}}}]",
     "json_schema: small, deep, wide, choice or a JSON schema of your own was expected (got 'smal')"),
    "text beside a conversation": ("traffic:\n  - {name: t, payload: {text: {}, conversation: {}}}",
     "x.yaml:3:25: traffic.0.payload.text: has no effect together with conversation, which defines the whole request"),
    "images beside a file of requests": ("traffic: [{name: t, payload: {requests: {file: x.jsonl}, images: {}}}]",
     "traffic.0.payload.images: has no effect together with requests"),
    "more prefix than prompt": ("traffic: [{name: t, payload: {text: {tokens: 8..64, shared_prefix: {tokens: 65}}}}]",
     "traffic.0.payload.text: shared_prefix is a part of the prompt: at most 64 tokens (got 65)"),
    "more turns than tokens": ("traffic: [{name: t, payload: {conversation: {turns: 20, tokens: 10}}}]",
     "20 turns have 39 messages of a token or more: tokens of at least that were expected (got 10)"),
    "attack of no kind": ("attacks: [{every: 2s}]", "admin, process, engine, network, host or plugin"),
    "signal nobody knows": ("attacks: [{process: sigsegv, at: 1s}]", "sigkill"),
    "kill that is to be taken back": ("attacks: [{process: sigkill, at: 1s, for: 2s}]", "undone"),
    "two clocks for one attack": ("attacks: [{admin: pause, after: resume, every: 1s}]", "sets the time"),
    "window that is none": ("attacks: [{admin: pause, every: 1s, during: 9s..3s}]", "30s..90s"),
    "role without a signal": ("attacks: [{admin: pause, role: worker}]", "role goes with process"),
}  # fmt: skip
"""A wrong part of a profile that is right but for it, and what is said about it."""
WRONG_FILES = {
    "not YAML": ("name: [x\ntraffic: [{name: t, payload: {text: {tokens: 8}}}]", "not YAML"),
    "empty": ("# nothing", "the file is empty: a profile with name, traffic and load"),
    "no mapping": ("- a", "a profile with name, traffic and load (`loadchaos init` copies examples) was expected"),
    "name": (
        "name: my run\ntraffic: [{name: t, payload: {text: {tokens: 8}}}]\nload: [{users: 1, requests: 1}]",
        "name: a name of letters, digits, _, . and - that begins with",
    ),
    "missing": ("about: x", "x.yaml:1:1: traffic: is missing"),
}


def with_the_rest(part: str) -> str:
    rest = [text for key, text in (("traffic:", TRAFFIC), ("load:", LOAD)) if key not in part]
    return f"name: x\n{part}\n{''.join(rest)}"


BAD = {**{case: (with_the_rest(part), said) for case, (part, said) in WRONG_PARTS.items()}, **WRONG_FILES}


@pytest.mark.parametrize("case", BAD)
def test_profile_mistake_has_place_and_hint(case: str, write: Write) -> None:
    text, expected = BAD[case]
    with pytest.raises(ProfileError) as caught:
        write(text)
    assert expected in str(caught.value)


def test_profile_mistakes_are_listed_in_line_order(write: Write) -> None:
    text = "name: x\nabuot: y\ntraffic:\n  - {name: t, wieght: 1, payload: {txt: {}}}\nload:\n  - {users: 0, requests: 1}\n"
    with pytest.raises(ProfileError) as caught:
        write(text)
    lines = [int(m.split("x.yaml:")[1].split(":")[0]) for m in caught.value.mistakes]
    assert lines == [2, 4, 4, 6]


def test_profile_file_that_is_missing_is_named(tmp_path: Path, registry: Registry) -> None:
    with pytest.raises(ProfileError, match="No such file"):
        load(tmp_path / "none.yaml", registry)


def test_profile_file_refuses_aliases_that_expand_without_end(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    names = "abcdefgh"
    path.write_text("a: &a [1, 2]\nb: *a\n")
    assert source.read(path)["b"] == [1, 2]
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in pairwise(names)]
    path.write_text("\n".join(lines))
    with pytest.raises(ProfileError, match=r"x\.yaml:5:\d+: aliases make more than 100000 values"):
        source.read(path)
    path.write_text("&r {a: *r}\n")
    with pytest.raises(ProfileError, match="a value that contains it"):
        source.read(path)


# --- overrides --------------------------------------------------------------------------------------------------------


def test_override_changes_a_value_before_the_check(write: Write, good: str) -> None:
    profile = write(good, "load.0.users=20", "about=shorter", "traffic.0.payload.text.tokens=9")
    assert profile.load[0].users == 20
    assert profile.traffic[0].payload == {"text": {"tokens": 9}}


def test_override_creates_missing_mappings(write: Write, good: str) -> None:
    profile = write(good, "target.embedded.defects=[]", "target.embedded.flags.max_num_seqs=4", "limits.total=5s")
    assert profile.target.embedded is not None
    assert profile.target.embedded.defects == ()
    assert profile.target.embedded.flags == {"max_num_seqs": 4}
    assert profile.limits.total == 5.0


def test_override_star_matches_every_entry_with_the_key(write: Write, good: str) -> None:
    profile = write(good + "  - {rate: 5/s, for: 1s}\n", "load.*.users=7")
    assert [p.users for p in profile.load] == [7, None]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("load.0.users=none", "--set load.0.users=none: load.0.users: "),
        ("load.5.users=3", "--set load.5.users=3: load has 1 entry, counted from 0 (got 5)"),
        ("load.x.users=3", "load is a list: a number was expected"),
        ("load.0.users", "PATH=VALUE was expected"),
        ("load.0.users.more=3", "has no keys"),
        ("load.*.rate=3/s", "no entry of load has rate"),
        ("name=[", "the value is not YAML"),
        ("lod=3", "--set lod=3: lod: unknown key; did you mean load?"),
        ("lod.users=3", "--set lod.users=3: lod: unknown key; did you mean load?"),
    ],
)
def test_override_mistake_names_the_override(override: str, expected: str, write: Write, good: str) -> None:
    with pytest.raises(ProfileError) as caught:
        write(good, override)
    assert expected in str(caught.value)


def test_phases_that_repeat_are_unrolled(write: Write, good: str, registry: Registry) -> None:
    soak = "{repeat: 2, phases: [{burst: 1}, {repeat: 3, phases: [{rate: 2/s, for: 1m}, {burst: 2}]}]}"
    profile = write(good, f"load=[{{users: 1, requests: 1}}, {soak}]", "load.1.phases.1.phases.0.for=2m")
    hour = ["open", "burst"] * 3
    assert [p.kind for p in profile.load] == ["closed", *["burst", *hour] * 2]
    assert {p.for_ for p in profile.load if p.kind == "open"} == {120.0}
    assert from_mapping(profile.to_json(), registry).load == profile.load
    lines = [line.strip() for line in explain(profile).splitlines()]
    at = lines.index("Load")
    assert [lines[at + 1][:3], *lines[at + 2 : at + 4]] == ["1. ", "2 to 15. 2 times:", "1 request"]


# --- what a profile is ------------------------------------------------------------------------------------------------


def test_profile_without_expect_has_default_expectations(write: Write, good: str) -> None:
    assert tuple(write(good).terms(0).expect) == DEFAULT_EXPECT


def test_terms_have_the_plan_and_limits_in_seconds(write: Write, good: str) -> None:
    terms = write(good + 'limits: {first_byte: 2m}\nexpect: ["recovers_within <= 5m"]\n').terms(7)
    assert (terms.planned_requests, terms.seed, terms.limits["first_byte"]) == (10, 7, 120.0)
    assert json.loads(json.dumps(typed_json.to_json(terms)))["profile"] == "good"


@pytest.mark.parametrize(
    ("load", "steady"),
    [
        ("[{users: 4, for: 60s}]", True),
        ("[{users: 4, requests: 5}]", True),
        ("[{users: 4, requests: 4}]", False),  # all at once
        ("[{users: 4, requests: 8, rounds: 2}]", False),
        ("[{rate: 5/s, law: poisson, requests: 200}]", True),
        ("[{rate: 5/s, law: ramp, to: 9/s, for: 60s}]", False),
        ("[{burst: 20}]", False),
        ("[{users: 1, requests: 5, warm_up: true}, {users: 4, for: 60s}]", True),
        ("[{users: 4, for: 60s}, {users: 8, for: 60s}]", False),
    ],
)
def test_terms_tell_a_load_that_is_to_stay_the_same(write: Write, good: str, load: str, steady: bool) -> None:
    assert write(good, f"load={load}").terms(0).steady is steady


def test_dangers_name_attacks_and_harmful_payloads(write: Write, good: str) -> None:
    assert write(good).dangers() == []
    assert write(good + "attacks: [{admin: sleep, at: 3s}]\n").dangers() == ["the attack sleep"]
    near = write(good, "traffic.0.payload={near_limit: {}}")
    assert near.dangers() == ["the payload near_limit of traffic text"]


SHIPPED = sorted(resources.profiles().items())


@pytest.mark.parametrize(("name", "path"), SHIPPED)
def test_shipped_profile_is_valid_and_survives_json(name: str, path: Path, registry: Registry) -> None:
    profile = load(path, registry)
    assert profile.name == name
    assert profile.about
    assert from_mapping(json.loads(json.dumps(profile.to_json())), registry) == profile
    assert profile.to_yaml()


@pytest.mark.parametrize(("name", "path"), SHIPPED)
def test_shipped_profile_fits_the_embedded_server(name: str, path: Path, registry: Registry) -> None:
    embedded = load(path, registry).target.embedded
    assert embedded is not None
    make_options(SimulatorSpec(embedded.dialect, embedded.era, embedded.defects, embedded.flags))


def test_profile_to_yaml_can_be_loaded_again(tmp_path: Path, registry: Registry) -> None:
    first = load(resources.profile("mtp_mm"), registry, ["load.0.users=3"])
    (tmp_path / "again.yaml").write_text(first.to_yaml())
    assert load(tmp_path / "again.yaml", registry) == first


def test_demo_profile_has_632_requests_and_reset_attacks(registry: Registry) -> None:
    profile = load(resources.profile("mtp_mm"), registry)
    assert planned_requests(profile.load) == 632
    assert profile.image_sizes() == ([(1024, 1024), (256, 256)], 2)
    assert profile.recovers_within_s() == 300.0
    assert profile.attacks[0].spec()["every_s"] == 2.0


@pytest.mark.parametrize("number", range(4))
def test_each_traffic_of_the_demo_can_be_left_out(number: int, registry: Registry) -> None:
    profile = load(resources.profile("mtp_mm"), registry, [f"traffic.{number}.weight=0"])
    assert planned_requests(profile.load, 0) == (600 if number == 3 else 632)
    sent = {step.traffic for step in steps(profile, 0)}
    assert sent == {name for i, name in enumerate(profile.traffic_names()) if i != number}
    assert profile.warnings() == [], "none about a traffic that is left out"
    assert from_mapping(profile.to_json(), registry) == profile


def test_schema_file_is_current() -> None:
    assert (resources.folder("schemas") / "profile.json").read_text() == schema(), "run `make schemas`"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("error_ratio", "error_rate"), ("failure_rate", "error_rate"), ("http_req_failed", "error_rate"),
        ("time_per_output_token_p99", "tpot_p99"), ("tpot", "tpot_p99"), ("t.tpot.p95", "t.tpot_p95"),
        ("latency_p95", "e2e_p95"),
        ("p95_latency", "e2e_p95"), ("http_req_duration.p95", "e2e_p95"), ("p99_ttft_ms", "ttft_p99"),
        ("mean_e2el_ms", "e2e_mean"), ("median_itl_ms", "itl_p50"), ("time_to_first_token.avg", "ttft_mean"),
        ("response_time_p90", "e2e_p90"), ("success_rate", "ok_share"), ("crashes", "engine_deaths"),
        ("http_error", "outcomes.http_error"), ("t.timeout", "t.outcomes.timeout"),
    ],
)  # fmt: skip
def test_unknown_figure_of_another_tool_is_translated(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"did you mean {meant}?")):
        expectation_names.parse(f"{name} <= 1", ["t"])


PREFIXES = expectation_names.prefixes([("t", "chat"), ("u", "chat"), ("endpoint", "embeddings")])


@pytest.mark.parametrize(
    ("text", "traffic", "name", "meaning"),
    [
        ("endpoint.chat.e2e_p99 <= 1s", "endpoint.chat", "e2e_p99", "end-to-end time of a request, p99 (endpoint chat)"),
        ("endpoint.embeddings.outcomes.ok > 1", "endpoint.embeddings", "outcomes.ok",
         "requests with the outcome ok (endpoint embeddings)"),
        ("endpoint.outcomes.ok > 1", "endpoint", "outcomes.ok", "requests with the outcome ok (traffic endpoint)"),
        ("t.acceptance >= 60%", "t", "acceptance",
         "share of the drafted tokens that speculative decoding accepted (traffic t)"),
    ],
)  # fmt: skip
def test_expectation_names_a_traffic_or_an_endpoint(text: str, traffic: str, name: str, meaning: str) -> None:
    for prefixes in (PREFIXES, None):
        found = expectation_names.parse(text, prefixes)
        assert (found.traffic, found.name, found.meaning()) == (traffic, name, meaning)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("endpoint.rerank.e2e_p99 <= 1s",
         "unknown endpoint in 'endpoint.rerank.e2e_p99'; the profile has endpoint.chat, endpoint.embeddings"),
        ("endpoint.chat.latency_p95 <= 1s", "did you mean endpoint.chat.e2e_p95?"),
        ("endpoint.chat.hangs == 0", "hangs exists only for the whole run"),
        ("endpoint.chat.session_e2e_p50 <= 1s",
         "session_e2e_p50 exists for all sessions or one traffic, not for an endpoint"),
    ],
)  # fmt: skip
def test_wrong_expectation_of_an_endpoint_is_explained(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        expectation_names.parse(text, PREFIXES)
