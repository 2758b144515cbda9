import json
from pathlib import Path

import pytest

from loadchaos.core import resources
from loadchaos.core.model import Facts, TextFacts
from loadchaos.load.request_builder import build
from loadchaos.profile.explain import explain
from loadchaos.profile.profile import Registry, load
from loadchaos.profile.steps import steps
from tests.profile.conftest import Write

PROMPTS = "tokens of the prompts of sessions are not known before: they hold the answers"


def about(name: str, payload: str, more: str = "") -> str:
    return f"""
name: {name}
traffic:
  - {{name: first, payload: {payload}, output: {{max: 8}}}}
{more}
load:
  - {{users: 4, requests: 12}}
"""


def test_explain_ladder_has_the_output_of_its_requests(registry: Registry) -> None:
    profile = load(resources.profile("near_max_len"), registry)
    facts = Facts(
        "http://x",
        "http://x",
        "vllm",
        "m",
        "0.18.0",
        max_model_len=4096,
        text=TextFacts(9, ((" the", 1),), " the", "tokenize"),
    )
    asked = [build(step, facts).max_tokens or 0 for step in steps(profile, 0)]
    assert len(asked) == 225
    text = explain(profile)
    assert f"at most {sum(asked):,} output tokens" in text
    assert f"at most {max(asked)} tokens" in text


@pytest.fixture
def bodies(tmp_path: Path) -> Path:
    question = [{"role": "user", "content": "why?"}]
    two: list[dict[str, object]] = [{"messages": question, "max_tokens": 30, "n": 2}, {"messages": question}]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, two)))
    return tmp_path / "r.jsonl"


def test_explain_requests_file_without_max_tokens_is_unlimited(write: Write, bodies: Path) -> None:
    whole = about("open", f"{{requests: {{file: {bodies}}}}}").replace(", output: {max: 8}", "")
    text = explain(write(whole))
    assert "output: no limit in the profile for 1 of 2 requests" in text
    assert "12 requests from a file, with unknown numbers of tokens" in text
    assert "output of first: no limit in the profile" in text
    assert "run time: unknown" in text
    assert "output tokens" not in text
    beside = "  - {name: beside, payload: {text: {tokens: 10}}, output: {max: 5}}"
    mixed = explain(write(whole.replace("\nload:", f"{beside}\nload:")))
    assert "output of first: no limit" in mixed
    assert "at most 210 output tokens" in mixed  # three times 2 answers of 30 tokens, and six of 5


def test_explain_counts_every_answer_of_a_request(write: Write) -> None:
    text = explain(write(about("several", "{text: {tokens: 10}, sampling: {n: 3}}")))
    assert "at most 8 tokens per answer" in text
    assert "at most 288 output tokens" in text


def test_explain_hostile_images_have_unknown_tokens(write: Write) -> None:
    assert "12 images\n  at most 96 output tokens" in explain(write(about("hostile", "{hostile_images: {}}")))
    beside = "  - {name: beside, payload: {images: {size: 64x64}}}"
    mixed = explain(write(about("mixed", "{hostile_images: {}}", beside)))
    assert "12 images (6 of them have " in mixed.replace("6.0 of", "6 of")


def test_explain_counts_audio_and_video_as_what_they_are(write: Write) -> None:
    audio = explain(write(about("speech", "{audio: {count: 2, seconds: 2..4}}")))
    assert "about 24 audio files, 72 s in all" in audio
    assert " images" not in audio
    video = explain(write(about("films", "{video: {count: 1..2, frames: 16}}")))
    assert "about 18 videos of 16 frames" in video


def test_notes_name_files_that_are_not_sent(write: Write, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for name in ("a.png", "readme.md"):
        (tmp_path / "pictures" / name).write_bytes(b"x")
    profile = write(about("own", f"{{hostile_images: {{folder: {tmp_path}/pictures}}}}"))
    assert profile.notes() == [f"{tmp_path}/pictures: not sent, because their names are not those of images: readme.md"]
    assert "(not sent, because their names are not those of images: readme.md)" in explain(profile)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    rows = [{"timestamp": at, "input_length": 1000, "output_length": 7} for at in (0, 500, 900, 2000)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "t.jsonl"


def test_explain_trace_has_its_own_lengths(write: Write, recorded: Path) -> None:
    text = explain(
        write(f"""
name: played
traffic:
  - {{name: first, payload: {{text: {{tokens: 64}}}}, output: {{max: 8}}}}
load:
  - {{trace: {recorded}, for: 1s}}
""")
    )
    assert "at most 8 tokens (the lengths of the trace replace these)" in text
    assert "Total: 3 requests\n  about 3,000 tokens of text\n  at most 21 output tokens\n" in text


def test_explain_trace_beside_other_phases(write: Write, recorded: Path) -> None:
    text = explain(
        write(f"""
name: both
traffic:
  - {{name: first, payload: {{text: {{tokens: 64}}}}, output: {{max: 8}}}}
load:
  - {{users: 1, requests: 10}}
  - {{trace: {recorded}}}
""")
    )
    assert "(in a phase with a trace, the lengths of the trace replace these)" in text
    assert "4,640 tokens of text\n  at most 108 output tokens\n" in text


def test_explain_law_has_every_setting(write: Write) -> None:
    text = explain(
        write("""
name: laws
traffic:
  - {name: first, payload: {text: {}}}
load:
  - {rate: 2/s, law: spike, to: 20/s, at: 1s, width: 500ms, for: 4s}
  - {rate: 2/s, law: step, to: 20/s, steps: 3, for: 4s}
  - {rate: 2/s, law: day, to: 8/s, at: 14h, for: 48h}
""")
    )
    assert "2 to 20 requests/s (spike after 1 s for 500 ms) for 4 s" in text
    assert "2 to 20 requests/s (3 steps) for 4 s" in text
    assert "2 to 8 requests/s (daily curve of 1 d, peak after 14 h) for 2 d" in text


def test_explain_repeated_images(write: Write) -> None:
    expected = "1 image of 8x8 pixels, {} repeated from 30 requests earlier (the first 30 requests have new ones)"
    for dial, which in (("unique: 0%", "each"), ("unique: 60%", "60% new, the others")):
        text = explain(write(about("again", f"{{images: {{size: 8x8, {dial}, reuse_distance: 30}}}}")))
        assert expected.format(which) in text


@pytest.mark.parametrize(
    ("payload", "warning"),
    [
        (
            "{conversation: {turns: 2, tokens: 99, parallel: 1}}",
            "up to 4 requests are in flight, but only 1 conversation runs at a time: a turn may",
        ),
        ("{conversation: {turns: 2, tokens: 99, parallel: 4}}", None),
        (
            "{images: {unique: 50%}}",
            "images repeat after 200 requests, but a phase has only 12: no image repeats",
        ),
        ("{images: {unique: 50%, reuse_distance: 11}}", None),
        ("{images: {}}", None),
    ],
)
def test_warnings_name_options_without_effect_under_the_load(payload: str, warning: str | None, write: Write) -> None:
    profile = write(about("doubtful", payload))
    text = explain(profile)
    assert f"  note: traffic first: {warning}" in text if warning else "note:" not in text
    assert len(profile.warnings()) == bool(warning)


def test_warnings_need_a_known_number_of_requests(write: Write) -> None:
    text = about("long", "{images: {unique: 50%}}").replace("requests: 12", "for: 10m")
    assert write(text).warnings() == []


@pytest.mark.parametrize("name", resources.profiles())
def test_shipped_profiles_are_explained_without_warnings(name: str, registry: Registry) -> None:
    profile = load(resources.profile(name), registry)
    assert profile.warnings() == []
    text = explain(profile)
    assert text.startswith(f"{name}: ")
    assert "The run passes if" in text
    assert ("--authorize" in text) == bool(profile.dangers())


def test_explain_counts_sessions_with_all_their_requests_and_time_to_think(write: Write) -> None:
    options = "answers: live, turns: 2..4, think: {mean: 9s, most: 4s}, tool_rounds: 1"
    payload = f"{{conversation: {{{options}}}, tools: {{count: 1}}}}"
    text = explain(write(about("agents", payload)))
    assert "first: 100% of the sessions (about 12)" in text
    assert "4 users in a closed loop, 12 sessions in total" in text
    assert f"Total: 12 sessions, at most about 72 requests\n  {PROMPTS}\n  at most 576 output tokens\n" in text
    assert "run time: about 36 s" in text, "3 sessions of a user: 6 requests of 0.66 s, and twice 4 s"
    assert "First sessions with seed 0" in text
    beside = "  - {name: beside, payload: {text: {tokens: 10}}, output: {max: 8}}"
    mixed = explain(write(about("mixed", payload, beside)))
    assert "beside: 50% of the steps (about 6)" in mixed
    assert (
        f"Total: 12 steps, at most about 42 requests\n  about 60 tokens of text\n  {PROMPTS}\n  at most 336 output tokens\n"
        in mixed
    )


@pytest.mark.parametrize(("after", "branches", "in_all"), [(1, 3, 1 + 3 * 2), (2, 2, 2 + 2 * 1)])
def test_explain_counts_the_requests_of_branches(write: Write, after: int, branches: int, in_all: int) -> None:
    payload = f"{{conversation: {{answers: live, turns: 3, branches: {{count: {branches}, after: {after}}}}}}}"
    text = explain(write(about("tree", payload)))
    assert f"Total: 12 sessions, at most about {12 * in_all} requests\n" in text
    assert "run time: about 6 s" in text, "three times 3 requests in a row"


@pytest.mark.parametrize(
    ("load", "limit", "said"),
    [
        (
            "[{rate: 10/s, requests: 200}]",
            "ttft_p99 <= 2s",
            "p99 needs 300 samples, and this load sends 200: a met limit",
        ),
        ("[{rate: 10/s, requests: 400}]", "ttft_p99 <= 2s", ""),
        (
            "[{rate: 100/s, requests: 400}]",
            "ttft_p99 <= 2s",
            "the load lasts 4 s, and a steady state of 10 s is needed beside ramp-up and last answers: a met limit will",
        ),
        ("[{rate: 40/s, requests: 480}]", "ttft_p99 <= 2s", "a met limit may be unknown"),
        ("[{rate: 100/s, requests: 400}]", "ttft_max <= 2s", ""),
        ("[{users: 4, requests: 15}]", "itl_p99 <= 2s", "from 15 answers, 20 are needed"),
        ("[{users: 4, for: 1m}]", "itl_p99 <= 2s", ""),
        ("[{users: 4, requests: 15}]", "ok_share >= 99%", ""),
        (
            "[{users: 4, requests: 500, warm_up: true}, {users: 4, requests: 40}]",
            "e2e_p90 <= 2s",
            "p90 needs 50 samples",
        ),
    ],
)
def test_limit_that_a_load_is_too_short_for_is_told_before(write: Write, load: str, limit: str, said: str) -> None:
    text = about("short", "{text: {tokens: 64}}", f"expect: ['{limit}']")
    found = write(text.replace("load:\n  - {users: 4, requests: 12}", f"load: {load}")).warnings()
    assert len(found) == bool(said) and all(said in text and text.startswith(limit) for text in found), found


def test_explain_tells_the_questions_before_and_beside_the_load(write: Write) -> None:
    profile = write(
        about("asks", "{text: {tokens: 64}}", "correctness: {probes: {every: 3s}, alone_vs_load: {share: 10%}}")
    )
    text = explain(profile)
    assert "  before the load, to the idle server:" in text
    assert "  beside the load: probes every 3 s, alone_vs_load 10% as many as requests\n" in text
    assert "Questions\n  none: --no-questions\n" in explain(profile, questions=False)
