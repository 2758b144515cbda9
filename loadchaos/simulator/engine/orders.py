"""Answer prompts that have one right answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from loadchaos.simulator.engine import tokenizer

_MOST_TOKENS = 768
_TAIL_TOKENS = 128  # an order stands in the last tokens of its prompt
_PICTURE = re.compile(r"What (?:number is|color is the square) in this picture\?")


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


def _found(pattern: str, prompt: str) -> str:
    found = re.search(pattern, prompt, re.MULTILINE)
    return found[1] if found is not None else ""


_ORDERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], str]], ...] = (
    (
        re.compile(r"Repeat this word (\d\d?) times[^:<]*: ([\w-]+)"),
        lambda order, _: " ".join([order[2]] * int(order[1])),
    ),
    (re.compile(r"Repeat these words[^:<]*: ([\w -]+)"), lambda order, _: order[1].strip()),
    (
        re.compile(r"Which word stands beside ([\w-]+) in this table"),
        lambda order, prompt: _found(rf"^- {re.escape(order[1])} ([\w-]+)$", prompt),
    ),
    (re.compile(r"What is the password\?"), lambda _, prompt: _found(r"The password is ([\w-]+)\.", prompt)),
    (re.compile(r"What is (\d{1,9}) \+ (\d{1,9})\?"), lambda order, _: str(int(order[1]) + int(order[2]))),
)
"""Orders, and the answer to each from its match and the whole prompt."""
