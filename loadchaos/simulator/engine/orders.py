"""Answer prompts that have one right answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from loadchaos.simulator.engine import tokenizer

_MOST_TOKENS = 768
_TAIL_TOKENS = 128  # an order stands in the last tokens of its prompt
_REPEAT = re.compile(r"Repeat this word (\d\d?) times[^:<]*: ([\w-]+)")
_COPY = re.compile(r"Repeat these words[^:<]*: ([\w -]+)")
_LOOKUP = re.compile(r"Which word stands beside ([\w-]+) in this table")
_NEEDLE = re.compile(r"What is the password\?")
_PICTURE = re.compile(r"What (?:number is|color is the square) in this picture\?")
_SUM = re.compile(r"What is (\d{1,9}) \+ (\d{1,9})\?")


def ordered_answer(ids: Sequence[int], pictures: Sequence[str] = ()) -> str:
    """Return the answer that the prompt orders; empty: it orders none. `pictures` are the numbers or colours in its
    images.
    """
    if len(ids) > _MOST_TOKENS:
        return ""
    tail = tokenizer.decode(ids[-_TAIL_TOKENS:])
    if pictures and _PICTURE.search(tail) is not None:
        return pictures[0]
    for order, answer in _ORDERS:
        found = order.search(tail)
        if found is not None:
            return answer(found, tail if len(ids) <= _TAIL_TOKENS else tokenizer.decode(ids))
    return ""


def _repeated(order: re.Match[str], _: str) -> str:
    return " ".join([order[2]] * int(order[1]))


def _copied(order: re.Match[str], _: str) -> str:
    return order[1].strip()


def _looked_up(order: re.Match[str], prompt: str) -> str:
    found = re.search(rf"^- {re.escape(order[1])} ([\w-]+)$", prompt, re.MULTILINE)
    return found[1] if found is not None else ""


def _found(_: re.Match[str], prompt: str) -> str:
    found = re.search(r"The password is ([\w-]+)\.", prompt)
    return found[1] if found is not None else ""


def _added(order: re.Match[str], _: str) -> str:
    return str(int(order[1]) + int(order[2]))


_ORDERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], str]], ...] = (
    (_REPEAT, _repeated),
    (_COPY, _copied),
    (_LOOKUP, _looked_up),
    (_NEEDLE, _found),
    (_SUM, _added),
)
