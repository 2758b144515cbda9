import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from loadchaos.core.errors import OptionError, TargetError
from loadchaos.core.model import Facts
from loadchaos.server.discovery import calibrate, chat_tokens
from loadchaos.server.discovery.client import CalibrationRequest
from loadchaos.server.discovery.local_tokenizer import LocalTokenizer
from loadchaos.server.discovery.text_tokens import sample
from loadchaos.simulator.engine import tokenizer as words
from tests.discovering import discovering

AROUND = 11  # what the template of the servers below costs
IMAGE = 50
Count = Callable[[str], int]


def by_words(text: str) -> int:
    return len(words.encode(text))


def by_bytes(text: str) -> int:
    return len(text.encode())


class Served:
    """A minimal vLLM with the given counter and `paths`.

    Without `usage` its answers have none.
    """

    def __init__(self, count: Count, *paths: str, usage: bool = True, sees_images: bool = True) -> None:
        self.count, self.paths, self.usage, self.sees_images = count, paths, usage, sees_images
        self.asked: list[str] = []
        self.added, self.answering = 0, count
        self.chats = True

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(request.content or b"{}")
        self.asked.append(path)
        if path == "/v1/chat/completions" and self.chats:
            tokens = self.chat(body["messages"], self.answering) + self.added
            usage = {"usage": {"prompt_tokens": tokens}} if self.usage else {}
            return httpx.Response(
                200, json={"choices": [{"message": {"content": "a"}, "finish_reason": "length"}], **usage}
            )
        if path not in self.paths:
            return httpx.Response(404, json={"detail": "Not Found"})
        seen = self.sees_images or path.endswith("/render")
        many = self.chat(body["messages"], self.count, seen) if "messages" in body else self.count(body["prompt"])
        if path == "/tokenize":
            return httpx.Response(200, json={"count": many})
        ids = {"token_ids": [0] * many}
        return httpx.Response(200, json=ids if "chat" in path else [ids])

    def chat(self, messages: list[dict[str, Any]], count: Count, images: bool = True) -> int:
        total = AROUND * ((len(messages) + 1) // 2)
        for message in messages:
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            total += sum(count(part["text"]) for part in parts if part["type"] == "text")
            total += IMAGE * images * sum(part["type"] != "text" for part in parts)
        return total

    @property
    def generations(self) -> int:
        return self.asked.count("/v1/chat/completions")


TOKENIZE, CHAT, COMPLETIONS = "/tokenize", "/v1/chat/completions/render", "/v1/completions/render"


def learned(served: Served, dialect: str = "vllm", **wanted: Any) -> Facts:
    async def ask() -> Facts:
        async with discovering("http://u", served) as asker:
            facts = Facts("http://u", "http://u", dialect, model="m")
            asked = CalibrationRequest(**wanted)
            facts = await calibrate.calibrate(asker, facts, asked)
            return await chat_tokens.with_chat_tokens(
                asker, facts, turns=True, scripts=("cjk",), tokenizer=asked.tokenizer
            )

    return asyncio.run(ask())


def folder(count: Count, name: str = "models/mine") -> LocalTokenizer:
    return LocalTokenizer(name, SimpleNamespace(encode=lambda text, **_: SimpleNamespace(ids=[0] * count(text))))


def exact(facts: Facts, count: Count) -> bool:
    """True if a prompt of these words has the planned tokens."""
    assert facts.text is not None
    sentence, tokens = sample(facts.text.words, facts.text.unit, seed=9)
    return count(sentence) == tokens and facts.text.overhead == AROUND


def test_render_counts_where_only_v1_is_let_through() -> None:
    served = Served(by_words, CHAT, COMPLETIONS)
    facts = learned(served)
    assert facts.text is not None
    assert (facts.text.source, facts.text.turn_overhead) == ("render", AROUND)
    assert exact(facts, by_words)
    assert dict(facts.text.scripts).keys() == {"cjk"}
    assert served.generations == 1


@pytest.mark.parametrize(
    ("paths", "how"),
    [((TOKENIZE, CHAT), "/render, checked by usage"), ((TOKENIZE,), "/tokenize, checked by usage"), ((), "usage")],
)
def test_prompt_counter_needs_one_generation_for_images_and_videos(paths: tuple[str, ...], how: str) -> None:
    served = Served(by_words, *paths)
    sizes = [(64, 64), (96, 64), (128, 64), (160, 64)]
    videos = [(f"kind {n}", b'{"type":"video_url","video_url":{"url":"data:"}},') for n in range(3)]
    facts = learned(served, image_sizes=sizes, images_per_request=4, videos=videos)
    assert set(facts.image_tokens.values()) == set(facts.video_tokens.values()) == {IMAGE}
    assert (len(facts.image_tokens), len(facts.video_tokens)) == (4, 3)
    assert (facts.sources["image_tokens"], facts.sources["video_tokens"]) == (how, how)
    assert facts.sources["max_images"] == "a request with 4 was accepted"
    for path in {TOKENIZE, CHAT, COMPLETIONS} - set(paths):
        assert served.asked.count(path) <= 1, "what is not there is asked once"
    if paths:
        assert served.generations == 3, "one for text, for images, for videos"


def test_prompt_counter_drops_a_tokenizer_that_ignores_images() -> None:
    facts = learned(
        Served(by_words, TOKENIZE, sees_images=False), image_sizes=[(64, 64), (96, 64)], images_per_request=1
    )
    assert facts.image_tokens == {"64x64": IMAGE, "96x64": IMAGE}
    assert facts.sources["image_tokens"] == "usage"


def test_render_checks_the_count_without_usage() -> None:
    facts = learned(Served(by_words, TOKENIZE, CHAT, usage=False), image_sizes=[(64, 64)], images_per_request=1)
    assert exact(facts, by_words)
    assert facts.image_tokens == {"64x64": IMAGE}
    assert facts.sources["image_tokens"] == "/render, not checked: no usage"


@pytest.mark.parametrize("paths", [(), (TOKENIZE,)])
def test_text_count_is_unknown_without_chat_and_tokenizer(paths: tuple[str, ...]) -> None:
    """A vLLM with a Whisper model has no chat, and its /tokenize counts 0."""
    served = Served(lambda _: 0, *paths)
    served.chats = False
    facts = learned(served, chat=False)
    assert facts.text is None
    assert facts.sources["text"] == "no tokenizer counts words, and the server has no chat endpoint"
    with pytest.raises(TargetError, match="the server has no chat endpoint"):
        learned(served, chat=True)


def test_text_count_is_corrected_for_a_longer_template() -> None:
    served = Served(by_words, TOKENIZE)
    served.added = 30  # a system prompt, say
    facts = learned(served)
    assert facts.text is not None
    assert (facts.text.source, facts.text.overhead) == ("tokenize, corrected by usage", AROUND + 30)


def test_text_count_uses_usage_instead_of_another_models_tokenizer() -> None:
    """A gateway may ask another server than the one that answers."""
    served = Served(by_words, TOKENIZE)
    served.answering = by_bytes
    facts = learned(served)
    assert facts.text is not None
    assert facts.text.source == "usage"
    assert exact(facts, by_bytes)


def test_text_count_by_usage_measures_unequal_words_one_by_one() -> None:
    served = Served(by_bytes)
    facts = learned(served, dialect="openai")
    assert facts.text is not None
    assert facts.text.source == "usage"
    assert len({cost for _, cost in facts.text.words}) > 1
    assert exact(facts, by_bytes)
    assert served.generations <= 24


def test_text_count_by_usage_needs_three_answers_for_equal_words() -> None:
    served = Served(by_words)
    facts = learned(served, dialect="openai")
    assert exact(facts, by_words)
    assert served.generations == 3 + 4, "and one for each length of a conversation"


# --- a local folder ---------------------------------------------------------------------------------------------------


def test_local_tokenizer_counts_words_and_usage_tells_the_template() -> None:
    served = Served(by_bytes)
    facts = learned(served, dialect="openai", tokenizer=folder(by_bytes))
    assert facts.text is not None
    assert facts.sources["tokenizer"] == "models/mine, checked by usage"
    assert (facts.text.source, facts.text.turn_overhead) == ("tokenizer", AROUND)
    assert exact(facts, by_bytes)
    assert dict(facts.text.scripts).keys() == {"cjk"}
    assert served.generations == 2 + 4


@pytest.mark.parametrize(("paths", "source"), [((TOKENIZE,), "tokenize"), ((), "usage")])
def test_local_tokenizer_of_another_model_is_reported_and_not_used(paths: tuple[str, ...], source: str) -> None:
    facts = learned(Served(by_words, *paths), tokenizer=folder(by_bytes))
    assert facts.text is not None
    assert facts.text.source == source
    assert "models/mine is not the server's tokenizer: the same words are" in facts.sources["tokenizer"]
    assert exact(facts, by_words)


def test_local_tokenizer_is_checked_by_the_servers_own_count() -> None:
    facts = learned(Served(by_words, TOKENIZE, usage=False), tokenizer=folder(by_words))
    assert facts.sources["tokenizer"] == "models/mine, checked by /tokenize"
    assert exact(facts, by_words)


def test_local_tokenizer_without_any_check_is_reported() -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}!{% endif %}"
    )
    own = LocalTokenizer("models/mine", folder(by_bytes).tokenizer, template, {})
    facts = learned(Served(by_bytes, usage=False), dialect="openai", tokenizer=own)
    assert facts.text is not None
    assert facts.text.overhead == len("<user>!")
    assert "not checked: the server reports no usage" in facts.sources["tokenizer"]
    without = learned(Served(by_bytes, usage=False), dialect="openai", tokenizer=folder(by_bytes))
    assert without.text is None
    assert "its chat template is not known" in without.sources["tokenizer"]


def test_local_tokenizer_refuses_a_wrong_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, reason in (("Qwen/Qwen3-8B", "nothing is downloaded"), (str(tmp_path), "no tokenizer.json in it")):
        with pytest.raises(OptionError, match=reason):
            LocalTokenizer.load(path)
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(OptionError, match=r"pip install 'loadchaos\[tokenizer\]'"):
        LocalTokenizer.load(str(tmp_path))


def test_local_tokenizer_reads_hugging_face_folders(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers", reason="pip install tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(OptionError, match=r"is that a whole tokenizer\.json"):
        LocalTokenizer.load(str(tmp_path))
    made = library.Tokenizer(library.models.WordLevel({"the": 0, "of": 1, "<s>": 2, "?": 3}, unk_token="?"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.post_processor = library.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    made.enable_truncation(2)
    made.save(str(tmp_path / "tokenizer.json"))
    read = LocalTokenizer.load(str(tmp_path))
    assert read.count("the of the") == 3, "nothing in front, nothing cut"
    assert read.chat([{"role": "user", "content": "the"}]) is None
    template = "{{ bos_token }}{% for m in messages %} {{ m.content }}{% endfor %}"
    config = {"bos_token": {"content": "of"}, "chat_template": [{"name": "default", "template": template}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert LocalTokenizer.load(str(tmp_path)).chat([{"role": "user", "content": "the the"}]) == 3
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    assert LocalTokenizer.load(str(tmp_path)).chat([{"role": "user", "content": "the"}]) is None
