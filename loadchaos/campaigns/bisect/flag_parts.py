"""Split launch flags into parts, leave parts out, and change single flags."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from loadchaos.core.errors import OptionError
from loadchaos.core.foreign_json import json_object

Flag = tuple[str, ...]
Flags = tuple[Flag, ...]
_PAIRS = re.compile(r"[\w.-]+=[^,]+(,[\w.-]+=[^,]+)+")
_SWITCH = re.compile(r"(?<![\w-])--(?:(?:no|disable)-[a-z][a-z-]*[a-z]|enforce-eager)(?![\w=-])")
_NUMBERED = re.compile(r"(?<![\w-])(--[a-z][a-z-]*[a-z])[ =](\d+(?:\.\d+)?)(?![\w{])(?!\.\d)")


def _value(flag: Flag) -> tuple[Flag, str]:
    if len(flag) == 2:
        return flag[:1], flag[1]
    name, separator, value = flag[0].partition("=")
    return (f"{name}{separator}",), value if len(flag) == 1 else ""


def keys(flag: Flag) -> list[str]:
    """Names of the keys in a flag's value: a JSON object or a list of k=v."""
    value = _value(flag)[1]
    if found := json_object(value):
        return list(found)
    return [pair.partition("=")[0] for pair in value.split(",")] if _PAIRS.fullmatch(value) else []


def with_keys(flag: Flag, kept: Sequence[str]) -> Flag:
    head, value = _value(flag)
    if found := json_object(value):
        shorter = json.dumps({k: v for k, v in found.items() if k in kept}, separators=(",", ":"))
    else:
        shorter = ",".join(pair for pair in value.split(",") if pair.partition("=")[0] in kept)
    return (*head, shorter) if len(flag) == 2 else (f"{head[0]}{shorter}",)


def parse_change(text: str) -> Flag:
    try:
        words = tuple(shlex.split(text))
    except ValueError as e:
        raise OptionError(f"--change {text!r} cannot be parsed ({e}): is a quote not closed?") from None
    if not words or not words[0].startswith("-"):
        raise OptionError(f"--change {text!r}: one launch flag was expected, such as '--max-num-seqs 1'")
    return words


def is_embedded(command: Sequence[str]) -> bool:
    return "loadchaos.simulator.server" in command or "sim" in command


def for_embedded(change: Flag) -> Flag:
    if change[0] == "--flag":
        return change
    name, _, value = change[0].lstrip("-").partition("=")
    value = value or " ".join(change[1:])
    return ("--flag", f"{name}={value}" if value else _switched(name))


def _switched(name: str) -> str:
    return f"{name.removeprefix('no-')}={'false' if name.startswith('no-') else 'true'}"


def name_of(flag: Flag) -> str:
    words = flag[1] if flag[0] == "--flag" and len(flag) > 1 else flag[0]
    return words.split("=", 1)[0].lstrip("-").replace("_", "-").removeprefix("no-")


def name_word(flag: Flag) -> str:
    if flag[0] == "--flag" and len(flag) > 1:
        return f"--flag {flag[1].split('=', 1)[0]}"
    if flag[0] == "--defect":
        return " ".join(flag)
    return flag[0].split("=", 1)[0]


def changed(flags: Flags, change: Flag) -> Flags:
    """Return the flags with one more, in the place of those that set the same."""
    at = next((i for i, flag in enumerate(flags) if name_of(flag) == name_of(change)), len(flags))
    others = [flag for flag in flags if name_of(flag) != name_of(change)]
    return (*others[:at], change, *others[at:])


def flags_of_remedy(text: str) -> list[str]:
    """Flags that the remedy of a failure names with their values."""
    found = [match.group() for match in _SWITCH.finditer(text)]
    found += [f"{match[1]} {match[2]}" for match in _NUMBERED.finditer(text)]
    return list(dict.fromkeys(found))
