"""Make a tiny Llama with random weights, for servers that load weights: a folder, or a GGUF file.

Usage: python make_text_model.py OUTDIR            (needs tokenizers, torch and transformers)
       python make_text_model.py FILE.gguf         (needs tokenizers, numpy and gguf)
"""

import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY, HIDDEN, INNER, LAYERS, HEADS, CONTEXT = 1024, 64, 128, 2, 4, 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = """the of and to in is that it was for on are as with his they at be this from have or by one time day man new old
good year work life hand part place case group number world house water night city light music paper river stone table image
picture server request answer question color hello"""


def tokenizer():
    """Train a byte-level BPE tokenizer with these words."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    chance, words = random.Random(7), _TEXT.split()
    texts = [" ".join(chance.choice(words) for _ in range(12)) for _ in range(2000)]
    found.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - len(SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    found.add_special_tokens(list(SPECIAL))
    return found


def write_folder(out):
    """Write config, tokenizer, chat template and weights as transformers reads them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    made = tokenizer()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(out)
    torch.manual_seed(1)
    end = made.token_to_id(SPECIAL[2])
    config = LlamaConfig(
        vocab_size=made.get_vocab_size(), hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, max_position_embeddings=CONTEXT, bos_token_id=None,
        eos_token_id=end, pad_token_id=made.token_to_id(SPECIAL[0]),
    )  # fmt: skip
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.copy_(torch.randn_like(weights) * 0.12)
        model.lm_head.weight[made.token_to_id(SPECIAL[0]) :] = 0  # seldom the end
    model.save_pretrained(out)


def write_gguf(path):
    """Write the same architecture as llama.cpp reads it."""
    import json

    import gguf
    import numpy as np

    made = tokenizer()
    vocabulary = sorted(made.get_vocab(), key=made.get_vocab().get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in json.loads(made.to_str())["model"]["merges"]]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny-text")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(vocabulary))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([
        gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL for t in vocabulary
    ])  # fmt: skip
    writer.add_token_merges(merges)
    writer.add_eos_token_id(made.token_to_id(SPECIAL[2]))
    writer.add_pad_token_id(made.token_to_id(SPECIAL[0]))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    chance = np.random.default_rng(1)

    def add(name, *shape):
        values = np.ones(shape) if len(shape) == 1 else chance.standard_normal(shape) * 0.12
        if name == "output.weight":
            values[made.token_to_id(SPECIAL[0]) :] = 0  # seldom the end
        writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", len(vocabulary), HIDDEN)
    for n in range(LAYERS):
        add(f"blk.{n}.attn_norm.weight", HIDDEN)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{n}.{part}.weight", HIDDEN, HIDDEN)
        add(f"blk.{n}.ffn_norm.weight", HIDDEN)
        add(f"blk.{n}.ffn_gate.weight", INNER, HIDDEN)
        add(f"blk.{n}.ffn_up.weight", INNER, HIDDEN)
        add(f"blk.{n}.ffn_down.weight", HIDDEN, INNER)
    add("output_norm.weight", HIDDEN)
    add("output.weight", len(vocabulary), HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    target = sys.argv[1]
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    write_gguf(target) if target.endswith(".gguf") else write_folder(target)
