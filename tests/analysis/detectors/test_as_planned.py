from typing import Any, cast

import pytest

from loadchaos.analysis.detectors.exact_lengths import ExactLengths
from loadchaos.analysis.detectors.image_cache_hits import ImageCacheHits
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.model import Row


def end(**given: Any) -> dict[str, Any]:
    return {"row": "end", "outcome": "ok", "traffic": "text", **given}


def folded(rows: list[dict[str, Any]]) -> ExactLengths:
    exactness = ExactLengths()
    for row in rows:
        exactness.on_end(cast("EndRow", row))
    return exactness


def test_exact_lengths_pass_when_all_match() -> None:
    rows = [end(planned_tokens=100, prompt_tokens=100, exact_tokens=8, completion_tokens=8)] * 3
    checks = [(c.name, c.actual, c.verdict) for c in folded(rows).checks(())]
    assert checks == [("exact_lengths", "3 of 3 prompts", "pass"), ("exact_outputs", "3 of 3 outputs", "pass")]


def test_exact_lengths_fail_with_traffic_and_difference() -> None:
    rows = [end(planned_tokens=100, prompt_tokens=100), end(planned_tokens=100, prompt_tokens=103, traffic="images")]
    exactness = folded(rows)
    (check,) = exactness.checks(())
    assert (check.actual, check.verdict) == ("1 of 2 prompts (images: +3 in 1)", "fail")
    assert dict(exactness.mismatches) == {"length_mismatch": 1}


def test_exact_lengths_leave_bounds_of_the_profile_alone() -> None:
    (check,) = folded([end(exact_tokens=8, completion_tokens=5)]).checks(("output_mismatch <= 2",))
    assert (check.actual, check.verdict) == ("0 of 1 outputs (text: -3 in 1)", "pass")


def test_exact_outputs_fail_on_longer_answers_of_a_server_that_cannot_be_asked() -> None:
    (check,) = folded([end(most_tokens=32, completion_tokens=136)] * 40).checks(())
    assert (check.name, check.actual, check.verdict) == ("exact_outputs", "0 of 40 outputs (text: +104 in 40)", "fail")
    (check,) = folded([end(most_tokens=32, completion_tokens=n) for n in (32, 9)]).checks(())
    assert check.verdict == "pass"
    assert check.actual == "2 of 2 outputs; 1 shorter: this server has no option for an exact length"


@pytest.mark.parametrize("asked", ["exact_tokens", "most_tokens"])
def test_exact_outputs_without_usage_are_unknown(asked: str) -> None:
    (check,) = folded([end(completion_tokens=None, **{asked: 32})] * 3).checks(())
    assert (check.name, check.actual, check.verdict) == (
        "exact_outputs", "0 of 0 outputs; 3 answers carry no usage", "unknown",
    )  # fmt: skip
    longer = [end(completion_tokens=None, **{asked: 32}), end(completion_tokens=33, **{asked: 32})]
    assert folded(longer).checks(())[0].verdict == "fail"


@pytest.mark.parametrize(
    ("counted", "uncounted", "tokens", "verdict"),
    [(98, 2, 32, "unknown"), (99, 1, 32, "pass"), (1, 1, 33, "fail")],
    ids=["more than 1 % without", "1 % without", "one wrong"],
)
def test_exact_outputs_need_the_usage_of_nearly_all(counted: int, uncounted: int, tokens: int, verdict: str) -> None:
    rows = [end(exact_tokens=32, completion_tokens=tokens)] * counted
    (check,) = folded([*rows, *[end(exact_tokens=32, completion_tokens=None)] * uncounted]).checks(())
    assert (check.name, check.verdict) == ("exact_outputs", verdict)


@pytest.mark.parametrize("row", [end(planned_tokens=None, prompt_tokens=5), end(planned_tokens=5, prompt_tokens=None),
                                 end(outcome="aborted", planned_tokens=5, prompt_tokens=6),
                                 end(exact_tokens=None, completion_tokens=None)])  # fmt: skip
def test_exact_lengths_compare_only_planned_and_reported_answers(row: Row) -> None:
    assert folded([dict(row)]).checks(()) == []


def test_exact_lengths_name_usage_without_image_tokens() -> None:
    row = end(traffic="images", planned_tokens=300, image_tokens=256, prompt_tokens=44)
    exactness = folded([row] * 3)
    assert [(c.name, c.verdict) for c in exactness.checks(())] == [("exact_lengths", "pass"), ("image_usage", "pass")]
    assert exactness.mismatches["length_mismatch"] == 0
    assert "left out in all 3 answers of images" in exactness.checks(())[1].actual


def test_exact_lengths_fail_when_only_some_answers_leave_out_image_tokens() -> None:
    row = end(traffic="images", planned_tokens=300, image_tokens=256, prompt_tokens=44)
    exactness = folded([row, {**row, "prompt_tokens": 300}])
    (check,) = exactness.checks(())
    assert (check.actual, check.verdict) == ("1 of 2 prompts (images: -256 in 1)", "fail")
    assert exactness.mismatches["length_mismatch"] == 1


# --- images -------------------------------------------------------------------------------------------------------------


class Story:
    """Sequential requests with images, and scrapes of the counters."""

    def __init__(self, before: int = 7) -> None:
        self.dial = ImageCacheHits()
        self.n, self.before = 0, before
        self.counted(0, 0)

    def begin(self, *names: int, new: int = 0) -> int:
        self.n += 1
        images = len(names) + new
        self.dial.fold({"row": "begin", "id": self.n, "images": images, "image_names": names, "traffic": "images"})
        return self.n

    def ends(self, n: int, outcome: str = "ok") -> None:
        self.dial.fold({"row": "end", "id": n, "outcome": outcome})

    def sent(self, *names: int, new: int = 0) -> None:
        self.ends(self.begin(*names, new=new))

    def counted(self, queries: int, hits: int, engine: str = "0") -> None:
        values = {"mm_cache_queries_total": self.before + queries, "mm_cache_hits_total": 2.0 + hits}
        self.dial.fold({"row": "metrics", "replica": "server", "engine": engine, "values": values})

    def result(self, *, required: bool = False) -> tuple[str, str]:
        check = self.dial.check(required=required)
        return (check.verdict, check.actual) if check else ("", self.dial.note)

    def asked(self, *names: int) -> None:
        self.dial.fold({"row": "question", "image_names": names})


def repeated(times: int, before: int = 7) -> Story:
    """100 images sent one by one and repeated, after calibration images."""
    story = Story(before)
    for _ in range(1 + times):
        for name in range(100):
            story.sent(name)
    return story


def test_image_cache_hits_count_the_images_of_our_questions() -> None:
    story = repeated(1)
    story.asked(*range(1000, 1020))
    story.asked(1000)
    story.counted(221, 101)
    assert story.result() == ("pass", "101 hits in 221 queries, 100 to 101 repeats sent")
    story.counted(251, 101)
    assert story.result() == ("", "")
    assert story.result(required=True) == (
        "",
        "image cache hits were not compared with repeats: 251 cache lookups, 221 to 221 of them ours",
    )


@pytest.mark.parametrize(("hits", "verdict"), [(103, "pass"), (180, "unknown"), (194, "unknown"), (195, "fail")])
def test_image_cache_hits_of_an_earlier_run_with_this_seed_prove_nothing(hits: int, verdict: str) -> None:
    story = repeated(1, before=90)
    story.counted(200, hits)
    assert story.result()[0] == verdict
    if verdict == "unknown":
        assert "the server had looked up 90 images before the load" in story.result()[1]


def test_image_cache_hits_count_videos() -> None:
    story = repeated(1)
    story.dial.fold({"row": "begin", "id": 900, "images": 0, "videos": 2, "image_names": [1], "traffic": "videos"})
    story.ends(900)
    story.counted(202, 101)
    assert story.result() == ("pass", "101 hits in 202 queries, 101 repeats sent")


def test_image_cache_hits_fail_on_a_hit_of_a_new_image() -> None:
    story = repeated(1)
    story.counted(200, 112)
    verdict, actual = story.result()
    assert verdict == "fail"
    assert "images never sent before were cache hits" in actual


def test_image_cache_hits_below_the_repeats_are_unknown_where_required() -> None:
    story = repeated(1)
    story.counted(200, 40)
    assert story.result()[0] == "pass"
    assert "the cache evicts earlier" in story.result()[1]
    assert story.result(required=True)[0] == "unknown"


def test_image_cache_hits_of_concurrent_uses_are_open() -> None:
    story = Story()
    for name in range(100):
        first, second = story.begin(name), story.begin(name)
        story.ends(first)
        story.ends(second)
    story.counted(200, 50)
    assert story.result() == ("pass", "50 hits in 200 queries, 0 to 100 repeats sent")


def test_image_cache_hits_of_failed_requests_are_open() -> None:
    story = repeated(1)
    story.ends(story.begin(0), "http_error")
    story.begin(1)
    story.counted(201, 101)
    assert story.result() == ("pass", "101 hits in 201 queries, 100 to 102 repeats sent")


def test_image_cache_names_leave_out_new_images() -> None:
    story = Story()
    for name in range(100):
        story.sent(name, new=1)
    story.counted(200, 0)
    assert story.result() == ("pass", "0 hits in 200 queries, 0 repeats sent")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"row": "attack", "what": "begin"}, "attacks ran"),
        ({"row": "begin", "id": 9, "images": 1, "image_names": None, "traffic": "hostile"}, "have no names in the ledger"),
        ({"row": "launch", "what": "exit", "asked": False}, "the server went down"),
        ({"row": "metrics", "replica": "b", "engine": "0",
          "values": {"mm_cache_queries_total": 900.0, "mm_cache_hits_total": 0.0}}, "2 engines have a cache each"),
        ({"row": "metrics", "replica": "server", "engine": "0",
          "values": {"mm_cache_queries_total": 500.0, "mm_cache_hits_total": 0.0}}, "200 to 200 of them ours"),
    ],
)  # fmt: skip
def test_image_cache_hits_are_not_compared_without_meaning(row: dict[str, Any], why: str) -> None:
    story = repeated(1)
    story.counted(200, 0)
    story.dial.fold(row)
    assert story.result() == ("", "")
    verdict, actual = story.result(required=True)
    assert verdict == ""
    assert why in actual


def test_image_cache_check_is_left_out_without_repeats_or_counters() -> None:
    story = Story()
    for _ in range(100):
        story.sent(new=1)
    story.counted(100, 0)
    assert story.result() == ("", "")
    assert ImageCacheHits().check(required=True) is None


@pytest.mark.parametrize(
    ("asked", "counted", "verdict"),
    [
        ([100] * 3, [200] * 3, "unknown"),
        ([100] * 3, [50] * 3, "unknown"),
        ([100, 40, 300], [200, 80, 600], "pass"),
        ([100] * 3, [104] * 3, None),
        ([10] * 3, [12] * 3, None),
    ],
)
def test_asked_lengths_stand_beside_those_that_usage_counts(
    asked: list[int], counted: list[int], verdict: str | None
) -> None:
    pairs = zip(asked, counted, strict=True)
    rows = [end(planned_tokens=None, asked_tokens=a, prompt_tokens=c) for a, c in pairs]
    found = [c for c in folded(rows).checks(()) if c.name == "asked_lengths"]
    assert [c.verdict for c in found] == ([verdict] if verdict else [])
    if asked == [100] * 3 and counted == [200] * 3:
        assert found[0].actual == "text: 100 tokens asked (p50), 200 counted, factor 2.00, in 3 answers"
