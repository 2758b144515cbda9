"""A tokenizer in a local folder, as Hugging Face models have it: counts texts; no hub and no download, ever."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadchaos.core.errors import OptionError

_FILE = "tokenizer.json"


@dataclass(frozen=True)
class Folder:
    """`path` as the user gave it; `load` is how one is made."""

    path: str
    tokenizer: Any
    template: str | None = None
    special: Mapping[str, str] | None = None

    @classmethod
    def load(cls, path: str) -> Folder:
        """Read the folder. Raises OptionError for what is none, and where the library `tokenizers` is not installed."""
        place = Path(path).expanduser()
        file = place / _FILE
        if not place.is_dir():
            raise OptionError(
                f"tokenizer {path}: no such folder here; one with {_FILE} in it was expected, for nothing is downloaded"
            )
        if not file.is_file():
            raise OptionError(
                f"tokenizer {path}: there is no {_FILE} in it; name the folder that has the model's config.json"
            )
        try:
            from tokenizers import Tokenizer  # an extra: most servers count by themselves
        except ImportError:
            raise OptionError(
                f"tokenizer {path}: the library tokenizers reads it: run pip install 'loadchaos[tokenizer]'"
            ) from None
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as e:  # noqa: BLE001 - the library raises nothing more special
            raise OptionError(f"tokenizer {file}: {e}; is that a whole {_FILE}?") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = _json(place / "tokenizer_config.json")
        special = {name: text for name in ("bos_token", "eos_token") if (text := _token(config.get(name))) is not None}
        return cls(path, tokenizer, _template(place, config), special)

    def count(self, text: str) -> int:
        """Tokens of a text, without what the tokenizer puts around a whole prompt."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> int | None:
        """Tokens of a chat by the folder's own template, up to where the answer begins; None where it has none."""
        if self.template is None:
            return None
        try:
            text = _render(self.template, messages, self.special or {})
        except Exception:  # noqa: BLE001 - a template is a program of somebody else's: whatever it raises, it tells nothing
            return None
        return self.count(text)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _token(value: object) -> str | None:
    """A special token is a text or an object with its text."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _template(place: Path, config: Mapping[str, Any]) -> str | None:
    """Newer models have it in a file of its own; one of several is the `default`."""
    file = place / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    found = _json(place / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(found, list):
        found = {str(one.get("name")): one.get("template") for one in found if isinstance(one, dict)}.get("default")
    return found if isinstance(found, str) else None


def _render(template: str, messages: Sequence[Mapping[str, Any]], special: Mapping[str, str]) -> str:
    """As transformers renders chat templates (`utils/chat_template_utils.py`), in a sandbox."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(text: str) -> None:
        raise TemplateError(text)

    def tojson(value: object, indent: int | None = None, **_: object) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    room = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
    )
    room.filters["tojson"] = tojson
    room.globals["raise_exception"] = raise_exception
    room.globals["strftime_now"] = lambda form: dt.datetime.now().astimezone().strftime(form)
    return room.from_string(template).render(messages=list(messages), add_generation_prompt=True, **special)
