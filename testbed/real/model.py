"""A tiny Llama configuration, and a byte-level BPE tokenizer trained on the standard library's sources."""

import glob
import json
import os
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def main(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8192,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:200], trainer)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    ends = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **ends,
            "model_max_length": 4096,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
        "special_tokens_map.json": ends,
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1},
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "vocab_size": tokenizer.get_vocab_size(),
            "bos_token_id": 0,
            "eos_token_id": 1,
            "torch_dtype": "float32",
            "tie_word_embeddings": True,
            "initializer_range": 0.02,
            "attention_bias": False,
            "mlp_bias": False,
        },
    }
    for name, content in files.items():
        with open(os.path.join(folder, name), "w") as file:
            json.dump(content, file)


if __name__ == "__main__":
    main(sys.argv[1])
