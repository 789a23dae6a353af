"""Writes a llama-style GGUF file as a Hugging Face folder, for engines that read safetensors and
not GGUF.

Usage: PYTHON scripts/gguf_to_safetensors.py GGUF FOLDER

PYTHON is one that has numpy and safetensors, such as that of the environment made by
scripts/vllm_cpu_env.py. Weights are dequantized and rounded to float16. llama.cpp stores the rows
of attn_q and attn_k in the order its rope wants; they are put back into that of Hugging Face. Made
for SmolLM2-135M, whose GGUF skep can pull, and tried on that file only; a file with another
architecture, tokenizer or tensor type is refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
try:
    import numpy as np
    from safetensors.numpy import save_file
except ImportError as missing:
    print(f"error: {missing}", file=sys.stderr)
    print(
        "hint: use the Python beside the `vllm` whose path scripts/vllm_cpu_env.py prints",
        file=sys.stderr,
    )
    sys.exit(2)

from skep.errors import SkepError, UserError
from skep.weights.gguf import GgufHeader, TensorInfo, check_file, read_header

# llama.cpp's token types
_CONTROL = 3
_USER_DEFINED = 4
_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCKS = {
    "Q8_0": np.dtype([("scale", "<f2"), ("values", "i1", 32)]),
    "Q4_0": np.dtype([("scale", "<f2"), ("values", "u1", 16)]),
    "Q4_1": np.dtype([("scale", "<f2"), ("lowest", "<f2"), ("values", "u1", 16)]),
}
_PLAIN = {"F32": "<f4", "F16": "<f2"}


def need(metadata: Mapping[str, Any], key: str) -> Any:
    if key not in metadata:
        raise UserError(
            f"the GGUF has no `{key}`", hint="use the file that `skep pull smollm2-135m` brings"
        )
    return metadata[key]


def dequantize(raw: bytes, kind: str | None) -> np.ndarray:
    """The values of one tensor in the order they are stored, as float32."""
    if kind in _PLAIN:
        return np.frombuffer(raw, _PLAIN[kind]).astype(np.float32)
    if kind not in _BLOCKS:
        known = ", ".join([*_PLAIN, *_BLOCKS])
        raise UserError(
            f"tensors of type {kind or 'unknown'} are not read here", hint=f"known are {known}"
        )
    blocks = np.frombuffer(raw, _BLOCKS[kind])
    scale = blocks["scale"].astype(np.float32)[:, None]
    if kind == "Q8_0":
        return (blocks["values"] * scale).ravel()
    # the first 16 values of a block are the low halves of its bytes, the other 16 the high ones
    values = np.concatenate([blocks["values"] & 15, blocks["values"] >> 4], axis=1).astype(
        np.float32
    )
    if kind == "Q4_0":
        return ((values - 8) * scale).ravel()
    return (values * scale + blocks["lowest"].astype(np.float32)[:, None]).ravel()


def rows_for_hugging_face(weights: np.ndarray, heads: int) -> np.ndarray:
    """Neighbouring rows of a head form a rotated pair in llama.cpp; in Hugging Face row i and row
    i + half do.
    """
    rows, columns = weights.shape
    return (
        weights.reshape(heads, rows // heads // 2, 2, columns)
        .swapaxes(1, 2)
        .reshape(rows, columns)
    )


def new_name(name: str) -> str | None:
    """None: the tensor is a table that engines compute for themselves."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    if name == "rope_freqs.weight":
        return None
    prefix, _, rest = name.partition(".")
    number, _, part = rest.partition(".")
    part, _, kind = part.partition(".")
    if prefix == "blk" and number.isdigit() and part in _IN_BLOCK and kind == "weight":
        return f"model.layers.{number}.{_IN_BLOCK[part]}.weight"
    raise UserError(
        f"tensor `{name}` is unknown here",
        hint="only plain models of architecture `llama` are written",
    )


def tensors(path: Path, header: GgufHeader) -> Iterator[tuple[str, np.ndarray]]:
    heads = {
        "attn_q": need(header.metadata, "llama.attention.head_count"),
        "attn_k": need(header.metadata, "llama.attention.head_count_kv"),
    }
    with path.open("rb") as file:
        for tensor in header.tensors:
            name = new_name(tensor.name)
            if name is None:
                continue
            values = read_tensor(file.fileno(), header, tensor)
            part = tensor.name.split(".")[-2]
            if part in heads:
                values = rows_for_hugging_face(values, heads[part])
            yield name, np.ascontiguousarray(values, dtype=np.float16)


def read_tensor(fd: int, header: GgufHeader, tensor: TensorInfo) -> np.ndarray:
    raw = os.pread(fd, tensor.size_bytes or 0, header.data_offset + tensor.offset)
    return dequantize(raw, tensor.type_name).reshape(tensor.shape[::-1])


def config(header: GgufHeader) -> dict[str, Any]:
    facts = header.metadata
    heads = need(facts, "llama.attention.head_count")
    width = need(facts, "llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": need(facts, "llama.feed_forward_length"),
        "num_hidden_layers": need(facts, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": need(facts, "llama.attention.head_count_kv"),
        "head_dim": facts.get("llama.rope.dimension_count", width // heads),
        "max_position_embeddings": need(facts, "llama.context_length"),
        "rms_norm_eps": float(
            f"{need(facts, 'llama.attention.layer_norm_rms_epsilon'):.6g}"
        ),  # it was a float32
        "rope_theta": facts.get("llama.rope.freq_base", 10000.0),
        "vocab_size": len(need(facts, "tokenizer.ggml.tokens")),
        "bos_token_id": facts.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": facts.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": facts.get("tokenizer.ggml.padding_token_id"),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in header.tensors),
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "float16",
    }


def tokenizer(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Byte-level BPE that splits numbers into digits: what llama.cpp calls `smollm`."""
    kind = (facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        hint = "use the file that `skep pull smollm2-135m` brings"
        raise UserError(
            f"the tokenizer {kind[0]}/{kind[1]} is not written here, only gpt2/smollm is",
            hint=hint,
        )
    texts = need(facts, "tokenizer.ggml.tokens")
    kinds = need(facts, "tokenizer.ggml.token_type")
    bytes_ = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    digits = {"type": "Digits", "individual_digits": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "content": text, **flags, "special": kind == _CONTROL}
        for number, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {text: number for number, text in enumerate(texts)},
        "merges": list(need(facts, "tokenizer.ggml.merges")),
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, bytes_]},
        "post_processor": None,
        "decoder": bytes_,
        "model": model,
    }


def tokenizer_config(facts: Mapping[str, Any]) -> dict[str, Any]:
    texts = need(facts, "tokenizer.ggml.tokens")
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {short: facts.get(f"tokenizer.ggml.{long}_token_id") for short, long in named.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": need(facts, "llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": need(facts, "tokenizer.chat_template"),
        **{f"{short}_token": texts[number] for short, number in ids.items() if number is not None},
    }


def write(path: Path, folder: Path) -> None:
    check_file(path)
    header = read_header(path, keep_arrays=True)
    if header.architecture != "llama":
        raise UserError(
            f"`{path}` has architecture `{header.architecture}`",
            hint="only `llama` is written here",
        )
    facts = header.metadata
    generation = {"eos_token_id": facts.get("tokenizer.ggml.eos_token_id")}
    documents = {
        "tokenizer.json": tokenizer(facts),
        "tokenizer_config.json": tokenizer_config(facts),
        "generation_config.json": generation,
        "config.json": config(header),  # last: a folder that has it is complete
    }
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / ".model.safetensors.new"
    save_file(dict(tensors(path, header)), beside, metadata={"format": "pt"})
    beside.chmod(0o644)
    beside.replace(folder / "model.safetensors")
    for name, document in documents.items():
        text = json.dumps(
            document, ensure_ascii=False, indent=None if name == "tokenizer.json" else 2
        )
        (folder / name).write_text(text + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or any(argument.startswith("-") for argument in arguments):
        print(__doc__, file=sys.stdout if {"-h", "--help"} & set(arguments) else sys.stderr)
        if {"-h", "--help"} & set(arguments):
            return 0
        return 2
    path, folder = map(Path, arguments)
    try:
        write(path, folder)
    except (SkepError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        if getattr(error, "hint", None):
            print(f"hint: {error.hint}", file=sys.stderr)  # type: ignore[union-attr]
        return 2
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
