"""Write two LoRA adapters with the same weights: python make_adapters.py MODEL OUTDIR (with the Python of vLLM).

`text` has the names of modules as training of the language model alone gives them, `whole` as training of the whole model does.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

MODEL, OUT, RANK = Path(sys.argv[1]), Path(sys.argv[2]), 8
SIZES = json.loads((MODEL / "config.json").read_text())["text_config"]
PREFIXES = {"text": "base_model.model.model.layers", "whole": "base_model.model.model.language_model.layers"}
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["down_proj"], "bias": "none"}
for name, prefix in PREFIXES.items():
    torch.manual_seed(1)
    weights = {}
    for layer in range(SIZES["num_hidden_layers"]):
        module = f"{prefix}.{layer}.mlp.down_proj"
        weights[f"{module}.lora_A.weight"] = torch.randn(RANK, SIZES["intermediate_size"])
        weights[f"{module}.lora_B.weight"] = torch.randn(SIZES["hidden_size"], RANK) * 10
    (OUT / name).mkdir(parents=True, exist_ok=True)
    save_file(weights, OUT / name / "adapter_model.safetensors")
    (OUT / name / "adapter_config.json").write_text(json.dumps(CONFIG, indent=1))
