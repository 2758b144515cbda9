import base64
import hashlib
import io
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic import ValidationError

from loadchaos.core import resources
from loadchaos.core.model import Facts, Step
from loadchaos.load.payloads import hostile_images, image_folder, text
from loadchaos.load.request_builder import build
from tests.invoking import output_of
from tests.load.payloads.conftest import Steps

FOLDER = resources.folder("images")
CORPUS = image_folder.read(FOLDER)


def decodes(data: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(data)) as image:
                image.convert("RGB")
        except Exception:
            return False
    return True


def url_of(step: Step, facts: Facts) -> str:
    content = json.loads(build(step, facts).body)["messages"][0]["content"]
    (url,) = [p["image_url"]["url"] for p in content if p["type"] == "image_url"]
    return str(url)


def test_image_folder_is_complete_and_small() -> None:
    for entry in CORPUS:
        assert hashlib.sha256((FOLDER / entry.file).read_bytes()).hexdigest() == entry.sha256, entry.file
    files = {p.name for p in FOLDER.iterdir()}
    assert files == {e.file for e in CORPUS} | {image_folder.MANIFEST}
    assert sum(p.stat().st_size for p in FOLDER.iterdir()) < 300_000


@pytest.mark.parametrize("entry", [e for e in CORPUS if e.right != "either"], ids=lambda e: e.file)
def test_image_folder_images_decode_and_refusals_do_not(entry: image_folder.CorpusImage) -> None:
    data = (FOLDER / entry.file).read_bytes()
    readable = entry.form == "base64" and decodes(data)
    assert readable is (entry.right == "image")


def test_images_command_lists_the_shipped_images() -> None:
    assert len(output_of("images").splitlines()) == len(CORPUS)


def test_hostile_images_are_sent_in_turn_with_their_expectation(facts: Facts, step: Steps) -> None:
    payload = {"hostile_images": hostile_images.Options(), "text": text.Options()}
    seen = set[str]()
    for n, entry in enumerate(CORPUS):
        one = step(payload, n)
        request = build(one, facts)
        assert (request.images, request.tokens) == (1, None)
        assert (
            tuple(request.expect)
            == {"image": ("ok",), "refusal": ("rejected",), "either": ("ok", "rejected")}[entry.right]
        )
        url = url_of(one, facts)
        assert url.startswith(f"data:{entry.mime}")
        if entry.form == "base64":
            assert base64.b64decode(url.partition(",")[2], validate=True) == (FOLDER / entry.file).read_bytes()
        seen.add(entry.form)
    assert seen == {"base64", "text", "verbatim"}
    assert url_of(step(payload, len(CORPUS)), facts) == url_of(step(payload, 0), facts)


def test_hostile_images_of_an_own_folder_are_sent(tmp_path: Path, facts: Facts, step: Steps) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"meow")
    options = hostile_images.Options(folder=str(tmp_path))
    one = step({"hostile_images": options})
    assert url_of(one, facts) == "data:image/jpeg;base64," + base64.b64encode(b"meow").decode()
    assert set(build(one, facts).expect) == {"ok", "rejected"}
    assert "in turn" in options.describe()


def test_hostile_images_skip_non_images_with_a_note(tmp_path: Path, facts: Facts, step: Steps) -> None:
    for name in ("a.PNG", "b.avif", "readme.md", "run.sh", ".DS_Store", ".hidden.png"):
        (tmp_path / name).write_bytes(b"x")
    options = hostile_images.Options(folder=str(tmp_path))
    assert [(e.file, e.mime) for e in options.selected()] == [("a.PNG", "image/png"), ("b.avif", "image/avif")]
    (message,) = options.notes()
    assert message == f"{tmp_path}: not sent, because their names are not those of images: readme.md, run.sh"
    assert "readme.md, run.sh" in options.describe()
    asked_for = hostile_images.Options(folder=str(tmp_path), only=("readme.md",))
    assert base64.b64encode(b"x").decode() in url_of(step({"hostile_images": asked_for}), facts)
    assert not asked_for.notes()
    assert not hostile_images.Options().notes()


def test_hostile_images_reject_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("hello")
    with pytest.raises(
        ValidationError, match=r"holds no image \(not sent, because their names are not those of images: readme\.md\)"
    ):
        hostile_images.Options(folder=str(tmp_path))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"only": ["bomb.pgn"]}, "did you mean bomb.png"),
        ({"folder": "/nowhere/at/all"}, "cannot be read as a folder of images"),
    ],
)
def test_hostile_images_reject_unknown_files(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        hostile_images.Options.model_validate(given)


def test_hostile_images_reject_an_empty_folder_and_a_broken_manifest(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="holds no file"):
        hostile_images.Options(folder=str(tmp_path))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / image_folder.MANIFEST).write_text('{"images": [{"file": "x"}]}')
    with pytest.raises(ValidationError, match="cannot be read"):
        hostile_images.Options(folder=str(tmp_path / "b"))


def test_hostile_images_send_only_some_and_none_to_a_text_model(facts: Facts, step: Steps) -> None:
    payload = {"hostile_images": hostile_images.Options(only=("bomb.png",))}
    assert url_of(step(payload, 0), facts) == url_of(step(payload, 7), facts)
    blind = build(step(payload), replace(facts, images=False))
    assert (blind.images, "does not accept images" in blind.fitted) == (0, True)
