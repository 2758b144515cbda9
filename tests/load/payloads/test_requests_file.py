import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from loadchaos.cli.main import main
from loadchaos.core.model import Facts, Output
from loadchaos.load.payloads import hostile_images, images_by_path, requests_file
from loadchaos.load.request_builder import build
from tests.invoking import output_of
from tests.load.payloads.conftest import Steps

CHAT = {"model": "theirs", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stop": ["x"]}

JPEG, PNG = b"\xff\xd8\xffmeow", b"\x89PNG\r\n\x1a\nmeow"


def lines(path: Path, *records: Any) -> str:
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return str(path)


def sent(file: str, step: Steps, facts: Facts, ordinal: int = 0, **options: Any) -> tuple[str, dict[str, Any]]:
    payload = {"requests": requests_file.Options(file=file, **options)}
    request = build(step(payload, ordinal, output=Output(max=33)), facts)
    found: dict[str, Any] = json.loads(request.body)
    assert found.get("stream", False) is request.stream
    return request.path, found


def test_requests_file_sends_openai_bodies_with_model_and_usage(tmp_path: Path, facts: Facts, step: Steps) -> None:
    file = lines(tmp_path / "r.jsonl", CHAT)
    path, body = sent(file, step, facts)
    assert path == "/v1/chat/completions"
    asked = {"model": facts.model, "stream": True, "stream_options": {"include_usage": True}}
    assert body == {**CHAT, **asked}
    assert sent(file, step, facts, keep_model=True)[1]["model"] == "theirs"


def test_requests_file_body_decides_about_streaming(tmp_path: Path, facts: Facts, step: Steps) -> None:
    own = {**CHAT, "stream": True, "stream_options": {"include_usage": False}}
    file = lines(tmp_path / "r.jsonl", {**CHAT, "stream": False}, own)
    assert "stream_options" not in sent(file, step, facts, 0)[1]
    assert sent(file, step, facts, 1)[1]["stream_options"] == {"include_usage": False}


def test_requests_file_prompt_is_a_completion_and_batch_lines_have_a_path(
    tmp_path: Path, facts: Facts, step: Steps
) -> None:
    batch = {"custom_id": "1", "method": "POST", "url": "/v1/embeddings/x", "body": CHAT}
    file = lines(tmp_path / "r.jsonl", {"prompt": "once upon"}, batch)
    assert sent(file, step, facts, 0)[0] == "/v1/completions"
    assert "max_tokens" not in sent(file, step, facts, 0)[1]
    assert sent(file, step, facts, 1)[0] == "/v1/embeddings/x"


def test_requests_file_order_is_in_order_shuffled_or_sampled(tmp_path: Path, facts: Facts, step: Steps) -> None:
    file = lines(tmp_path / "r.jsonl", *({"prompt": str(n)} for n in range(5)))
    assert [sent(file, step, facts, n)[1]["prompt"] for n in range(7)] == ["0", "1", "2", "3", "4", "0", "1"]
    drawn = [sent(file, step, facts, n, order="sampled")[1]["prompt"] for n in range(60)]
    assert set(drawn) == {"0", "1", "2", "3", "4"}
    assert drawn[:5] != ["0", "1", "2", "3", "4"]
    shuffled = [sent(file, step, facts, n, order="shuffled")[1]["prompt"] for n in range(10)]
    assert sorted(shuffled[:5]) == ["0", "1", "2", "3", "4"] != shuffled[:5] == shuffled[5:]


def test_requests_file_images_by_path_become_data_urls(tmp_path: Path, facts: Facts, step: Steps) -> None:
    (tmp_path / "cat.jpg").write_bytes(JPEG)
    urls = ["cat.jpg", "http://10.0.0.1/x.png", "data:image/png;base64,QQ=="]
    parts = [{"type": "image_url", "image_url": {"url": u, "detail": "low"}} for u in urls]
    file = lines(tmp_path / "r.jsonl", {"messages": [{"role": "user", "content": parts}]})
    payload = {"requests": requests_file.Options(file=file)}
    request = build(step(payload), facts)
    assert request.images == 3
    found = [p["image_url"] for p in json.loads(request.body)["messages"][0]["content"]]
    assert [f["url"] for f in found] == ["data:image/jpeg;base64,/9j/bWVvdw==", *urls[1:]]
    assert {f["detail"] for f in found} == {"low"}


def test_requests_file_sharegpt_sends_each_question_with_its_history(tmp_path: Path, facts: Facts, step: Steps) -> None:
    messages = [{"from": "gpt", "value": "cut off"}, {"from": "human", "value": "héllo"}, {"from": "gpt", "value": "hi"},
            {"from": "human", "value": "and?"}, {"from": "gpt", "value": "bye"}]  # fmt: skip
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps([{"id": "a", "conversations": messages}, {"id": "b", "conversations": []}]))
    first, second, again = (sent(str(file), step, facts, n)[1] for n in range(3))
    assert first["messages"] == [{"role": "user", "content": "héllo"}]
    assert second["messages"] == [
        {"role": "user", "content": "héllo"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "and?"},
    ]
    assert again == first
    assert first["max_tokens"] == 1  # the recorded answer `hi`
    only = requests_file.Options(file=str(file), turns="first")
    assert json.loads(build(step({"requests": only}, 1), facts).body)["messages"] == first["messages"]


@pytest.mark.parametrize("field", ["output_tokens", "output_len", "output_tokens_count"])
def test_requests_file_length_of_a_row_limits_its_answer(field: str, tmp_path: Path, facts: Facts, step: Steps) -> None:
    rows = [
        {"prompt": "a", field: 20, "prompt_len": 1},
        {"prompt": "a", "max_tokens": 7, field: 20},
        {"text": "a", field: 9},
    ]
    file = lines(tmp_path / "r.jsonl", *rows)
    bodies = [sent(file, step, facts, n)[1] for n in range(3)]
    assert [body["max_tokens"] for body in bodies] == [20, 7, 9]
    assert not any({field, "prompt_len"} & body.keys() for body in bodies)
    assert requests_file.Options(file=file).outputs(33) == [20, 7, 9]
    with pytest.raises(ValidationError, match=f"bad.jsonl:1: {field}: a whole number of at least 1 was expected"):
        requests_file.Options(file=lines(tmp_path / "bad.jsonl", {"prompt": "b", field: "20"}))


def test_requests_file_lengths_of_the_traffic_replace_those_of_the_file(
    tmp_path: Path, facts: Facts, step: Steps
) -> None:
    answered = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "word " * 50}]}
    rows = [{"prompt": "a"}, {"prompt": "a", "output_tokens": 20}, {**CHAT, "max_completion_tokens": 9}, answered]
    file = lines(tmp_path / "r.jsonl", *rows)
    bodies = [sent(file, step, facts, n, lengths="traffic")[1] for n in range(4)]
    limits = ("max_tokens", "max_completion_tokens")
    assert [[body.get(name) for name in limits] for body in bodies] == [[33, None], [33, None], [None, 33], [33, None]]
    assert requests_file.Options(file=file, lengths="traffic").outputs(33) == [33, 33, 33, 33]


def test_requests_file_recorded_answers_have_their_length(tmp_path: Path, facts: Facts, step: Steps) -> None:
    answers = ["word " * 400, "yes, it is", ""]
    rows = [{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": a}]} for a in answers]
    file = lines(tmp_path / "r.jsonl", *rows)
    assert [sent(file, step, facts, n)[1]["max_tokens"] for n in range(3)] == [400, 4, 33]
    (note,) = requests_file.Options(file=file).notes()
    assert note == "r.jsonl: the lengths of 2 recorded answers are estimates by words; they are limits"


def test_requests_file_has_byte_order_marks_at_the_begin_of_lines(tmp_path: Path, facts: Facts, step: Steps) -> None:
    row = "\ufeff" + json.dumps(CHAT) + "\r\n"
    (tmp_path / "r.jsonl").write_text(row + row)  # two files put together
    assert sent(str(tmp_path / "r.jsonl"), step, facts, 1)[1]["stop"] == ["x"]


@pytest.mark.parametrize(
    ("payload", "output", "why"),
    [
        ("{requests: {file: r.jsonl}}", "{exact: 8}", "cannot be made to have an exact length"),
        ("{requests: {file: r.jsonl}}", "{max: 8}", "has no effect: no request of r.jsonl leaves the length"),
        ("{requests: {file: r.jsonl, lengths: traffic}}", "{max: 8}", ""),
    ],
)
def test_check_refuses_an_output_that_no_request_of_a_file_has(
    payload: str, output: str, why: str, tmp_path: Path
) -> None:
    lines(tmp_path / "r.jsonl", CHAT)
    text = f"name: p\ntraffic: [{{name: t, payload: {payload}, output: {output}}}]\nload: [{{users: 1, requests: 1}}]\n"
    (tmp_path / "p.yaml").write_text(text)
    found = CliRunner().invoke(main, ["check", str(tmp_path / "p.yaml")])
    assert (found.exit_code == 2, why in str(found.exception) + found.output) == (bool(why), True)


def test_requests_file_reads_aiperf_inputs_of_every_kind(tmp_path: Path, facts: Facts, step: Steps) -> None:
    inputs = tmp_path / "inputs.json"
    inputs.write_text(json.dumps({"data": [{"session_id": "s", "payloads": [CHAT, {**CHAT, "max_tokens": 6}]}]}))
    assert [sent(str(inputs), step, facts, n)[1]["max_tokens"] for n in range(2)] == [5, 6]
    (tmp_path / "a.png").write_bytes(PNG)
    single = lines(
        tmp_path / "single.jsonl",
        {"text": "what is this?", "image": "a.png"},
        {"texts": [{"name": "t", "contents": ["one", "two"]}]},
        {"session_id": "m", "turns": [{"text": "first"}, {"text": "second"}]},
    )
    asked = [sent(single, step, facts, n)[1]["messages"] for n in range(4)]
    contents = [messages[-1]["content"] for messages in asked]
    assert contents[0][0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert contents[0][1] == {"type": "text", "text": "what is this?"}
    assert contents[1:] == ["one two", "first", "second"]
    assert [m["role"] for m in asked[3]] == ["user", "assistant", "user"], "its answer is made up: the file has none"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no request"),
        ('{"prompt": "a"}\n{"prompt": \n', r"r\.jsonl:2:12: not JSON"),
        ('{"prompt": "a"}\n\n{"timestamp": 3}\n', r"r\.jsonl:3: no request: it has timestamp"),
        ("[1]\n", r"r\.jsonl:1: an object was expected"),
        ('{"prompt": "a"}\n{"prompt" "b"}\n', r"r\.jsonl:2:11: not JSON: Expecting ':' delimiter"),
        ('{"conversations": [{"value": "x"}]}\n', r'r\.jsonl:1: conversations: a list of {"from": '),
        ('{"conversations": "x"}\n', r'r\.jsonl:1: conversations: a list of {"from": '),
        ('{"turns": [3]}\n', r"r\.jsonl:1: a turn with text or images was expected \(got 3\)"),
        ('{"conversations": [{"from": "dog", "value": "x"}]}\n', r"r\.jsonl:1: from: human, .* \(got 'dog'\)"),
        ('{"body": {"input": "x"}}\n', r"r\.jsonl:1: a body with messages or a prompt"),
        ('{"url": "/v1/x HTTP/1.1", "body": {"prompt": "x"}}\n', r"a path such as"),
        ('{"messages": [{"content": [{"type": "image_url", "image_url": "no.png"}]}]}', r"r\.jsonl:1: .*no\.png"),
    ],
)
def test_requests_file_reports_an_invalid_request_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(text)
    with pytest.raises(ValidationError, match=message):
        requests_file.Options(file=str(file))


@pytest.mark.parametrize("text", ["5", '{"data": "abc"}'])
def test_requests_file_reports_json_without_requests(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValidationError, match=r"r\.json: a request or a list of them was expected \(got "):
        requests_file.Options(file=str(tmp_path / "r.json"))


def test_requests_file_sends_an_invalid_limit_unchanged(tmp_path: Path, facts: Facts, step: Steps) -> None:
    file = lines(tmp_path / "r.jsonl", {**CHAT, "max_tokens": "many"}, {**CHAT, "max_tokens": -1})
    assert [sent(file, step, facts, n)[1]["max_tokens"] for n in range(2)] == ["many", -1]
    assert requests_file.Options(file=file).outputs(33) == [None, None]


def test_requests_file_reports_a_missing_file_or_binary_data(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="No such file"):
        requests_file.Options(file=str(tmp_path / "none.jsonl"))
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ValidationError, match="not UTF-8"):
        requests_file.Options(file=str(tmp_path / "x.jsonl"))


def test_requests_file_lines_end_only_at_newlines(tmp_path: Path, facts: Facts, step: Steps) -> None:
    file = lines(tmp_path / "r.jsonl", {"prompt": "a\u2028b\u0085c"})
    assert sent(file, step, facts)[1]["prompt"] == "a\u2028b\u0085c"


@pytest.fixture
def asks_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A requests file that names one image, beside a folder of other files."""
    monkeypatch.delenv(images_by_path.ALLOW_PATH, raising=False)
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home / "sub", other):
        folder.mkdir(parents=True)
    for image in (home / "in.png", home / "sub/in.png", other / "out.png"):
        image.write_bytes(PNG)
    (other / "key").write_text("-----BEGIN KEY-----")
    (home / "link.png").symlink_to(other / "out.png")
    (home / "notes.png").write_text("secret notes")
    os.mkfifo(home / "pipe.png")

    def file_with(name: str) -> str:
        requests_file.read_once.cache_clear()
        return lines(home / "r.jsonl", {"text": "what?", "image": name.format(other=other)})

    return file_with


@pytest.mark.parametrize("name", ["in.png", "sub/in.png", "./sub/../in.png"])
def test_requests_file_sends_images_of_its_folder(name: str, asks_outside: Callable[[str], str]) -> None:
    assert requests_file.Options(file=asks_outside(name)).per_request().images == 1


@pytest.mark.parametrize(
    ("name", "why"),
    [("/etc/passwd", "leads out of"), ("../other/key", "leads out of"), ("{other}/out.png", "leads out of"),
     ("link.png", "leads out of"), ("notes.png", "is no image"), ("sub", "is no regular file"),
     ("pipe.png", "is no regular file")],
)  # fmt: skip
def test_requests_file_refuses_other_files(name: str, why: str, asks_outside: Callable[[str], str]) -> None:
    with pytest.raises(ValidationError, match=rf"r\.jsonl:1: .*{why}"):
        requests_file.Options(file=asks_outside(name))


def test_requests_file_sends_images_of_an_allowed_folder(
    tmp_path: Path, asks_outside: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(images_by_path.ALLOW_PATH, "")
    images_by_path.allow((str(tmp_path / "other"),))
    for name in ("{other}/out.png", "link.png", "in.png"):
        assert requests_file.Options(file=asks_outside(name)).per_request().images == 1
    with pytest.raises(ValidationError, match="is no image"):
        requests_file.Options(file=asks_outside("../other/key"))
    with pytest.raises(ValidationError, match="leads out of"):
        requests_file.Options(file=asks_outside("/etc/passwd"))


def test_check_allows_a_folder_by_its_option(
    tmp_path: Path, asks_outside: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(images_by_path.ALLOW_PATH, "")
    profile = tmp_path / "p.yaml"
    payload = {"requests": {"file": asks_outside("../other/out.png")}}
    traffic = [{"name": "t", "payload": payload}]
    profile.write_text(json.dumps({"name": "p", "traffic": traffic, "load": [{"users": 1, "requests": 1}]}))
    refused = CliRunner().invoke(main, ["check", str(profile)])
    assert refused.exit_code == 2
    assert "--allow-path" in str(refused.exception) + refused.output
    output_of("check", profile, "--allow-path", tmp_path / "other")


def test_hostile_images_refuse_a_manifest_that_leads_out_of_its_folder(tmp_path: Path) -> None:
    image = {"file": "../key", "mime": "image/png", "what": "x", "right": "either"}
    (tmp_path / "odd").mkdir()
    (tmp_path / "key").write_text("key")
    (tmp_path / "odd/manifest.json").write_text(json.dumps({"images": [image]}))
    with pytest.raises(ValidationError, match=r"'\.\./key' leads out of"):
        hostile_images.Options(folder=str(tmp_path / "odd"))
