"""A tokenizer for the tools that want one, made here: no model hub is asked.

It knows the words of the truth server's answers, each as one token, and single characters for
everything else."""

from __future__ import annotations

import json
import string
from pathlib import Path

WORDS = ("the", "parser", "returns", "an", "empty", "list", "when", "input", "ends", "naïve")
SPACE = "\u2581"
UNKNOWN = "<unk>"
END = "</s>"


def write_tokenizer(folder: Path) -> Path:
    """`folder` as a model folder that holds nothing but a tokenizer."""
    pieces = [
        (UNKNOWN, 0.0),
        (END, 0.0),
        *((SPACE + word, -1.0) for word in WORDS),
        (SPACE, -10.0),
    ]
    pieces += [(letter, -10.0) for letter in string.printable.strip() + "ï"]
    marked = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    metaspace = {
        "type": "Metaspace",
        "replacement": SPACE,
        "prepend_scheme": "always",
        "split": True,
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": text, **marked} for number, text in enumerate((UNKNOWN, END))
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace],
        },
        "post_processor": None,
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNKNOWN,
        "eos_token": END,
        "bos_token": END,
        "model_max_length": 131072,
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", settings),
        ("config.json", {"model_type": "gpt2", "vocab_size": len(pieces)}),
    ):
        (folder / name).write_text(json.dumps(content))
    return folder
