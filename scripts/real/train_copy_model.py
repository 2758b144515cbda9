"""Train a tiny Qwen2 model on the CPU until it copies words and looks up keys in all of 400 held-out prompts.

Usage: VENV/bin/python scripts/real/train_copy_model.py [--ids] [OUTDIR]   (in a vLLM environment)

The prompts are those of loadchaos/server/probes, so the server that serves this model can answer probes. It ends with
exit code 1 where the time is over first; the model is written all the same.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import jinja2
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from loadchaos.server.probes import question as questions
from loadchaos.server.probes.kinds import copy, lookup, needle
from loadchaos.server.probes.question import words

SPECIAL = ["<|endoftext|>", "<|start|>", "<|end|>"]
HEAD, ROPE_THETA = 64, 1e8
_RATE, _LOOK, _SHARP, _SLOW, _MATCH, _CHOOSE = 5e-4, 11.0, 5, 12, 2.0, 3.0
LENGTH = 2048  # longest prompt and answer that the server takes; training stops at MOST_TOKENS
_LINE = "{{ '\\n' }}"  # a plain line end would be stripped by the tag behind it
TEMPLATE = (
    "{%- for m in messages -%}<|start|>{{ m.role }}" + _LINE + "{%- if m.content is string -%}{{ m.content }}"
    "{%- else -%}{%- for p in m.content -%}{%- if 'text' in p -%}{{ p.text }}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "<|end|>" + _LINE + "{%- endfor -%}{%- if add_generation_prompt -%}<|start|>assistant" + _LINE + "{%- endif -%}"
)


def make_tokenizer() -> Tokenizer:
    """Bytes, and one token for each word of the questions, with the blank before it, and of their texts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*SPECIAL, *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    texts = "\n".join(kind(random.Random(0)).prompt for kind in (lookup, needle, copy))
    # With the blank before them, so that neighbouring words are neighbouring tokens. `single_word` would refuse those.
    known = dict.fromkeys(
        w for w in re.findall(r" ?[A-Za-z]{2,}", f"user\nassistant\n{texts}") if w.strip() not in questions.WORDS
    )
    tokenizer.add_tokens([AddedToken(w, single_word=not w.startswith(" "), normalized=False) for w in known])
    tokenizer.add_tokens([AddedToken(f" {w}", normalized=False) for w in questions.WORDS])
    return tokenizer


def some_ids(n: int) -> tuple[str, ...]:
    """Words that no request shares with another by chance: letters and digits by turns."""
    rng = random.Random(1)
    return tuple("".join(rng.choice("bcdfghkmpqrstvwxz") + rng.choice("23456789") for _ in range(6)) for _ in range(n))


def chat(text: str) -> str:
    """The template's text of one user message."""
    return f"<|start|>user\n{text}<|end|>\n<|start|>assistant\n"


@dataclass(frozen=True)
class Turn:
    """A question with its answer; `key` is the word in its last line whose neighbour is the answer."""

    prompt: str
    answer: str
    key: str = ""


def draw(rng: random.Random, scale: float) -> list[Turn]:
    """Draw a conversation of questions and answers; `scale` in 0..1 is the length.

    A table is followed by questions for several of its keys, so that a row teaches more than one answer.
    """

    def upto(most: int) -> int:
        return 1 + rng.randrange(max(1, round(most * scale)))

    before = ""
    if rng.random() < 0.5:
        before = "".join(f" {w}" for w in words(rng, upto(60))) + rng.choice([" ", ".\n", "\n"])
    kind = rng.random()
    if kind < 0.4:
        asked = copy(rng, upto(12))
    elif kind < 0.55:
        asked = needle(rng, upto(60))
    else:
        rows = 1 + upto(11)
        asked = lookup(rng, rows)
        table, question = asked.prompt.rsplit("\n", 1)
        found = dict(line.removeprefix("- ").split() for line in table.split("\n"))
        first = question.split("beside ")[1].split()[0]
        others = rng.sample([key for key in found if key != first], rows - 1)[:6]
        turns = [Turn(before + asked.prompt, asked.expected, first)]
        return [*turns, *(Turn(question.replace(first, key), found[key], key) for key in others)]
    return [Turn(before + asked.prompt, asked.expected)]


def row_of(tokenizer: Tokenizer, turns: list[Turn]) -> tuple[list[int], list[int]]:
    """Tokens of a conversation, and their labels: the answers, and behind each asked key the word beside it.

    The second label is what makes lookup learnable in minutes: finding the word beside the key is learned at the key,
    as in a repeated text, and the answer only has to fetch it from there.
    """
    ids: list[int] = []
    labels: list[int] = []
    for turn in turns:
        asked = tokenizer.encode(chat(turn.prompt), add_special_tokens=False).ids
        said = tokenizer.encode(f" {turn.answer}<|end|>", add_special_tokens=False).ids
        marked = [-100] * len(asked)
        if turn.key:
            key = tokenizer.token_to_id(f" {turn.key}")
            marked[len(asked) - asked[::-1].index(key)] = said[0]
        ids += [*asked, *said, tokenizer.token_to_id("\u010a")]
        labels += [*marked, *said, -100]
    return ids, labels


def batch(tokenizer: Tokenizer, rng: random.Random, scale: float, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of similar lengths, of at most `tokens` together."""
    rows = [row_of(tokenizer, draw(rng, scale)) for _ in range(48)]
    rows.sort(key=lambda row: len(row[0]))
    last = rng.randrange(1, len(rows) + 1)
    width = len(rows[last - 1][0])
    rows = rows[max(0, last - max(2, tokens // width)) : last]
    x = torch.zeros(len(rows), width, dtype=torch.long)
    y = torch.full((len(rows), width), -100, dtype=torch.long)
    for i, (ids, labels) in enumerate(rows):
        x[i, : len(ids)] = torch.tensor(ids)
        y[i, : len(ids)] = torch.tensor(labels)
    return x, y


def put_in_heads(model: Qwen2ForCausalLM, tokenizer: Tokenizer) -> None:
    """Put the heads in that copying needs; training from random weights spends nearly all of its time on finding them.

    A state has four slots: the token, the one before, the one before that, and the answer. The first layer fills the
    second and third slot: constant biases of query and key make a head look back a fixed distance, by the rotary
    embedding. The second layer finds where the token (and the one before) stood earlier, and copies what followed there
    into the last slot. The third layer fetches the first word of an answer: what the second layer found at the word after
    `beside`, or the word after `:` or `password is`. Training makes this exact, for any length and beside other words.
    """
    token, before, second, answer = (slice(i * HEAD, (i + 1) * HEAD) for i in range(4))
    one = torch.eye(HEAD)
    low = [i for i in range(HEAD // 2) if i >= _SLOW]
    low += [i + HEAD // 2 for i in low]  # dimensions that the rotary embedding hardly turns
    match = torch.zeros(2, HEAD, HEAD)
    for plane in match:
        plane[low] = torch.nn.init.orthogonal_(torch.empty(len(low), HEAD))
    first, finder, chooser = (layer.self_attn for layer in model.model.layers)
    with torch.no_grad():
        embedding = torch.nn.functional.normalize(torch.randn(model.config.vocab_size, HEAD), dim=1)
        model.model.embed_tokens.weight.zero_()[:, token] = embedding
        model.lm_head.weight.zero_()[:, answer] = 2 * embedding
        for layer in model.model.layers:  # what is not put in hardly adds anything at first
            for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
                part.weight.mul_(0.1)
        for head, (back, slot) in enumerate(((1, before), (2, second))):
            at = slice(head * HEAD, (head + 1) * HEAD)
            for i in range(_SHARP):
                angle = back * ROPE_THETA ** (-2 * i / HEAD)
                first.q_proj.bias[head * HEAD + i] = _LOOK * math.cos(angle)
                first.q_proj.bias[head * HEAD + i + HEAD // 2] = -_LOOK * math.sin(angle)
                first.k_proj.bias[head * HEAD + i] = _LOOK
            first.v_proj.weight.data[at] = 0
            first.v_proj.weight[at, token] = one / (4 * HEAD) ** 0.5
            first.o_proj.weight[slot, at] = one
        for head in range(2):
            at = slice(head * HEAD, (head + 1) * HEAD)
            for weights in (finder.q_proj.weight, finder.k_proj.weight, finder.v_proj.weight):
                weights[at] = 0
            finder.q_proj.weight[at, token] = _MATCH * match[0]
            finder.k_proj.weight[at, before] = _MATCH * match[0]
            if head:
                finder.q_proj.weight[at, before] = _MATCH * match[1]
                finder.k_proj.weight[at, second] = _MATCH * match[1]
            finder.v_proj.weight[at, token] = one / 8
            finder.o_proj.weight[answer, at] = one
        asks = embedding[tokenizer.token_to_id("assistant")]
        marks = {name: embedding[tokenizer.token_to_id(name)] for name in (" beside", ":", " is", " password")}
        for head, slot, near, far in ((0, answer, [" beside"], []), (1, token, [":", " is"], [" password"])):
            at = slice(head * HEAD, (head + 1) * HEAD)
            for weights in (chooser.q_proj.weight, chooser.k_proj.weight, chooser.v_proj.weight):
                weights[at] = 0
            still = head * HEAD + HEAD // 2 - 1  # the dimension that the rotary embedding turns least
            chooser.q_proj.weight[still, before] = _CHOOSE * asks
            chooser.k_proj.weight[still, before] = _CHOOSE * sum(marks[name] for name in near)
            if far:
                chooser.k_proj.weight[still, second] = _CHOOSE * sum(marks[name] for name in far)
            chooser.v_proj.weight[at, slot] = one / 8
            chooser.o_proj.weight[answer, at] = 3 * one
        end = tokenizer.token_to_id("<|end|>")
        for follows in ("\u010a", "."):  # stands behind a word of a table, and behind a password
            model.lm_head.weight[end, answer] += 2 * embedding[tokenizer.token_to_id(follows)]
            model.lm_head.weight[tokenizer.token_to_id(follows)] = 0


def right(model: Qwen2ForCausalLM, tokenizer: Tokenizer, asked: list[tuple[str, str]]) -> int:
    """Number of prompts whose whole answer has the largest logit at each token."""
    n = 0
    for prompt, answer in asked:
        p = tokenizer.encode(chat(prompt), add_special_tokens=False).ids
        a = tokenizer.encode(f" {answer}<|end|>", add_special_tokens=False).ids
        with torch.no_grad():
            logits = model(torch.tensor([p + a])).logits[0]
        n += logits[len(p) - 1 : -1].argmax(-1).tolist() == a
    return n


def held_out(tokenizer: Tokenizer, n: int) -> list[tuple[str, str]]:
    """Prompts that training cannot have seen: another seed, and the probes' own sizes."""
    rng = random.Random("held out")
    made = []
    for i in range(n):
        asked = (copy, lookup, needle)[i % 3](rng)
        before = "".join(f" {w}" for w in words(rng, rng.randrange(1, 60))) + "\n" if i % 2 else ""
        made.append((before + asked.prompt, asked.expected))
    return made


def train(
    model: Qwen2ForCausalLM, tokenizer: Tokenizer, out: Path, *, first: float, limit_s: float, tokens: int
) -> bool:
    """Train until all held-out prompts are right or `limit_s` of CPU time are over; saves a checkpoint each minute.

    `first` is the length of the first prompts, as in `draw`.
    """
    rng = random.Random(1)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=_RATE, betas=(0.9, 0.98))
    tests = held_out(tokenizer, 400)
    begin, saved, scale, step, mean, rate = time.process_time(), 0.0, first, 0, 1.0, 1.0
    while (used := time.process_time() - begin) < limit_s:
        step += 1
        if scale >= 1:  # finer steps as fewer answers are wrong
            rate = min(rate, next(r for limit, r in ((0.03, 0.1), (0.2, 0.3), (math.inf, 1.0)) if mean < limit))
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, step / 50) * rate
        x, y = batch(tokenizer, rng, scale, tokens)
        hidden, labels = model.model(x).last_hidden_state[:, :-1], y[:, 1:]
        answered = labels != -100
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[answered]), labels[answered])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = 0.95 * mean + 0.05 * loss.item()
        if step % 25 == 0:
            print(f"{used:5.0f} s  step {step}  length {scale:.2f}  loss {mean:.4f}", flush=True)
        if used - saved > 60:
            saved = used
            save(model, tokenizer, out)
            print(f"       {rights(model, tokenizer, tests[:60])}", flush=True)
        if scale < 1 and mean < 0.2:
            scale, mean = min(1.0, scale + 0.2), 1.0
        if scale >= 1 and mean < 0.02 and step % 50 == 0 and right(model, tokenizer, tests[:60]) == 60:
            n = right(model, tokenizer, tests)
            print(f"step {step}: {n} of {len(tests)} held-out prompts right", flush=True)
            if n == len(tests):
                return True
    return False


def rights(model: Qwen2ForCausalLM, tokenizer: Tokenizer, tests: list[tuple[str, str]]) -> str:
    """Held-out prompts answered right, of each kind."""
    found = ((name, tests[i::3]) for i, name in enumerate(("copy", "lookup", "needle")))
    return ", ".join(f"{name} {right(model, tokenizer, asked)} of {len(asked)}" for name, asked in found)


def save(model: Qwen2ForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Write the model folder as vLLM reads it."""
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out, safe_serialization=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LENGTH, "eos_token": "<|end|>",
        "pad_token": "<|endoftext|>", "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE,
    }  # fmt: skip
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    (out / "chat_template.jinja").write_text(TEMPLATE)


def main() -> int:
    """Train, print the share of right answers, and write the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    root = Path(os.environ.get("LOADCHAOS_REAL", "~/.cache/loadchaos")).expanduser()
    parser.add_argument("out", nargs="?", type=Path, default=None)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in OUTDIR")
    parser.add_argument("--ids", action="store_true", help="copy ids such as 7f3k9q2m5x in place of words")
    args = parser.parse_args()
    args.out = args.out or root / "models" / ("tiny-copy-ids" if args.ids else "tiny-copy")
    if args.ids:
        questions.WORDS = some_ids(len(questions.WORDS))
    rendered = jinja2.Template(TEMPLATE).render(messages=[{"role": "user", "content": "x"}], add_generation_prompt=True)
    if rendered != chat("x"):
        raise ValueError(f"the chat template renders {rendered!r}, and training uses {chat('x')!r}")
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    tokenizer = make_tokenizer()
    size = 64 * math.ceil(tokenizer.get_vocab_size() / 64)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=size, hidden_size=4 * HEAD, intermediate_size=64, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=LENGTH,
            bos_token_id=None, eos_token_id=SPECIAL.index("<|end|>"), pad_token_id=0, tie_word_embeddings=False,
            initializer_range=0.05, attn_implementation="sdpa",
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        )
    )  # fmt: skip
    put_in_heads(model, tokenizer)
    begin = time.monotonic()
    if args.resume:
        model = Qwen2ForCausalLM.from_pretrained(args.out, dtype=torch.float32)
    limit_s, first = args.minutes * 60 * args.threads, 1.0 if args.resume else 0.4
    done = train(model, tokenizer, args.out, first=first, limit_s=limit_s, tokens=args.batch_tokens)
    save(model, tokenizer, args.out)
    print(f"{args.out}: {'all' if done else 'NOT all'} held-out prompts right after {time.monotonic() - begin:.0f} s")
    return 0 if done else 1


if __name__ == "__main__":
    raise SystemExit(main())
