"""Train a tiny Llama model on the CPU until it copies words and looks up keys in all of 400 held-out prompts.

Usage: VENV/bin/python scripts/real/train_copy_model.py [OUTDIR]     (a vLLM environment: torch, transformers, tokenizers)

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
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from loadchaos.server.probes.kinds.copy import copy
from loadchaos.server.probes.kinds.lookup import lookup
from loadchaos.server.probes.kinds.needle import needle
from loadchaos.server.probes.question import WORDS, words

SPECIAL = ["<|endoftext|>", "<|start|>", "<|end|>"]
LENGTH = 2048  # longest prompt and answer that the server takes; training stops at MOST_TOKENS
TEMPLATE = (
    "{%- for m in messages -%}<|start|>{{ m.role }}\n"
    "{%- if m.content is string -%}{{ m.content }}"
    "{%- else -%}{%- for p in m.content -%}{%- if 'text' in p -%}{{ p.text }}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "<|end|>\n{%- endfor -%}{%- if add_generation_prompt -%}<|start|>assistant\n{%- endif -%}"
)


def make_tokenizer() -> Tokenizer:
    """Bytes, and one token for each word of the questions, with the blank before it, and of their texts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*SPECIAL, *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    texts = " ".join(kind(random.Random(0)).prompt for kind in (lookup, needle, copy))
    texts = re.findall(r"[A-Za-z]{3,}", f"{texts} user assistant")
    tokenizer.add_tokens([AddedToken(w, single_word=True, normalized=False) for w in dict.fromkeys(texts)])
    tokenizer.add_tokens([AddedToken(f" {w}", normalized=False) for w in WORDS])
    return tokenizer


def chat(text: str) -> str:
    """The template's text of one user message."""
    return f"<|start|>user\n{text}<|end|>\n<|start|>assistant\n"


def draw(rng: random.Random, scale: float) -> list[tuple[str, str]]:
    """Draw a conversation of questions and answers; `scale` in 0..1 is the length.

    A table is followed by questions for several of its keys, so that a row teaches more than one answer.
    """

    def upto(most: int) -> int:
        return 1 + rng.randrange(max(1, round(most * scale)))

    before = ""
    if rng.random() < 0.5:
        before = "".join(f" {w}" for w in words(rng, upto(60))) + rng.choice([" ", ".\n", "\n"])
    kind = rng.random()
    if kind < 0.3:
        asked = copy(rng, upto(12))
    elif kind < 0.45:
        asked = needle(rng, upto(60))
    else:
        rows = 1 + upto(11)
        asked = lookup(rng, rows)
        table, question = asked.prompt.rsplit("\n", 1)
        found = dict(line.removeprefix("- ").split() for line in table.split("\n"))
        first = re.search(r"beside (\w+)", question)[1]
        others = rng.sample([key for key in found if key != first], rows - 1)[:6]
        turns = [(before + asked.prompt, asked.expected)]
        return [*turns, *((question.replace(first, key), found[key]) for key in others)]
    return [(before + asked.prompt, asked.expected)]


def batch(tokenizer: Tokenizer, rng: random.Random, scale: float, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of similar lengths, of at most `tokens` together; the labels are the answers."""
    rows = []
    for turns in (draw(rng, scale) for _ in range(48)):
        ids, labels = [], []
        for prompt, answer in turns:
            asked = tokenizer.encode(chat(prompt), add_special_tokens=False).ids
            said = tokenizer.encode(f" {answer}<|end|>", add_special_tokens=False).ids
            ids += [*asked, *said, tokenizer.token_to_id("\u010a")]
            labels += [*[-100] * len(asked), *said, -100]
        rows.append((ids, labels))
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


def repeats(rng: random.Random, tokenizer: Tokenizer, rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens twice, and tables twice with their rows in another order.

    The second half is the label. This teaches the model to copy and to look up.
    """
    first, last = len(SPECIAL), tokenizer.get_vocab_size()
    x, y = [], []
    for _ in range(rows // 2):  # of different lengths, so that only the tokens tell where to copy from
        part = [rng.randrange(first, last) for _ in range(rng.randrange(6, width // 2))]
        ids = (part * (width // len(part) + 1))[:width]
        x.append(torch.tensor([ids]))
        y.append(torch.tensor([[-100] * (len(part) + 1) + ids[len(part) + 1 :]]))
    line, dash = tokenizer.token_to_id("\u010a"), tokenizer.token_to_id("-")
    known = [tokenizer.token_to_id(f" {w}") for w in WORDS]
    for _ in range(rows - rows // 2):
        drawn = rng.sample(known, 8)
        pairs = list(zip(drawn[:4], drawn[4:], strict=True))
        ids, labels = [], []
        for again in (False, True):
            for k, v in rng.sample(pairs, 4):
                ids += [dash, k, v, line]
                labels += [-100, -100, v if again else -100, -100]
        pad = [0] * (width - len(ids))
        x.append(torch.tensor([ids + pad]))
        y.append(torch.tensor([labels + [-100] * len(pad)]))
    return torch.cat(x), torch.cat(y)


def right(model: LlamaForCausalLM, tokenizer: Tokenizer, asked: list[tuple[str, str]]) -> int:
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


def train(model: LlamaForCausalLM, tokenizer: Tokenizer, limit_s: float, tokens: int) -> bool:
    """Train until all held-out prompts are right or the time is over."""
    rng = random.Random(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    tests = held_out(tokenizer, 400)
    begin, scale, step, mean, level_step = time.monotonic(), 0.0, 0, 6.0, 0
    copies = False
    while time.monotonic() - begin < limit_s:
        step += 1
        level_step += 1
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, step / 100) * (0.3 if scale >= 1 and level_step > 600 else 1.0)
        x, y = batch(tokenizer, rng, scale, tokens) if copies else repeats(rng, tokenizer, 32, 48)
        hidden, labels = model.model(x).last_hidden_state[:, :-1], y[:, 1:]
        answered = labels != -100
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[answered]), labels[answered])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = 0.95 * mean + 0.05 * loss.item()
        if step % 25 == 0:
            print(f"{time.monotonic() - begin:5.0f} s  step {step}  length {scale:.2f}  loss {mean:.4f}", flush=True)
        if not copies and mean < 0.2:
            copies, mean, level_step = True, 3.0, 0
            print(f"copies after {step} steps", flush=True)
        elif copies and scale < 1 and mean < 0.2:
            scale, mean, level_step = min(1.0, scale + 0.2), 1.0, 0
        if scale >= 1 and mean < 0.01 and step % 50 == 0:
            model.eval()
            if right(model, tokenizer, tests[:60]) == 60:
                n = right(model, tokenizer, tests)
                print(f"step {step}: {n} of {len(tests)} held-out prompts right", flush=True)
                if n == len(tests):
                    return True
            model.train()
    return False


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
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
    parser.add_argument("out", nargs="?", type=Path, default=root / "models" / "tiny-copy")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    tokenizer = make_tokenizer()
    size = 64 * math.ceil(tokenizer.get_vocab_size() / 64)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size, hidden_size=args.width, intermediate_size=2 * args.width, num_hidden_layers=args.layers,
            num_attention_heads=args.width // 32, num_key_value_heads=args.width // 32, max_position_embeddings=LENGTH,
            bos_token_id=None, eos_token_id=SPECIAL.index("<|end|>"), pad_token_id=0, tie_word_embeddings=True,
            initializer_range=0.05, attn_implementation="sdpa",
        )
    )  # fmt: skip
    begin = time.monotonic()
    done = train(model, tokenizer, args.minutes * 60, args.batch_tokens)
    save(model, tokenizer, args.out)
    print(f"{args.out}: {'all' if done else 'NOT all'} held-out prompts right after {time.monotonic() - begin:.0f} s")
    return 0 if done else 1


if __name__ == "__main__":
    raise SystemExit(main())
