"""The header of a GGUF file, versions 2 and 3, checked, and the model's geometry in it.

Widths are in its keys, kinds of layers and parameters in its tensors. Tensor data is never read.

A file is not trusted: no length read from it is used before it is held against the bytes that are
left, and the number of steps that one header may cost is bounded."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import msgspec

from skep.catalog.gpus import ValueOrigin
from skep.catalog.models import Geometry
from skep.errors import UserError, WeightsError
from skep.weights.config_json import counted
from skep.weights.gguf_layers import FileLayers, kv_heads_of, layers_of_file
from skep.weights.model_config import ModelConfig

# id: (name, values per block, bytes per block)
_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 28: ("F64", 1, 8), 24: ("I8", 1, 1),
    25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
}  # fmt: skip
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_LENGTH = struct.Struct("<Q")
_PIECE_BYTES = 1 << 18
_TEXT_VALUE = 8
_ARRAY = 9
_SMALL_ARRAY = 1024  # more than a model has layers
_MAX_TEXT_BYTES = 64 << 20  # kept from one header, all texts together
_MAX_STEPS = 1 << 22
_AGAIN = "delete it and pull it again"
_OTHER = "name a .gguf file"

_LOOKS = (
    (b"<", "it is a web page: that is what a download was answered with", _AGAIN),
    (
        b"version https://git-lfs",
        "it is a git-lfs pointer, not the file it points to",
        "run `git lfs pull`",
    ),
    (b"\0" * 64, "it starts with zeros: a download reserved it and did not fill it", _AGAIN),
)
_HINT = "take a GGUF file of a language model that llama.cpp has converted"
_MAX_WIDTH = 1 << 20
_BLOCK = re.compile(r"blk\.(\d{1,6})\.(.+)")
MAGIC = b"GGUF"
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 16  # the largest published models have some thousand
_MAX_DIMENSIONS = 8
_MAX_FILE_BYTES = 1 << 50
_DEFAULT_ALIGNMENT = 32
_VERSIONS = (2, 3)


class DamagedFile(Exception):
    """What is wrong with the file, as the end of a sentence about it."""

    def __init__(self, message: str, *, hint: str = "delete it and pull it again") -> None:
        super().__init__(message)
        self.hint = hint


class SkippedArray(msgspec.Struct, frozen=True):
    """An array that was passed over; read the header with `keep_arrays=True` to have it."""

    count: int


class GgufReader:
    """Reads forward only.

    Each key, text and array element is a step; steps are limited for the whole header.
    """

    def __init__(self, file: BinaryIO, size: int, *, keep_arrays: bool) -> None:
        self._file = file
        self._size = size
        self._keep_arrays = keep_arrays
        self._steps_left = _MAX_STEPS
        self._text_bytes_left = _MAX_TEXT_BYTES

    @property
    def position(self) -> int:
        return self._file.tell()

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self._take(width), "little")

    def count(self, noun: str, limit: int, *, bytes_each: int) -> int:
        """Return how many of `noun` follow; raise where the rest of the file cannot hold them."""
        count = self.unsigned(8)
        if count > limit:
            raise DamagedFile(f"its header is damaged: it claims {count} {noun}")
        self._need(count * bytes_each)
        return count

    def text(self) -> str:
        self._spend(1)
        length = self.unsigned(8)
        self._need(length)
        self._text_bytes_left -= length
        if self._text_bytes_left < 0:
            raise DamagedFile(f"its header is damaged: it claims a text of {length} bytes")
        return self._take(length).decode("utf-8", errors="replace")

    def value(self) -> Any:
        self._spend(1)
        type_id = self.unsigned(4)
        if type_id == _TEXT_VALUE:
            return self.text()
        if type_id == _ARRAY:
            return self._array()
        layout = _layout(type_id)
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _array(self) -> tuple[Any, ...] | SkippedArray:
        type_id = self.unsigned(4)
        count = self.unsigned(8)
        is_kept = self._keep_arrays or count <= _SMALL_ARRAY
        if type_id == _TEXT_VALUE:
            self._spend(count)
            self._need(count * 8)
            if is_kept:
                return tuple(self.text() for _ in range(count))
            return self._skip_texts(count)
        layout = _layout(type_id)
        self._need(count * struct.calcsize(layout))
        if not is_kept:
            self._file.seek(count * struct.calcsize(layout), 1)
            return SkippedArray(count)
        self._spend(count)
        return struct.unpack(f"<{count}{layout[1]}", self._take(count * struct.calcsize(layout)))

    def _skip_texts(self, count: int) -> SkippedArray:
        """Pass over texts in large pieces: a vocabulary of 262,144 is the slow part."""
        start = self.position
        at = 0
        piece = b""
        for _ in range(count):
            if at + 8 > len(piece):
                start = start + at
                at = 0
                if start + 8 > self._size:
                    raise self._cut()
                self._file.seek(start)
                piece = self._file.read(_PIECE_BYTES)
                if len(piece) < 8:  # the file shrank while it was read
                    raise self._cut()
            at += 8 + _LENGTH.unpack_from(piece, at)[0]
        if start + at > self._size:
            raise self._cut()
        self._file.seek(start + at)
        return SkippedArray(count)

    def _take(self, length: int) -> bytes:
        self._need(length)
        taken = self._file.read(length)
        if len(taken) < length:  # the file shrank while it was read
            raise self._cut()
        return taken

    def _need(self, length: int) -> None:
        if length > self._size - self.position:
            raise self._cut()

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise DamagedFile("its header is damaged: it holds more values than any model needs")

    def _cut(self) -> DamagedFile:
        return DamagedFile(
            f"it has {self._size} bytes and ends inside its own header, so it is truncated "
            "or damaged"
        )


def _layout(type_id: int) -> str:
    try:
        return _SCALARS[type_id]
    except KeyError:
        raise DamagedFile(f"its header is damaged: value type {type_id} is not known") from None


def looks_like(start: bytes) -> tuple[str, str]:
    """Return the end of a sentence about the file, and a hint.

    `start`: its first bytes, up to a few hundred.
    """
    if not start:
        return "it is empty", _AGAIN
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:
        return "it is a safetensors file", _OTHER
    looks = (
        (message, hint)
        for opening, message, hint in _LOOKS
        if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(opening)
    )
    return next(looks, (f"it starts with {start[:8]!r}, not with `GGUF`", _OTHER))


class TensorInfo(msgspec.Struct, frozen=True):
    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int  # from the start of the tensor data

    @property
    def type_name(self) -> str | None:
        if self.type_id in _TYPES:
            return _TYPES[self.type_id][0]
        return None

    @property
    def size_bytes(self) -> int | None:
        """Return its size; None: its type is not known, or a row is no whole number of blocks."""
        _, block_values, block_bytes = _TYPES.get(self.type_id, ("", 0, 0))
        if not block_values or (self.shape[0] if self.shape else 1) % block_values:
            return None
        return prod(self.shape) // block_values * block_bytes


class GgufHeader(msgspec.Struct, frozen=True):
    """What a header says. `expected_file_bytes` None: a tensor has a type that is not known."""

    architecture: str | None
    name: str | None
    context_length: int | None
    data_offset: int
    file_bytes: int
    expected_file_bytes: int | None
    metadata: Mapping[str, Any]  # arrays as tuples, large ones as SkippedArray
    tensors: tuple[TensorInfo, ...]


def read_header(path: Path, *, keep_arrays: bool = False) -> GgufHeader:
    """Return a file's header. `keep_arrays`: with arrays of over 1024 values (the vocabulary)."""
    try:
        with _open_regular(path) as file:
            return _parse(file, keep_arrays=keep_arrays)
    except DamagedFile as error:
        raise WeightsError(f"`{path}` is not a usable GGUF: {error}", hint=error.hint) from None
    except OSError as error:
        raise WeightsError(f"cannot read `{path}`: {error.strerror or error}") from error


def check_file(path: Path) -> GgufHeader:
    """Return the header of a file that holds all bytes its tensors need."""
    header = read_header(path)
    needed = header.expected_file_bytes
    if needed is not None and header.file_bytes < needed:
        message = (
            f"`{path}` is truncated: it has {header.file_bytes} bytes, its tensors need {needed}"
        )
        raise WeightsError(message, hint="delete it and pull it again")
    return header


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file: opening a named pipe would wait for a writer."""
    if path.is_dir():
        raise WeightsError(
            f"`{path}` is a folder, not a GGUF file", hint="name the .gguf file inside it"
        )
    if not path.is_file():
        raise WeightsError(
            f"there is no file `{path}`", hint="check the path, or `skep pull smollm2-135m`"
        )
    return path.open("rb", buffering=1 << 18)


def _parse(file: BinaryIO, *, keep_arrays: bool) -> GgufHeader:
    size = os.fstat(file.fileno()).st_size
    start = file.read(512)
    if not start.startswith(MAGIC):
        message, hint = looks_like(start)
        raise DamagedFile(message, hint=hint)
    file.seek(len(MAGIC))
    reader = GgufReader(file, size, keep_arrays=keep_arrays)
    if (version := reader.unsigned(4)) not in _VERSIONS:
        raise DamagedFile(
            f"it is a GGUF of version {version}, known are 2 and 3",
            hint="pull a file of GGUF version 3",
        )
    tensor_count = reader.count("tensors", _MAX_TENSORS, bytes_each=24)
    metadata = _metadata(reader, reader.count("metadata keys", _MAX_KEYS, bytes_each=13))
    tensors = _tensors(reader, tensor_count)
    header_end = reader.position
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise DamagedFile(
            f"its header is damaged: the alignment is {repr(alignment)[:20]}, not a power of two"
        )
    data_offset = -(-header_end // alignment) * alignment

    def stated(key: str, kind: type[Any]) -> Any:
        if type(metadata.get(key)) is kind:
            return metadata[key]
        return None

    architecture = stated("general.architecture", str)
    return GgufHeader(
        architecture=architecture,
        name=stated("general.name", str),
        context_length=stated(f"{architecture}.context_length", int),
        data_offset=data_offset,
        file_bytes=size,
        expected_file_bytes=_expected_bytes(tensors, header_end, data_offset),
        metadata=MappingProxyType(metadata),
        tensors=tensors,
    )


def _metadata(reader: GgufReader, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = reader.text()
        if key in metadata:
            raise DamagedFile(f"its header is damaged: the key {key[:64]!r} stands in it twice")
        metadata[key] = reader.value()
    return metadata


def _tensors(reader: GgufReader, count: int) -> tuple[TensorInfo, ...]:
    tensors: dict[str, TensorInfo] = {}
    for _ in range(count):
        tensor = _tensor(reader)
        if tensor.name in tensors:
            raise DamagedFile(
                f"its header is damaged: the tensor {tensor.name[:64]!r} stands in it twice"
            )
        tensors[tensor.name] = tensor
    return tuple(tensors.values())


def _tensor(reader: GgufReader) -> TensorInfo:
    name = reader.text()
    dimensions = reader.unsigned(4)
    if dimensions > _MAX_DIMENSIONS:
        raise DamagedFile(
            f"its header is damaged: tensor {name[:64]!r} has {dimensions} dimensions"
        )
    shape = tuple(reader.unsigned(8) for _ in range(dimensions))
    return TensorInfo(name, shape, type_id=reader.unsigned(4), offset=reader.unsigned(8))


def _expected_bytes(
    tensors: tuple[TensorInfo, ...], header_end: int, data_offset: int
) -> int | None:
    end = header_end
    for tensor in tensors:
        size = tensor.size_bytes
        if size is None:
            return None
        end = max(end, data_offset + tensor.offset + size)
    if end > _MAX_FILE_BYTES:
        raise DamagedFile("its header is damaged: its tensors claim more than 1024 TiB")
    return end


def geometry_of(header: GgufHeader) -> Geometry:
    if not header.architecture:
        raise UserError("the GGUF has no `general.architecture`", hint=_HINT)
    keys = _settings(header)
    blocks = keys.whole("block_count", high=1000)
    hidden = keys.whole("embedding_length")
    heads = keys.whole("attention.head_count")
    # Blocks that only draft.
    draft = min(keys.whole("nextn_predict_layers", low=0, high=64, default=0), blocks - 1)
    file = _layers(header, keys, blocks - draft)
    layers = layers_of_file(file)
    tied = not any(tensor.name == "output.weight" for tensor in header.tensors)
    title = header.name or header.architecture
    drawn = Geometry(
        id="-".join(title.casefold().split()),
        title=title,
        hidden=hidden,
        layers=blocks - draft,
        heads=heads,
        vocab=_vocab(header, keys),
        params_total=0.0,
        params_active=0.0,
        **{**_attention(keys, hidden, heads, file), **layers},
        **_mlp(header, file),
        mtp_layers=draft,
        tied_embeddings=tied,
        max_context=keys.whole("context_length", high=1 << 40, default=0) or None,
        native_bits=average_bits(header),
    )
    origins = {
        "geometry": ValueOrigin("keys of the GGUF file", "A"),
        "params_total": ValueOrigin("its tensors", "A"),
    }
    return replace(counted(drawn, _tensors_total(header, drawn)), origins=origins)


def average_bits(header: GgufHeader) -> float | None:
    """Return the mean bits of a parameter; None where a tensor's type is not known."""
    sizes = [tensor.size_bytes for tensor in header.tensors]
    values = sum(prod(tensor.shape) for tensor in header.tensors)
    known_sizes = [size for size in sizes if size is not None]
    if values and len(known_sizes) == len(sizes):
        return 8 * sum(known_sizes) / values
    return None


def _settings(header: GgufHeader) -> ModelConfig:
    """Return the keys of the file's architecture.

    A list has one value a layer: the largest counts.
    """
    prefix = f"{header.architecture}."
    values = {
        key.removeprefix(prefix): value
        for key, value in header.metadata.items()
        if key.startswith(prefix)
    }
    for key, value in values.items():
        if isinstance(value, SkippedArray):
            values[key] = None
        elif isinstance(value, tuple) and value and all(type(entry) is int for entry in value):
            values[key] = max(value)
    return ModelConfig("the GGUF", values, values, prefix, _HINT)


def _layers(header: GgufHeader, keys: ModelConfig, blocks: int) -> FileLayers:
    """Return what the file says of each block; without tensors where it is one part of several."""
    parts: dict[int, set[str]] = {}
    for tensor in header.tensors:
        if (match := _BLOCK.fullmatch(tensor.name)) is not None:
            parts.setdefault(int(match.group(1)), set()).add(match.group(2))
    whole = len(parts) >= blocks and not _is_split(header)
    prefix = f"{header.architecture}."
    lists = {
        key.removeprefix(prefix): value
        for key, value in header.metadata.items()
        if key.startswith(prefix) and isinstance(value, tuple)
    }
    tensors = {}
    if whole:
        tensors = {block: frozenset(names) for block, names in parts.items()}
    return FileLayers(header.architecture or "", keys, lists, tensors, blocks)


def _attention(keys: ModelConfig, hidden: int, heads: int, file: FileLayers) -> dict[str, Any]:
    rank = keys.whole("attention.kv_lora_rank", low=0, default=0)
    if rank:
        width = keys.whole("attention.value_length_mla", default=0)
        width = width or keys.whole("attention.value_length")
        rope = keys.whole("rope.dimension_count", low=0, default=64)
        return {"kv_heads": heads, "head_dim": width, "mla_rank": rank, "mla_rope_dim": rope}
    kv_heads = keys.whole("attention.head_count_kv", default=heads)
    width = _mean_width(keys, "", max(1, hidden // heads))
    sliding_width = _mean_width(keys, "_swa", width)
    full_heads, sliding_heads = kv_heads_of(file, kv_heads)
    widths: dict[str, Any] = {"kv_heads": kv_heads, "head_dim": sliding_width}
    if sliding_width != width or full_heads != sliding_heads:
        widths |= {"kv_heads": sliding_heads, "full_kv_heads": full_heads, "full_head_dim": width}
    return widths


def _mean_width(keys: ModelConfig, kind: str, default: int) -> int:
    """Return the mean width of keys and values: keys may be wider (MiMo)."""
    key_width = keys.whole(f"attention.key_length{kind}", default=default)
    value_width = keys.whole(f"attention.value_length{kind}", default=key_width)
    return max(1, (key_width + value_width) // 2)


def _mlp(header: GgufHeader, file: FileLayers) -> dict[str, Any]:
    keys = file.keys
    layers = file.blocks
    dense = keys.whole("feed_forward_length", low=0, default=0)
    listed = file.lists.get("feed_forward_length", ())
    widths = [width for width in listed if type(width) is int and width >= 0]
    if widths:
        dense = round(sum(widths) / len(widths))
    experts = keys.whole("expert_count", low=0, default=0)
    leading = keys.whole("leading_dense_block_count", low=0, high=layers, default=0)
    with_experts = sum(
        any("_exps" in name for name in file.tensors.get(block, ())) for block in range(layers)
    )
    if not with_experts:
        step = keys.whole("interleave_moe_layer_step", high=layers, default=1)
        with_experts = (layers - leading) // step
    if experts < 2 or not with_experts:
        return {"intermediate": dense}
    width = keys.whole("expert_feed_forward_length", default=dense or None)
    shared = keys.whole("expert_shared_feed_forward_length", low=0, default=0)
    shared = shared or width * keys.whole("expert_shared_count", low=0, high=1024, default=0)
    shared_widths = (
        tensor.shape[-1]
        for tensor in header.tensors
        if tensor.name.endswith(".ffn_up_shexp.weight") and tensor.shape
    )
    return {
        "intermediate": dense if with_experts < layers else 0,
        "experts": experts,
        "experts_per_token": keys.whole("expert_used_count", high=experts),
        "expert_intermediate": width,
        "expert_layers": with_experts,
        "shared_intermediate": shared or min(next(shared_widths, 0), _MAX_WIDTH),
    }


def _vocab(header: GgufHeader, keys: ModelConfig) -> int:
    stated = keys.whole("vocab_size", high=1 << 24, default=0)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    count = 0
    if isinstance(tokens, SkippedArray):
        count = tokens.count
    elif isinstance(tokens, tuple):
        count = len(tokens)
    embedding = next(
        (t.shape[-1] for t in header.tensors if t.name == "token_embd.weight" and t.shape), 0
    )
    vocab = stated or count or embedding
    if not vocab:
        raise UserError("the GGUF has no `tokenizer.ggml.tokens`", hint=_HINT)
    return int(vocab)


def _is_split(header: GgufHeader) -> bool:
    parts = header.metadata.get("split.count")
    return type(parts) is int and parts > 1


def _tensors_total(header: GgufHeader, drawn: Geometry) -> float | None:
    """Return the parameters of all tensors; None where the file is a part, or holds too little."""
    values = 0
    for tensor in header.tensors:
        block = _BLOCK.fullmatch(tensor.name)
        if block is None or int(block[1]) < drawn.layers:  # the others only draft
            values += prod(tensor.shape)
    if _is_split(header) or values <= drawn.vocab * drawn.hidden:
        return None
    return float(values)
