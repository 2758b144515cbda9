import base64
import io
import json
import struct
import wave
from typing import Any

import pytest

from loadchaos.core.model import Facts
from loadchaos.load.payloads.audio import wav
from loadchaos.load.registry import full_registry
from loadchaos.load.request_builder import build
from loadchaos.profile.profile import from_mapping
from loadchaos.profile.steps import steps

FACTS = Facts("http://x", "http://x", "vllm", "m", "0.32.0", max_model_len=4096)


def sent(number: int, endpoint: str = "chat", **options: Any) -> list[Any]:
    traffic = [{"name": "t", "endpoint": endpoint, "payload": {"audio": options}}]
    data = {"name": "p", "traffic": traffic, "load": [{"users": 1, "requests": number}]}
    return [build(step, FACTS) for step in steps(from_mapping(data, full_registry()), 3)]


def files(request: Any) -> list[bytes]:
    content = json.loads(request.body)["messages"][0]["content"]
    return [base64.b64decode(p["input_audio"]["data"]) for p in content if p["type"] == "input_audio"]


def test_audio_is_a_wav_file_of_the_asked_length() -> None:
    lengths = set()
    for request in sent(12, seconds="1..3", count=2):
        assert (len(files(request)), request.audio, request.tokens, request.image_names) == (2, 2, None, [])
        for file in files(request):
            with wave.open(io.BytesIO(file)) as read:
                assert (read.getframerate(), read.getnchannels(), read.getsampwidth()) == (16_000, 1, 2)
                lengths.add(read.getnframes() / 16_000)
    assert lengths == {1, 2, 3}


def test_audio_repeats_at_the_reuse_distance_to_the_byte() -> None:
    requests = sent(12, seconds=1, unique="0%", reuse_distance=4)
    bodies = [files(r)[0] for r in requests]
    assert bodies[4:8] == bodies[:4] == bodies[8:]
    assert len(set(bodies)) == 4
    assert [r.image_names for r in requests[4:8]] == [r.image_names for r in requests[:4]]


def test_audio_near_duplicates_differ_in_one_sample() -> None:
    requests = sent(8, seconds=1, near_duplicates="100%", reuse_distance=4)
    for first, second in zip(requests[:4], requests[4:], strict=True):
        (a,), (b,) = files(first), files(second)
        samples = [struct.unpack("<16000h", file[44:]) for file in (a, b)]
        assert sum(x != y for x, y in zip(*samples, strict=True)) == 1
        assert first.image_names != second.image_names


@pytest.mark.parametrize("variation", [1, 1023, 1024, 0xFFFFFF])
def test_audio_variations_change_the_file(variation: int) -> None:
    name = bytes(range(16))
    assert wav(1, name, 0) != wav(1, name, variation)


def test_transcription_body_is_a_form_with_the_file() -> None:
    (request,) = sent(1, "transcriptions", seconds=1)
    boundary = request.body[2 : request.body.index(b"\r\n")]
    parts = request.body.split(b"--" + boundary)
    assert parts[0] == b""
    assert parts[-1] == b"--\r\n"
    named = {
        part.split(b'name="')[1].split(b'"')[0].decode(): part.split(b"\r\n\r\n", 1)[1][:-2] for part in parts[1:-1]
    }
    assert named.pop("file")[:4] == b"RIFF"
    assert {k: v.decode() for k, v in named.items() if k != "seed"} == {
        "model": "m", "temperature": "0", "max_completion_tokens": "128", "stream": "true", "stream_include_usage": "true",
    }  # fmt: skip
    assert (request.path, request.endpoint) == ("/v1/audio/transcriptions", "transcriptions")
