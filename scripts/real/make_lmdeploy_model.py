"""Make a tiny model folder without weights for LMDeploy.

It has a config, a byte-level tokenizer (1 byte is 1 token) and a chat template, so LMDeploy's own code for them runs.
"""

import json
import os
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def make(path, vlm=False, max_pos=4096):
    os.makedirs(path, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
    tok.add_special_tokens(specials)
    t = PreTrainedTokenizerFast(
        tokenizer_object=tok, eos_token="<|im_end|>", pad_token="<|endoftext|>", additional_special_tokens=specials[1:]
    )
    t.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    t.save_pretrained(path)
    base = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": max_pos,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
        "bos_token_id": 256,
        "eos_token_id": 258,
    }
    if vlm:
        cfg = dict(architectures=["Qwen2VLForConditionalGeneration"], model_type="qwen2_vl", **base)
        cfg["vision_config"] = {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "patch_size": 14}
    else:
        cfg = dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", **base)
    json.dump(cfg, open(os.path.join(path, "config.json"), "w"), indent=1)
    json.dump(
        {"eos_token_id": 258, "do_sample": True, "temperature": 0.7, "top_p": 0.8},
        open(os.path.join(path, "generation_config.json"), "w"),
    )


if __name__ == "__main__":
    make(sys.argv[1], vlm="--vlm" in sys.argv)
