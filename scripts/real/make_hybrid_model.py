"""Write a tiny Qwen3.5 (linear and full attention, MTP) whose random weights prefer tokens clearly.

Usage: VENV/bin/python scripts/real/make_hybrid_model.py      (a vLLM environment: torch, transformers)

vLLM's dummy weights are so small that all tokens are nearly as likely, and no answer is wrong beyond numerics. These are
larger: most tokens of an answer are preferred by 1 to 5.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

ROOT = Path(os.environ.get("LOADCHAOS_REAL", "~/.cache/loadchaos")).expanduser() / "models"
_INNER, _OUTER = 0.12, 0.5


def main() -> None:
    """Write models/tiny-qwen3_5-random beside models/tiny-qwen3_5, whose config and tokenizer it shares."""
    source, out = ROOT / "tiny-qwen3_5", ROOT / "tiny-qwen3_5-random"
    torch.manual_seed(1)
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(source)).float()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim > 1 and "visual" not in name:
                outer = "embed" in name or "lm_head" in name
                weights.copy_(torch.randn_like(weights) * (_OUTER if outer else _INNER))
    model.save_pretrained(out)
    weights = load_file(out / "model.safetensors")
    layer = "model.language_model.layers.1."  # with full attention, as the layer that drafts
    drafter = {name.replace(layer, "mtp.layers.0."): w.clone() for name, w in weights.items() if name.startswith(layer)}
    size = model.config.text_config.hidden_size
    drafter["mtp.fc.weight"] = torch.randn(size, 2 * size) * _INNER
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        drafter[f"mtp.{norm}.weight"] = torch.zeros(size)  # the weight is what is added to 1
    save_file({**weights, **drafter}, out / "model.safetensors", metadata={"format": "pt"})
    for file in source.iterdir():
        shutil.copy(file, out / file.name)
    print(out)


if __name__ == "__main__":
    main()
