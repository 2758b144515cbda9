"""Count tokens with a tokenizer in a local folder (Hugging Face format). Nothing is ever downloaded."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadchaos.core.errors import OptionError
from loadchaos.core.foreign_json import json_object

_FILE = "tokenizer.json"


@dataclass(frozen=True)
class LocalTokenizer:
    """A tokenizer and its chat template; create one with `load`. `path` is as the user gave it."""

    path: str
    tokenizer: Any
    template: str | None = None
    special: Mapping[str, str] | None = None

    @classmethod
    def load(cls, path: str) -> LocalTokenizer:
        """Read a folder. Raises OptionError: it has no tokenizer, or the library `tokenizers` is not installed."""
        folder = Path(path).expanduser()
        file = folder / _FILE
        if not folder.is_dir():
            raise OptionError(
                f"tokenizer {path}: there is no such folder; give a local one with {_FILE}, as nothing is downloaded"
            )
        if not file.is_file():
            raise OptionError(
                f"tokenizer {path}: there is no {_FILE} in it; give the folder with the model's config.json"
            )
        try:
            from tokenizers import Tokenizer  # optional: most servers count tokens themselves
        except ImportError:
            raise OptionError(
                f"tokenizer {path}: reading it needs the library tokenizers; run pip install 'loadchaos[tokenizer]'"
            ) from None
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as e:  # noqa: BLE001 - the library raises nothing more special
            raise OptionError(f"tokenizer {file}: {e}; check that the file is complete") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = _json(folder / "tokenizer_config.json")
        special = {name: text for name in ("bos_token", "eos_token") if (text := _token(config.get(name))) is not None}
        return cls(path, tokenizer, _template(folder, config), special)

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def chat(self, messages: Sequence[Mapping[str, object]]) -> int | None:
        """Count the tokens of a chat with the folder's template, up to the answer. Returns None without a template."""
        if self.template is None:
            return None
        try:
            text = _render(self.template, messages, self.special or {})
        except Exception:  # noqa: BLE001 - a template is a foreign program, which may raise anything
            return None
        return self.count(text)


def _json(path: Path) -> Mapping[str, object]:
    return json_object(path.read_text("utf-8", "replace")) if path.is_file() else {}


def _token(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _template(folder: Path, config: Mapping[str, object]) -> str | None:
    """Read the chat template, which newer models have in its own file. Of several templates the `default` counts."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    found = _json(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(found, list):
        found = {str(one.get("name")): one.get("template") for one in found if isinstance(one, dict)}.get("default")
    return found if isinstance(found, str) else None


def _render(template: str, messages: Sequence[Mapping[str, object]], special: Mapping[str, str]) -> str:
    """Render a chat template in a sandbox, as transformers does. The original is `utils/chat_template_utils.py`."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(text: str) -> None:
        raise TemplateError(text)

    def tojson(value: object, indent: int | None = None, **_: object) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
    )
    sandbox.filters["tojson"] = tojson
    sandbox.globals["raise_exception"] = raise_exception
    sandbox.globals["strftime_now"] = lambda form: dt.datetime.now().astimezone().strftime(form)
    return sandbox.from_string(template).render(messages=list(messages), add_generation_prompt=True, **special)
