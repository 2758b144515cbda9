"""Train a tiny Qwen3-VL on the CPU until it names the colour of the square in all of 400 held-out images.

Usage: VENV/bin/python scripts/real/train_colour_model.py [OUTDIR]     (a vLLM environment: torch, transformers)

The question and the images are those of the kind `image_colour` in loadchaos/server/probes, so the server that serves this
model can answer it. The config, the tokenizer and the image processor are those of `tiny-qwen3-vl`. It ends with exit
code 1 where the time is over first; the model is written all the same.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import random
import shutil
import sys
import time
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from loadchaos.core.probe_pictures import COLOURS, PAPER, SIDE, SQUARE
from loadchaos.server.probes.kinds import COLOUR_TEXT
from loadchaos.server.probes.pictures import draw_square

ROOT = Path(os.environ.get("LOADCHAOS_REAL", "~/.cache/loadchaos")).expanduser() / "models"
_RATE, _SIZE, _BATCH, _HELD_OUT, _NEARBY = 2e-3, 0.08, 8, 400, 12


class Questions:
    """The question about a batch of images, as the chat template of the server writes it."""

    def __init__(self, source: Path) -> None:
        self._images = AutoImageProcessor.from_pretrained(source)
        self._tokenizer = AutoTokenizer.from_pretrained(source)
        message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": COLOUR_TEXT}]}]
        self._prompt = self._tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        self._length = max(len(self._ids(f"{colour}<|im_end|>")) for colour in COLOURS)

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def batch(self, images: list[Image.Image], colours: list[str]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Inputs and labels; a short answer is filled up behind its end."""
        seen = self._images(images=images, return_tensors="pt")
        tokens = int(seen["image_grid_thw"][0].prod()) // self._images.merge_size**2
        prompt = self._ids(self._prompt.replace("<|image_pad|>", "<|image_pad|>" * tokens))
        rows, labels = [], []
        for colour in colours:
            answer = self._ids(f"{colour}<|im_end|>")
            rest = self._length - len(answer)
            rows.append([*prompt, *answer, *answer[-1:] * rest])
            labels.append([*[-100] * len(prompt), *answer, *[-100] * rest])
        ids = torch.tensor(rows)
        image = self._tokenizer.convert_tokens_to_ids("<|image_pad|>")
        more = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": (ids == image).int()}
        return {**more, **seen}, torch.tensor(labels)


def asked(rng: random.Random) -> tuple[Image.Image, str]:
    """An image as a probe draws it, with its colour."""
    colour = rng.choice(list(COLOURS))
    data = draw_square(colour, mark=rng.getrandbits(24)).partition(",")[2]
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"), colour


def nearby(rng: random.Random) -> tuple[Image.Image, str]:
    """A square of nearly its colour, so that the answers have a margin."""
    colour = rng.choice(list(COLOURS))
    image = Image.new("RGB", (SIDE, SIDE), PAPER)
    ink = tuple(min(255, max(0, part + rng.randint(-_NEARBY, _NEARBY))) for part in COLOURS[colour])
    image.paste(ink, (SQUARE[0], SQUARE[0], SQUARE[1], SQUARE[1]))
    return image, colour


def right(model: torch.nn.Module, questions: Questions, rng: random.Random, n: int) -> int:
    """Number of held-out images whose whole answer has the largest logit at each token."""
    found = 0
    for _ in range(0, n, _BATCH):
        images, colours = zip(*(asked(rng) for _ in range(_BATCH)), strict=True)
        inputs, labels = questions.batch(list(images), list(colours))
        with torch.no_grad():
            said = model(**inputs).logits[:, :-1].argmax(-1)
        wanted = labels[:, 1:]
        found += int(((said == wanted) | (wanted == -100)).all(1).sum())
    return found


def train(model: torch.nn.Module, questions: Questions, limit_s: float) -> bool:
    """Train until all held-out images are right, or `limit_s` of CPU time are over."""
    rng, tests = random.Random(1), random.Random("held out")
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    begin, mean, step = time.process_time(), 3.0, 0
    while (used := time.process_time() - begin) < limit_s:
        step += 1
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, step / 50) * (1.0 if mean > 0.1 else 0.2)
        images, colours = zip(*(rng.choice((asked, nearby))(rng) for _ in range(_BATCH)), strict=True)
        inputs, labels = questions.batch(list(images), list(colours))
        logits = model(**inputs).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = 0.95 * mean + 0.05 * loss.item()
        if step % 25 == 0:
            print(f"{used:5.0f} s  step {step}  loss {mean:.4f}", flush=True)
        if mean < 0.003 and step % 50 == 0:
            n = right(model, questions, tests, _HELD_OUT)
            print(f"step {step}: {n} of {_HELD_OUT} held-out images right", flush=True)
            if n == _HELD_OUT:
                return True
    return False


def main() -> int:
    """Train, print the share of right answers, and write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "tiny-colour")
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    source = ROOT / "tiny-qwen3-vl"
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(source)).float()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.copy_(torch.randn_like(weights) * _SIZE)
    begin = time.monotonic()
    done = train(model, Questions(source), args.minutes * 60 * args.threads)
    model.save_pretrained(args.out)
    for file in source.iterdir():
        if not (args.out / file.name).exists():
            shutil.copy(file, args.out / file.name)
    print(f"{args.out}: {'all' if done else 'NOT all'} held-out images right after {time.monotonic() - begin:.0f} s")
    return 0 if done else 1


if __name__ == "__main__":
    raise SystemExit(main())
