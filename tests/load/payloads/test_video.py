import base64
import io
import json
import struct
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image
from pydantic import ValidationError

from loadchaos.core.model import Facts
from loadchaos.load.payloads import PAYLOADS, avi, jpeg, video
from loadchaos.load.request_builder import build
from loadchaos.simulator.media import videos
from loadchaos.simulator.media.processor import ImageError, Processor
from tests.load.payloads.conftest import Steps

TEXT = PAYLOADS["text"].model_validate({"tokens": 40})


def options(**given: Any) -> video.Options:
    return video.Options.model_validate({"frames": 5, "size": "64x48", **given})


def sent(facts: Facts, step: Steps, ordinal: int, **given: Any) -> list[str]:
    one = step({"video": options(**given), "text": TEXT}, ordinal)
    content = json.loads(build(one, facts).body)["messages"][0]["content"]
    return [part["video_url"]["url"] for part in content if part["type"] == "video_url"]


def test_avi_file_holds_its_frames_where_the_format_wants_them() -> None:
    frames = [jpeg.template(64, 48).file(bytes(16), n) for n in range(5)]
    data = avi.file(frames, 64, 48, 4)
    assert struct.unpack("<4sI4s", data[:12]) == (b"RIFF", len(data) - 8, b"AVI ")
    per_frame_us, _, _, flags, count = struct.unpack_from("<5I", data, data.index(b"avih") + 8)
    assert (per_frame_us, flags & 0x10, count) == (250_000, 0x10, 5)
    found, fps = videos._of_avi(data)
    assert (found, fps) == (frames, 4.0)
    assert [Image.open(io.BytesIO(frame)).convert("RGB").size for frame in found] == [(64, 48)] * 5
    assert len({Image.open(io.BytesIO(frame)).convert("RGB").tobytes() for frame in found}) == 5, "something moves"
    at = data.index(b"idx1") + 8
    for n, frame in enumerate(frames):  # each entry of the index leads to its frame
        _, _, offset, size = struct.unpack_from("<4sIII", data, at + 16 * n)
        begin = data.index(b"movi") + offset + 8
        assert data[begin : begin + size] == frame


@pytest.mark.parametrize("kind", ["avi", "frames"])
def test_video_is_new_or_repeated_as_asked(kind: str, facts: Facts, step: Steps) -> None:
    new = [url for n in range(20) for url in sent(facts, step, n, format=kind)]
    assert len(set(new)) == 20
    repeated = [url for n in range(20) for url in sent(facts, step, n, format=kind, unique="0%", reuse_distance=5)]
    assert [repeated[n] == repeated[n - 5] for n in range(5, 20)] == [True] * 15
    head = {"avi": "data:video/avi;base64,", "frames": "data:video/jpeg;base64,"}[kind]
    assert all(url.startswith(head) for url in new)
    parts = new[0].removeprefix(head).split(",")
    assert len(parts) == {"avi": 1, "frames": 5}[kind]
    assert base64.b64decode(parts[0], validate=True)


def test_video_names_in_the_ledger_mark_repeats(facts: Facts, step: Steps) -> None:
    new = build(step({"video": options(count=2), "text": TEXT}, 3), facts)
    assert (new.videos, new.images, new.image_names) == (2, 0, [])
    names = [
        build(step({"video": options(unique="0%", reuse_distance=5), "text": TEXT}, n), facts).image_names
        for n in range(10)
    ]
    assert names[:5] == names[5:]
    assert len({tuple(n or ()) for n in names}) == 5


def test_video_tokens_are_known_for_a_measured_kind_only(facts: Facts, step: Steps) -> None:
    one = step({"video": options(), "text": TEXT})
    assert build(one, facts).tokens is None
    known = replace(facts, videos=True, video_tokens={options().kind(): 300})
    assert build(one, known).tokens == 340
    assert build(one, replace(facts, videos=False)).fitted == "the model does not accept video: sent as text only"


def test_avi_decoder_refuses_other_bytes() -> None:
    for url in ("data:video/avi;base64,AAAA", "data:video/jpeg;base64,AAAA", "data:video/mp4;base64,!"):
        with pytest.raises(ImageError):
            videos.read(url, Processor())


@pytest.mark.parametrize("given", [{"frames": 0}, {"size": "4000x4000"}, {"count": "0..0"}, {"fps": 0}])
def test_video_options_reject_nonsense(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        options(**given)
