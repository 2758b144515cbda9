import asyncio
import random
from typing import Any

from loadchaos.server.probes.parts.images import PICTURES, ImagesPart
from loadchaos.server.probes.parts.keyed import KeyedPart
from tests.server.probes.conftest import FunctionAsker


def learned(asker: type[FunctionAsker], answer: Any) -> tuple[ImagesPart, Any]:
    server = asker(answer)
    part = ImagesPart(server, random.Random(3), every_s=1)
    asyncio.run(part.learn())
    if not part.off:
        asyncio.run(part.act())
    return part, server


def test_images_are_asked_new_by_one_pixel_and_under_new_names(asker: type[FunctionAsker]) -> None:
    part, server = learned(asker, lambda q, p, m: f"about {p.kind}")
    assert part.notes == []
    load = [(row, q) for row, q in zip(server.rows, server.questions, strict=True) if row["when"] == "load"]
    assert [row["role"] for row, _ in load].count("neighbour") == PICTURES
    new = [q.images[0] for row, q in load if row["role"] == "neighbour"]
    assert len({*new, *(q.images[0] for q in server.questions[: -len(load)])}) == len(new) + 3 * PICTURES
    (first, second) = [q for row, q in load if row["role"] == "uuid"]
    assert first.uuid == second.uuid
    assert first.images != second.images


def test_images_of_a_server_that_answers_by_name_keep_one_name_for_one_image(asker: type[FunctionAsker]) -> None:
    known: dict[str, str] = {}
    part, server = learned(asker, lambda q, p, m: known.setdefault(q.uuid or q.images[0], p.kind))
    assert part.notes == []
    remarks = [row for row in server.rows if row.get("row") == "preflight"]
    assert ["the idle server answers from the image that it has under this name" in row["text"] for row in remarks] == [
        True
    ]
    server.rows.remove(remarks[0])
    named: dict[str, set[str]] = {}
    for row, q in zip(server.rows, server.questions, strict=True):
        if row["when"] == "load" and q.uuid:
            named.setdefault(q.uuid, set()).add(q.images[0])
    assert [len(images) for images in named.values()] == [1, 1]


def test_images_that_the_idle_server_does_not_tell_apart_are_not_asked(asker: type[FunctionAsker]) -> None:
    turns = iter(range(1000))
    answers = {
        "alike": lambda q, p, m: "an image", "unsteady": lambda q, p, m: str(next(turns)),
        "refused": lambda q, p, m: 'error:no images here',
    }  # fmt: skip
    for case, answer in answers.items():
        part, server = learned(asker, answer)
        assert not [row for row in server.rows if row.get("when") == "load"], case
        assert ("no images here" if case == "refused" else "answers different images alike") in part.notes[0]


def test_keyed_part_asks_again_with_a_new_image(asker: type[FunctionAsker]) -> None:
    server = asker(lambda q, p, m: "x" if p.when == "load" and not p.role else q.expected)
    part = KeyedPart(server, random.Random(1), every_s=1, kinds=["image_digits", "copy"])
    asyncio.run(part.learn())
    first = len(server.questions)
    asyncio.run(part.act())
    asyncio.run(part.check())
    asked: dict[str, list[Any]] = {}
    for q in server.questions[first:]:
        asked.setdefault(q.expected, []).append(q)
    (digits,) = [qs for qs in asked.values() if qs[0].images]
    (text,) = [qs for qs in asked.values() if not qs[0].images]
    assert len({q.images for q in digits}) == len(digits) == 4
    assert len({q.prompt for q in text}) == 1


def test_keyed_part_tells_kinds_with_one_reason_in_one_note(asker: type[FunctionAsker]) -> None:
    server = asker(lambda q, p, m: "error:no images" if q.images else q.expected)
    part = KeyedPart(server, random.Random(1), every_s=1, kinds=["copy", "image_digits", "image_colour"])
    asyncio.run(part.learn())
    assert part.notes == [
        "questions of the kinds image_digits, image_colour are not asked: the idle server gave an error: no images"
    ]
