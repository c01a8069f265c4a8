"""A model folder for a frontend. Token N is the text ` tN`, so that a client can derive the received ids."""

import json
from pathlib import Path

from .. import plan

# Vocabulary size, larger than the token count of any plan.
TOKENS = 4096
EOS = plan.FIRST_TOKEN + TOKENS


def write(folder: str) -> None:
    """Writes it."""
    # GPT-2's characters for the 256 bytes: printable bytes stand for themselves, the others are mapped to U+0100 and above.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    names = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    vocabulary = {name: number for number, name in enumerate(names.values())}
    vocabulary |= {f"{names[32]}t{number}": number for number in range(plan.FIRST_TOKEN, EOS)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    files = {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": EOS, "content": "<eos>", **special}],
            "normalizer": None,
            "pre_tokenizer": level,
            "post_processor": None,
            "decoder": level,
            "model": {"type": "BPE", "vocab": vocabulary | {"<eos>": EOS}, "merges": []},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<eos>",
            "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
        },
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "intermediate_size": 128,
            "vocab_size": EOS + 1,
            "max_position_embeddings": 2 * TOKENS,
            "bos_token_id": 0,
            "eos_token_id": EOS,
        },
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": EOS},
    }
    for name, content in files.items():
        (Path(folder) / name).write_text(json.dumps(content))
