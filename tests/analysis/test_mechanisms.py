import pytest

from loadchaos.analysis.mechanisms import Mechanisms
from loadchaos.core.model import ExposureGoal, Facts


@pytest.mark.parametrize(
    ("n", "at_least", "verdict"), [(10, 10, "pass"), (9, 10, "unknown"), (1, 0, "pass"), (0, 0, "unknown")]
)
def test_exposure_is_proved_from_its_number_on(n: int, at_least: int, verdict: str) -> None:
    mechanisms = Mechanisms()
    for i in range(n):
        mechanisms.on_end({"row": "end", "at_ns": i, "id": str(i), "outcome": "ok", "first_token_ns": i})  # type: ignore[typeddict-item]
    mechanisms.on_end({"row": "end", "at_ns": 99, "id": "x", "outcome": "reset"})  # type: ignore[typeddict-item]
    check = mechanisms.exposed(ExposureGoal("requests", at_least))
    assert check is not None
    assert (check.verdict, check.actual) == (verdict, str(n))


def test_exposure_counts_requests_that_we_aborted() -> None:
    mechanisms = Mechanisms()
    for i, outcome in enumerate(("aborted", "aborted", "reset")):
        mechanisms.on_end({"row": "end", "at_ns": i, "id": str(i), "outcome": outcome})  # type: ignore[typeddict-item]
    check = mechanisms.exposed(ExposureGoal("aborted_requests", 2))
    assert check is not None
    assert (check.verdict, check.actual) == ("pass", "2")


@pytest.mark.parametrize(
    ("reason", "outcome", "counted"),
    [("tool_calls", "ok", 1), ("tool_calls", "wrong_output", 1), ("length", "ok", 0), ("tool_calls", "reset", 0)],
)
def test_finished_tool_calls_are_judged_answers(reason: str, outcome: str, counted: int) -> None:
    mechanisms = Mechanisms()
    mechanisms.on_end({"row": "end", "at_ns": 1, "outcome": outcome, "first_token_ns": 1, "finish_reason": reason})  # type: ignore[typeddict-item]
    assert mechanisms.exposures["finished_tool_calls"] == counted


@pytest.mark.parametrize(
    ("prompt", "completion", "crossed"),
    [(1023, 1, 1), (1024, 900, 0), (1000, 20, 0), (500, 30, 0), (32_760, 16, 1), (0, 2000, 0)],
)
def test_position_crossings_count_powers_of_two_within_an_answer(prompt: int, completion: int, crossed: int) -> None:
    mechanisms = Mechanisms()
    mechanisms.on_end(
        {"row": "end", "at_ns": 1, "outcome": "ok", "prompt_tokens": prompt, "completion_tokens": completion}  # type: ignore[typeddict-item]
    )
    assert mechanisms.exposures["position_crossings"] == crossed


@pytest.mark.parametrize(
    ("waiting", "verdict", "actual"),
    [
        ([0, 3, 1, 0], "pass", "requests_waiting was above 0 in 2 readings, at most 3"),
        ([0, 3, 0], "unknown", "requests_waiting was above 0 in 1 readings, at most 3"),
        ([], "unknown", "not measured"),
    ],
)
def test_queueing_is_proved_by_two_readings_above_zero(waiting: list[float], verdict: str, actual: str) -> None:
    mechanisms = Mechanisms()
    for i, value in enumerate(waiting):
        mechanisms.on_metrics({"row": "metrics", "at_ns": i, "values": {"requests_waiting": value}})  # type: ignore[typeddict-item]
    (check,) = mechanisms.required(["queueing"], None, 0)
    assert (check.verdict, check.actual) == (verdict, actual)


@pytest.mark.parametrize(("healthy", "verdict"), [(["a"], "unknown"), (["a", "a"], "unknown"), (["a", "b"], "pass")])
def test_replicas_are_proved_by_two_that_were_healthy(healthy: list[str], verdict: str) -> None:
    mechanisms = Mechanisms()
    for i, name in enumerate(healthy):
        mechanisms.on_state({"row": "state", "at_ns": i, "to": "healthy", "replica": name})  # type: ignore[typeddict-item]
    mechanisms.on_state({"row": "state", "at_ns": 9, "to": "starting", "replica": "c"})  # type: ignore[typeddict-item]
    (check,) = mechanisms.required(["replicas"], None, 0)
    assert check.verdict == verdict


def test_exposure_of_an_unknown_name_is_unknown() -> None:
    check = Mechanisms().exposed(ExposureGoal("wishes"))
    assert check is not None
    assert check.verdict == "unknown"


@pytest.mark.parametrize(("names", "verdict"), [(("alpha", "beta"), "pass"), ((), "unknown")])
def test_lora_adapters_are_proved_by_the_list_of_the_server(names: tuple[str, ...], verdict: str) -> None:
    facts = Facts("http://h", "http://h", "vllm", lora_adapters=names)
    (check,) = Mechanisms().required(["lora_adapters"], facts, 0)
    assert (check.verdict, check.actual) == (verdict, "alpha, beta" if names else "/v1/models lists none")
