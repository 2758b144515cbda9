"""Make tiny multimodal model folders without weights (config, tokenizer, processor, chat template).

Usage: python make_vllm_models.py OUTDIR       (needs only `tokenizers`)
"""

import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

out = sys.argv[1]

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
PLAIN = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
VOCAB = 2048


def corpus():
    r = random.Random(7)
    sy = [
        "ka",
        "lo",
        "mi",
        "te",
        "ra",
        "shun",
        "ver",
        "al",
        "pro",
        "con",
        "est",
        "ing",
        "tion",
        "ment",
        "ab",
        "un",
        "re",
        "de",
        "for",
        "per",
        "ly",
        "ous",
        "ist",
        "um",
        "or",
    ]
    words = [
        "the",
        "of",
        "and",
        "to",
        "in",
        "is",
        "that",
        "it",
        "was",
        "for",
        "on",
        "are",
        "as",
        "with",
        "his",
        "they",
        "at",
        "be",
        "this",
        "from",
        "have",
        "or",
        "by",
        "one",
        "image",
        "picture",
        "describe",
        "what",
        "color",
        "server",
        "request",
        "token",
        "hello",
        "world",
        "please",
        "answer",
        "question",
    ]
    words += ["".join(r.choice(sy) for _ in range(r.randint(2, 4))) for _ in range(3000)]
    for _ in range(6000):
        yield " ".join(r.choice(words) for _ in range(12)) + r.choice([".", "?", "!", "\n", ": 1234567890"])


def make_tokenizer():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501 - Qwen's own
                ),
                "isolated",
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    n_added = len(SPECIAL) + len(PLAIN)
    t.train_from_iterator(
        corpus(),
        trainers.BpeTrainer(
            vocab_size=VOCAB - n_added, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    t.add_tokens([AddedToken(s, special=False, normalized=False) for s in PLAIN])
    return t


TEMPLATE = """{%- macro content(c) -%}
{%- if c is string -%}{{ c }}{%- else -%}{%- for p in c -%}
{%- if p.type == 'image' or 'image' in p or 'image_url' in p -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif p.type == 'video' or 'video' in p -%}<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in p -%}{{ p.text }}{%- endif -%}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}<|im_start|>{{ m.role }}
{{ content(m.content) }}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""


def dump(d, name, obj):
    with open(os.path.join(d, name), "w") as f:
        json.dump(obj, f, indent=2)


def make(name, arch, full_attention=False):
    d = os.path.join(out, name)
    os.makedirs(d, exist_ok=True)
    t = make_tokenizer()
    t.save(os.path.join(d, "tokenizer.json"))
    ids = {s: t.token_to_id(s) for s in SPECIAL}
    assert t.get_vocab_size() <= VOCAB, t.get_vocab_size()
    dump(
        d,
        "tokenizer_config.json",
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "model_max_length": 131072,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "bos_token": None,
            "unk_token": None,
            "add_bos_token": False,
            "add_prefix_space": False,
            "errors": "replace",
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": False,
            "chat_template": TEMPLATE,
            "added_tokens_decoder": {
                str(t.token_to_id(s)): {
                    "content": s,
                    "lstrip": False,
                    "normalized": False,
                    "rstrip": False,
                    "single_word": False,
                    "special": s in SPECIAL,
                }
                for s in SPECIAL + PLAIN
            },
        },
    )
    open(os.path.join(d, "chat_template.jinja"), "w").write(TEMPLATE)
    q3 = arch != "qwen2_5_vl"
    patch = 16 if q3 else 14
    size = (
        {"longest_edge": 1024 * 1024, "shortest_edge": 65536}
        if q3
        else {"longest_edge": 1280 * 28 * 28, "shortest_edge": 56 * 56}
    )
    proc = "Qwen3VLProcessor" if q3 else "Qwen2_5_VLProcessor"
    dump(
        d,
        "preprocessor_config.json",
        {
            "size": size,
            "patch_size": patch,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
            "processor_class": proc,
            "image_processor_type": "Qwen2VLImageProcessorFast",
        },
    )
    dump(
        d,
        "video_preprocessor_config.json",
        {
            "size": {"longest_edge": 1024 * 1024 * 2, "shortest_edge": 4096},
            "patch_size": patch,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
            "processor_class": proc,
            "video_processor_type": "Qwen3VLVideoProcessor" if q3 else "Qwen2VLVideoProcessor",
        },
    )
    dump(
        d,
        "generation_config.json",
        {
            "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
            "pad_token_id": ids["<|endoftext|>"],
            "do_sample": True,
            "temperature": 0.7,
            "top_p": 0.8,
            "top_k": 20,
        },
    )
    H = 64
    common = {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": False,
    }
    vis = {
        "depth": 2,
        "hidden_size": 64,
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": 128,
        "num_heads": 2,
        "in_channels": 3,
        "in_chans": 3,
        "patch_size": patch,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": H,
        "num_position_embeddings": 256,
        "initializer_range": 0.02,
    }
    txt = {
        "vocab_size": VOCAB,
        "hidden_size": H,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "use_cache": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": ids["<|im_end|>"],
        "bos_token_id": None,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    if arch == "qwen3_vl":
        cfg = {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "model_type": "qwen3_vl",
            **common,
            "text_config": {
                **txt,
                "model_type": "qwen3_vl_text",
                "rope_theta": 5000000,
                "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"},
            },
            "vision_config": {**vis, "model_type": "qwen3_vl", "deepstack_visual_indexes": [0, 1]},
        }
    elif arch == "qwen3_5":
        cfg = {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            **common,
            "text_config": {
                **txt,
                "model_type": "qwen3_5_text",
                "head_dim": 64,
                "full_attention_interval": 1 if full_attention else 2,
                "layer_types": ["full_attention" if full_attention else "linear_attention", "full_attention"],
                "attn_output_gate": True,
                "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 64,
                "linear_value_head_dim": 64,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 2,
                "mamba_ssm_dtype": "float32",
                "mtp_num_hidden_layers": 1,
                "mtp_use_dedicated_embeddings": False,
                "rope_parameters": {
                    "mrope_interleaved": True,
                    "mrope_section": [3, 3, 2],
                    "rope_type": "default",
                    "rope_theta": 10000000,
                    "partial_rotary_factor": 0.25,
                },
                "partial_rotary_factor": 0.25,
            },
            "vision_config": {**vis, "model_type": "qwen3_5", "deepstack_visual_indexes": []},
        }
    else:
        cfg = {
            "architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "model_type": "qwen2_5_vl",
            **common,
            **txt,
            "head_dim": 32,
            "rope_theta": 1000000.0,
            "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
            "sliding_window": None,
            "use_sliding_window": False,
            "vision_config": {
                "depth": 2,
                "hidden_act": "silu",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_heads": 2,
                "in_channels": 3,
                "in_chans": 3,
                "out_hidden_size": H,
                "patch_size": 14,
                "spatial_merge_size": 2,
                "spatial_patch_size": 14,
                "window_size": 112,
                "fullatt_block_indexes": [1],
                "tokens_per_second": 2,
                "temporal_patch_size": 2,
                "model_type": "qwen2_5_vl",
            },
        }
    if arch == "qwen3":  # text only; --runner pooling makes vectors of it
        cfg = {**txt, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rope_theta": 1000000.0}
        for name_of_images in ("preprocessor_config.json", "video_preprocessor_config.json"):
            os.remove(os.path.join(d, name_of_images))
    cfg["dtype"] = "bfloat16"
    dump(d, "config.json", cfg)
    print(name, t.get_vocab_size(), ids["<|image_pad|>"])


make("tiny-qwen3-vl", "qwen3_vl")
make("tiny-qwen3_5", "qwen3_5")  # hybrid: linear and full attention, 1 MTP layer
make(
    "tiny-qwen3_5-full", "qwen3_5", full_attention=True
)  # full attention only, 1 MTP layer: MTP runs on the CPU in vLLM 0.22.1
make("tiny-qwen2_5-vl", "qwen2_5_vl")
make("tiny-qwen3-embed", "qwen3")
