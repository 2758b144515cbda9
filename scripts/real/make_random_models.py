"""Write tiny models whose random weights prefer tokens clearly, and LoRA adapters of the trained model.

Usage: VENV/bin/python scripts/real/make_random_models.py      (a vLLM environment: torch, transformers)

vLLM's dummy weights are so small that all tokens are nearly as likely, and no answer is wrong beyond numerics. These are
larger: most tokens of an answer are preferred by 1 to 5. `tiny-qwen3_5-random` has linear and full attention and MTP,
`tiny-qwen3-vl-random` answers differently about different images, `tiny-qwen3-embed-random` has vectors that depend on more
than the last token, and `tiny-copy-lora-1` to `-3` change the answers of
`tiny-copy`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

ROOT = Path(os.environ.get("LOADCHAOS_REAL", "~/.cache/loadchaos")).expanduser() / "models"
_INNER, _OUTER, _VISUAL = 0.12, 0.5, 0.2
_ADAPTERS, _RANK, _LAYERS, _HIDDEN, _LORA = 3, 8, 3, 256, 0.1


def _random_model(name: str, *, visual: bool, kind: type = AutoModelForImageTextToText) -> tuple[Path, torch.nn.Module]:
    """Write NAME-random beside NAME, whose config and tokenizer it shares."""
    source, out = ROOT / name, ROOT / f"{name}-random"
    torch.manual_seed(1)
    model = kind.from_config(AutoConfig.from_pretrained(source)).float()
    with torch.no_grad():
        for key, weights in model.named_parameters():
            if weights.ndim > 1 and (visual or "visual" not in key):
                outer = "embed_tokens" in key or "lm_head" in key
                size = _OUTER if outer else _VISUAL if "visual" in key else _INNER
                weights.copy_(torch.randn_like(weights) * size)
    model.save_pretrained(out)
    for file in source.iterdir():
        shutil.copy(file, out / file.name)
    print(out)
    return out, model


def _add_drafter(out: Path, model: torch.nn.Module) -> None:
    """Add the MTP layer: a copy of the layer with full attention."""
    weights = load_file(out / "model.safetensors")
    layer = "model.language_model.layers.1."
    drafter = {name.replace(layer, "mtp.layers.0."): w.clone() for name, w in weights.items() if name.startswith(layer)}
    size = model.config.text_config.hidden_size
    drafter["mtp.fc.weight"] = torch.randn(size, 2 * size) * _INNER
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        drafter[f"mtp.{norm}.weight"] = torch.zeros(size)  # the weight is what is added to 1
    save_file({**weights, **drafter}, out / "model.safetensors", metadata={"format": "pt"})


def _adapter(number: int) -> None:
    """Write a LoRA adapter of the trained model, in the files of PEFT."""
    out = ROOT / f"tiny-copy-lora-{number}"
    out.mkdir(exist_ok=True)
    torch.manual_seed(number)
    targets, weights = ("q_proj", "k_proj", "v_proj", "o_proj"), {}
    for layer in range(_LAYERS):
        for target in targets:
            key = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            weights[f"{key}.lora_A.weight"] = torch.randn(_RANK, _HIDDEN) * _LORA
            weights[f"{key}.lora_B.weight"] = torch.randn(_HIDDEN, _RANK) * _LORA
    save_file(weights, out / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(ROOT / "tiny-copy"), "r": _RANK,
        "lora_alpha": _RANK, "lora_dropout": 0.0, "bias": "none", "target_modules": list(targets),
        "inference_mode": True,
    }  # fmt: skip
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2))
    print(out)


def main() -> None:
    """Write all models."""
    _add_drafter(*_random_model("tiny-qwen3_5", visual=False))
    _random_model("tiny-qwen3-vl", visual=True)
    _random_model("tiny-qwen3-embed", visual=False, kind=AutoModelForCausalLM)
    for number in range(1, _ADAPTERS + 1):
        _adapter(number)


if __name__ == "__main__":
    main()
