"""What each layer of a model keeps, by the keys of config.json that `layer_keys.toml` lists."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any, Literal

import msgspec

from skep.weights.model_config import MAX_WIDTH, ModelConfig

_MAX_WINDOW = 1 << 40
_MAX_RATIO = 1 << 20
# How a list of names is read: the first kind with a word that is part of the name. Other names are
# full attention.
_WORDS: Mapping[str, tuple[str, ...]] = {
    "linear": ("linear", "mamba", "recurrent", "kda", "gdn", "lightning"),
    "sliding": ("sliding", "chunked", "local"),
}
_NOTHING = ("conv", "none", "mlp", "moe", "no_op", "noop")
_DEFAULT_PATTERN = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}
# DeepSeek V4: layers with this ratio choose what they read by an index, which they keep beside
# their entries.
INDEXED_RATIO = 4
_INDEX_WIDTH = 128


class LayerKey(msgspec.Struct, frozen=True):
    """One table of `[[layers]]`."""

    key: str
    form: Literal["letters", "words", "numbers", "numbered", "every", "alike", "blocks", "ratios"]
    kinds: Mapping[str, str] = {}
    model: str = ""
    named: str = "full"
    others: str = "full"
    first: int = 0
    offset: str | None = None
    default: int | None = None


class LinearKeys(msgspec.Struct, frozen=True):
    """One table of `[[linear]]`: widths by the names of `Geometry`."""

    linear_k_heads: int | str | list[str | int]
    linear_v_heads: int | str | list[str | int]
    linear_k_dim: int | str | list[str | int]
    linear_v_dim: int | str | list[str | int]
    conv_kernel: int | str | list[str | int]
    when: str = ""  # empty: where no other table counts


class _LayerKeys(msgspec.Struct, frozen=True):
    layers: tuple[LayerKey, ...]
    linear: tuple[LinearKeys, ...]


class KindsOfLayers(msgspec.Struct, frozen=True):
    """What the layers keep.

    `kinds`: full, sliding, linear, both (full and linear) or none for each layer. `entries`: how
    many layers that keep a token whole would keep as much as all full ones; None: just as many."""

    kinds: tuple[str, ...]
    entries: float | None = None

    def count(self, kind: str) -> int:
        count = self.kinds.count(kind)
        if kind in ("full", "linear"):
            count += self.kinds.count("both")
        return count


@cache
def _layer_keys() -> _LayerKeys:
    text = files("skep.catalog").joinpath("layer_keys.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _LayerKeys)


def layer_key(settings: ModelConfig) -> LayerKey | None:
    """Return the first table of the list that speaks of this model."""
    model = settings.text("model_type").casefold()
    for layer in _layer_keys().layers:
        is_set = settings.get(layer.key) not in (None, [], "")
        if model.startswith(layer.model) and (is_set or layer.default is not None):
            return layer
    return None


def window_of(settings: ModelConfig) -> int:
    keys = ("sliding_window", "attention_chunk_size", "sliding_window_size")
    return settings.whole(*keys, low=0, high=_MAX_WINDOW, default=0)


def kinds_of(settings: ModelConfig, layers: int) -> KindsOfLayers:
    """Return what each of so many layers keeps."""
    layer = layer_key(settings)
    if layer is None:
        return KindsOfLayers(_by_window(settings, layers))
    return _READERS[layer.form](settings, layer, layers)


def linear_widths(settings: ModelConfig) -> dict[str, int]:
    """Return the widths of a linear layer by the names of `Geometry`."""
    table = next(
        table
        for table in _layer_keys().linear
        if not table.when or settings.get(table.when) is not None
    )
    names = [field for field in table.__struct_fields__ if field != "when"]
    return {name: _width(settings, name, getattr(table, name)) for name in names}


def _width(settings: ModelConfig, name: str, entry: int | str | list[str | int]) -> int:
    """Return a width that a table states as a number, a key, a product of keys or several of
    these.
    """
    if isinstance(entry, int):
        return entry
    if isinstance(entry, str) and "*" in entry:
        return prod(settings.whole(key.strip()) for key in entry.split("*"))
    choices = [entry] if isinstance(entry, str) else entry
    keys = [choice for choice in choices if isinstance(choice, str)]
    default = next((choice for choice in choices if isinstance(choice, int)), None)
    is_convolution = name == "conv_kernel"
    return settings.whole(
        *keys,
        low=0 if is_convolution else 1,
        high=1024 if is_convolution else MAX_WIDTH,
        default=default,
    )


# One reader for each form


def _letters(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    pattern = settings.text(layer.key)
    unknown = set(pattern) - set(layer.kinds)
    if len(pattern) != layers or unknown:
        letters = " ".join(layer.kinds)
        raise settings.wrong(layer.key, pattern, f"{layers} letters of {letters}")
    kinds = tuple(layer.kinds[letter] for letter in pattern)
    return KindsOfLayers(kinds)


def _words(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    names = settings.list_of(layer.key, layers) or ()
    compressed = next((name for name in names if "compress" in str(name)), None)
    if compressed is not None:  # how many tokens share an entry is not told here
        raise settings.wrong(
            layer.key, compressed, "a name that tells what a token keeps; `compress_ratios` does"
        )
    kinds = [_kind_of_name(str(name)) for name in names]
    if not window_of(settings) and not settings.flag("use_sliding_window", default=True):
        kinds = ["full" if kind == "sliding" else kind for kind in kinds]
    return KindsOfLayers(tuple(kinds))


def _kind_of_name(name: str) -> str:
    for kind, words in _WORDS.items():
        if any(word in name for word in words):
            return kind
    return "none" if name in _NOTHING else "full"


def _numbers(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    listed = settings.list_of(layer.key, layers) or ()
    kinds = []
    for number in listed:
        # JSON's `true` stands for 1.
        written = str(int(number)) if isinstance(number, bool) else str(number)
        kind = layer.kinds.get(written)
        if kind is None:
            numbers = " and ".join(layer.kinds)
            raise settings.wrong(layer.key, list(listed), f"a list of {numbers}")
        kinds.append(kind)
    return KindsOfLayers(tuple(kinds))


def _numbered(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    listed = settings.list_of(layer.key) or ()
    last = layer.first + layers - 1
    if any(type(number) is not int or not layer.first <= number <= last for number in listed):
        raise settings.wrong(
            layer.key, list(listed), f"a list of layers from {layer.first} to {last}"
        )
    places = set(listed)
    kinds = [layer.others] * layers
    for number in places:
        kinds[number - layer.first] = layer.named
    return KindsOfLayers(tuple(kinds))


def _every(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    step = settings.whole(layer.key, high=layers, default=layer.default)
    offset = step - 1
    if layer.offset is not None:
        offset = settings.whole(layer.offset, low=0, high=step - 1, default=offset)
    kinds = [layer.others] * layers
    for place in range(offset, layers, step):
        kinds[place] = layer.named
    return KindsOfLayers(tuple(kinds))


def _alike(_settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    return KindsOfLayers((layer.named,) * layers)


def _blocks(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    """Layers without attention keep nothing; the others may differ in their KV heads."""
    heads = [block.kv_heads for block in blocks_of(settings, layers)]
    counts = [count for count in heads if count]
    if not counts:
        raise settings.wrong(
            layer.key, settings.get(layer.key), "a list with `n_heads_in_group` in its blocks"
        )
    entries = sum(counts) / max(counts)
    kinds = tuple("full" if count else "none" for count in heads)
    return KindsOfLayers(kinds, None if entries == len(counts) else entries)


def _ratios(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    """Return what layers keep that share an entry among several tokens.

    They also keep the window whole, which the caller adds. Draft layers stand at the end.
    """
    listed: Sequence[Any] = settings.list_of(layer.key) or ()
    ratios = listed[:layers]
    if len(ratios) < layers or not all(map(_is_ratio, ratios)):
        raise settings.wrong(layer.key, list(ratios), f"a list of {layers} numbers of tokens")
    width = settings.whole("head_dim")
    index = settings.whole("index_head_dim", default=_INDEX_WIDTH)
    kinds = tuple("full" if ratio else "sliding" for ratio in ratios)
    entries = entries_of(ratios, index / width)
    return KindsOfLayers(kinds, entries or None)


def _is_ratio(ratio: Any) -> bool:
    return type(ratio) is int and 0 <= ratio <= _MAX_RATIO


def entries_of(ratios: Sequence[int], index_share: float) -> float:
    """Return how many whole layers keep as much of a token as layers with these ratios.

    `index_share`: what an entry of the index is of one that is kept whole.
    """
    return sum(
        (1 + index_share if ratio == INDEXED_RATIO else 1) / ratio for ratio in ratios if ratio
    )


_READERS: Mapping[str, Callable[[ModelConfig, LayerKey, int], KindsOfLayers]] = {
    "letters": _letters, "words": _words, "numbers": _numbers, "numbered": _numbered,
    "every": _every, "alike": _alike, "blocks": _blocks, "ratios": _ratios,
}  # fmt: skip


def _by_window(settings: ModelConfig, layers: int) -> tuple[str, ...]:
    """Return the kinds of a model that states a window and perhaps a pattern."""
    window = window_of(settings)
    context = settings.whole("max_position_embeddings", high=_MAX_WINDOW, default=_MAX_WINDOW)
    if not window or window >= context or not settings.flag("use_sliding_window", default=True):
        return ("full",) * layers
    default = _DEFAULT_PATTERN.get(settings.text("model_type").casefold(), 0)
    pattern = settings.whole(
        "sliding_window_pattern", "_sliding_window_pattern", low=0, high=layers, default=default
    )
    # Qwen 2: layers from here on slide.
    above = settings.whole("max_window_layers", low=0, default=0)
    full = layers // pattern if pattern else min(above, layers)
    return ("full",) * full + ("sliding",) * (layers - full)


# Blocks of a model that a search has shortened


class LayerBlock(msgspec.Struct, frozen=True):
    """One layer. `kv_heads` 0: it has no attention; `width` 0: no MLP.

    `linear_attention`, `linear_mlp`: a plain matrix stands in their place.
    """

    kv_heads: int
    width: int
    linear_attention: bool = False
    linear_mlp: bool = False


def blocks_of(settings: ModelConfig, layers: int) -> tuple[LayerBlock, ...]:
    blocks: Sequence[Any] = settings.list_of("block_configs", layers) or ()
    heads = settings.whole("num_attention_heads")
    hidden = settings.whole("hidden_size")
    return tuple(
        _block(settings, place, block, heads, hidden) for place, block in enumerate(blocks)
    )


def _block(settings: ModelConfig, place: int, block: Any, heads: int, hidden: int) -> LayerBlock:
    entries = []
    if isinstance(block, Mapping):
        entries = [block.get(name) for name in ("attention", "ffn")]
    halves = [
        _half(settings, f"block_configs.{place}.", half)
        for half in entries
        if isinstance(half, Mapping)
    ]
    if len(halves) != 2:
        raise settings.wrong(f"block_configs.{place}", block, "a table with `attention` and `ffn`")
    attention, mlp = halves
    kv_heads = _kv_heads(attention, heads)
    width = 0
    if not _is_left_out(mlp):
        width = mlp.whole("intermediate_size", default=0) or _multiplied(mlp, hidden)
    return LayerBlock(
        kv_heads=kv_heads,
        width=width,
        linear_attention=attention.flag("replace_with_linear", default=False),
        linear_mlp=mlp.flag("replace_with_linear", default=False),
    )


def _kv_heads(attention: ModelConfig, heads: int) -> int:
    if _is_left_out(attention):
        return 0
    group = attention.whole("n_heads_in_group", high=heads, default=0)
    if group:
        return heads // group
    return attention.whole("num_key_value_heads", high=heads)


def _half(settings: ModelConfig, place: str, half: Mapping[str, Any]) -> ModelConfig:
    kind = next((name for name in ("moe", "mamba") if half.get(name) is not None), None)
    if kind is not None:
        raise settings.wrong(
            f"{place}{kind}",
            half[kind],
            "attention or an MLP, which are what skep reads of blocks",
        )
    return ModelConfig(settings.name, half, half, place, settings.hint)


def _is_left_out(half: ModelConfig) -> bool:
    return half.flag("no_op", default=False) or half.flag("replace_with_linear", default=False)


def _multiplied(mlp: ModelConfig, hidden: int) -> int:
    """Return the width of an MLP that is stated as a multiple of the hidden size: two thirds,
    rounded up to 256.
    """
    multiple = mlp.get("ffn_mult")
    is_number = isinstance(multiple, int | float) and not isinstance(multiple, bool)
    if not is_number or not 0 < multiple < 64:
        raise mlp.wrong("ffn_mult", multiple, "a number from 0 to 64")
    return -(-int(2 * multiple * hidden / 3) // 256) * 256
