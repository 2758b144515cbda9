"""Make a tiny Whisper model folder without weights (config, tokenizer, feature extractor).

Usage: python make_whisper_model.py OUTDIR       (needs `transformers`)
"""

import sys
from pathlib import Path

from tokenizers import pre_tokenizers
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperTokenizer
from transformers.models.whisper.tokenization_whisper import LANGUAGES

folder = Path(sys.argv[1]) / "tiny-whisper"
TASKS = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]

special = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in LANGUAGES),
    *(f"<|{t}|>" for t in TASKS),
]
vocab = {token: n for n, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *special])}
tokenizer = WhisperTokenizer(vocab=vocab, merges=[], language="en", task="transcribe")
tokenizer.add_special_tokens({"additional_special_tokens": special})
tokenizer.add_tokens([f"<|{n * 0.02:.2f}|>" for n in range(1501)])
tokenizer.save_pretrained(folder)
ids = tokenizer.get_vocab()

WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
config = WhisperConfig(
    vocab_size=-(-len(ids) // 64) * 64,
    d_model=64,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=128,
    decoder_ffn_dim=128,
    bos_token_id=ids["<|endoftext|>"],
    eos_token_id=ids["<|endoftext|>"],
    pad_token_id=ids["<|endoftext|>"],
    decoder_start_token_id=ids["<|startoftranscript|>"],
    architectures=["WhisperForConditionalGeneration"],
    dtype="bfloat16",
)
config.save_pretrained(folder)
generation = GenerationConfig(eos_token_id=ids["<|endoftext|>"], decoder_start_token_id=ids["<|startoftranscript|>"])
generation.save_pretrained(folder)
print(folder, len(ids))
