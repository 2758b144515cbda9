import pytest

from loadchaos.analysis.classify.classifier import classify_text, load
from loadchaos.analysis.classify.signature_file import build

SERVES = "(APIServer pid=1) INFO:     Application startup complete.\n"
ENGINE = "(EngineCore pid=15) ERROR 01-05 12:12:00 [core.py:1142] "
API = "(APIServer pid=1) ERROR 01-05 12:12:00 "
GOES_ON = "(APIServer pid=1) INFO: more\n" * 20


def death(*frames: str, exception: str = "FluxError: 7 is odd") -> str:
    rows = ["EngineCore encountered a fatal error.", "Traceback (most recent call last):"]
    for frame in frames:
        rows += [f'  File "/x/{frame}", line 7, in run', "    go()"]
    return SERVES + "".join(f"{ENGINE}{row}\n" for row in [*rows, exception])


def test_place_is_that_of_the_innermost_known_frame() -> None:
    [failure] = classify_text(death("vllm/v1/core/sched/flux.py", "vllm/v1/core/block_pool.py", "flux/odd.py"))
    assert (failure.id, failure.severity, failure.role) == ("error_in_kv_cache", "engine_death", "cause")
    assert failure.title == "Management of the KV cache: FluxError: N is odd in odd.py run"


def test_type_of_an_exception_comes_before_its_frames() -> None:
    [failure] = classify_text(death("vllm/v1/core/block_pool.py", exception="ray.exceptions.FluxError: 7 is odd"))
    assert failure.id == "error_in_ray"


def test_signature_comes_before_a_place() -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB."
    [failure] = classify_text(death("vllm/v1/core/block_pool.py", exception=text))
    assert not failure.id.startswith("error_in_")


def test_error_line_has_the_place_of_the_file_that_logged_it() -> None:
    [failure] = classify_text(f"{SERVES}{API}[nixl_connector.py:815] the flux is odd\n{GOES_ON}")
    assert (failure.id, failure.severity) == ("error_in_kv_connector", "request")
    assert failure.title == "The KV connector: the flux is odd"


def test_different_errors_of_one_place_are_different_failures() -> None:
    lines = "".join(f"{API}[nixl_connector.py:815] the {word} flux is odd\n" for word in ("red", "blue"))
    found = classify_text(SERVES + lines + GOES_ON)
    assert len({failure.key for failure in found}) == 2


@pytest.mark.parametrize("level", ["INFO", "WARNING", "DEBUG"])
def test_place_makes_no_failure_of_a_line(level: str) -> None:
    words = "NIXL LMCache ray.exceptions.RaySystemError: jinja2.exceptions.TemplateError: tool_call --max-model-len"
    line = f"(APIServer pid=1) {level} 01-05 12:12:00 [nixl_connector.py:815] {words}\n"
    assert classify_text(SERVES + line + GOES_ON) == []


def test_warned_exception_with_a_place_is_no_failure() -> None:
    rows = [
        "failed once, trying again",
        "Traceback (most recent call last):",
        '  File "/x/v1/core/block_pool.py", line 7, in run',
    ]
    text = "".join(
        f"(EngineCore pid=15) WARNING 01-05 12:12:00 [core.py:1] {row}\n" for row in [*rows, "FluxError: odd"]
    )
    assert classify_text(SERVES + text + GOES_ON) == []


def test_cause_before_a_traceback_shows_its_exception() -> None:
    intro = f"{ENGINE}Unexpected error pre-processing request chatcmpl-9\n"
    rows = [
        "Traceback (most recent call last):",
        '  File "/x/flux.py", line 7, in run',
        "    go()",
        "FluxError: 7 is odd",
    ]
    [failure] = classify_text(SERVES + intro + "".join(f"{ENGINE}{row}\n" for row in rows) + GOES_ON)
    assert failure.id == "mm_cache_desync_request"
    assert str(failure.evidence.text).endswith("chatcmpl-9 <- FluxError: 7 is odd")


def test_places_are_listed_and_have_a_remedy() -> None:
    places = load().places
    assert len(places) > 30
    assert all(place.remedy and place.title for place in places)
    assert all(load().get(place.id) is place for place in places)


def test_place_needs_no_words_to_find() -> None:
    text = '[[signature]]\nid="p"\ntitle="t"\nseverity="request"\nrole="place"\npattern="odd"\n'
    place = build({"x.toml": text}).place("the flux is odd")
    assert place is not None
    assert place.id == "p"
