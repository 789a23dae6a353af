"""What each layer of a model keeps, by the keys of config.json that `layer_keys.toml` lists."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
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


# A number, a key, a product of keys such as `a * b`, or several of these.
_Width = int | str | list[str | int]


class LinearKeys(msgspec.Struct, frozen=True):
    """One table of `[[linear]]`: widths by the names of `Geometry`."""

    linear_k_heads: _Width
    linear_v_heads: _Width
    linear_k_dim: _Width
    linear_v_dim: _Width
    conv_kernel: _Width
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
        if not model.startswith(layer.model):
            continue
        is_set = settings.get(layer.key) not in (None, [], "")
        if is_set or layer.default is not None:
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
    widths = {}
    for name in table.__struct_fields__:
        if name != "when":
            entry = getattr(table, name)
            widths[name] = _width(settings, name, entry)
    return widths


def _width(settings: ModelConfig, name: str, entry: _Width) -> int:
    """Return a width that a table states as a number, a key, a product of keys or several of
    these.
    """
    if isinstance(entry, int):
        return entry
    if isinstance(entry, str) and "*" in entry:
        factors = entry.split("*")
        return prod(settings.whole(key.strip()) for key in factors)
    choices = [entry] if isinstance(entry, str) else entry
    keys = [choice for choice in choices if isinstance(choice, str)]
    default = next((choice for choice in choices if isinstance(choice, int)), None)
    low = 1
    high = MAX_WIDTH
    if name == "conv_kernel":
        low = 0
        high = 1024
    return settings.whole(*keys, low=low, high=high, default=default)


# One reader for each form


def _letters(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    pattern = settings.text(layer.key)
    is_known = all(letter in layer.kinds for letter in pattern)
    if len(pattern) != layers or not is_known:
        letters = " ".join(layer.kinds)
        expected = f"{layers} letters of {letters}"
        raise settings.wrong(layer.key, pattern, expected)
    kinds = [layer.kinds[letter] for letter in pattern]
    return KindsOfLayers(tuple(kinds))


def _words(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    names = settings.list_of(layer.key, layers) or ()
    for name in names:
        if "compress" in str(name):  # how many tokens share an entry is not told here
            expected = "a name that tells what a token keeps; `compress_ratios` does"
            raise settings.wrong(layer.key, name, expected)
    kinds = [_kind_of_name(str(name)) for name in names]
    if not window_of(settings) and not settings.flag("use_sliding_window", default=True):
        kinds = ["full" if kind == "sliding" else kind for kind in kinds]
    return KindsOfLayers(tuple(kinds))


def _kind_of_name(name: str) -> str:
    for kind, words in _WORDS.items():
        if any(word in name for word in words):
            return kind
    if name in _NOTHING:
        return "none"
    return "full"


def _numbers(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    listed = settings.list_of(layer.key, layers) or ()
    kinds = []
    for number in listed:
        written = str(number)
        if isinstance(number, bool):
            # JSON's `true` stands for 1.
            written = str(int(number))
        kind = layer.kinds.get(written)
        if kind is None:
            numbers = " and ".join(layer.kinds)
            raise settings.wrong(layer.key, list(listed), f"a list of {numbers}")
        kinds.append(kind)
    return KindsOfLayers(tuple(kinds))


def _numbered(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    listed = settings.list_of(layer.key) or ()
    first = layer.first
    last = first + layers - 1
    for number in listed:
        if type(number) is not int or not first <= number <= last:
            expected = f"a list of layers from {first} to {last}"
            raise settings.wrong(layer.key, list(listed), expected)
    places = [number - first for number in listed]
    return _with_named(layer, layers, places)


def _with_named(layer: LayerKey, layers: int, places: Iterable[int]) -> KindsOfLayers:
    """Return the kinds of so many layers, of which those at these places are the named ones."""
    kinds = [layer.others] * layers
    for place in places:
        kinds[place] = layer.named
    return KindsOfLayers(tuple(kinds))


def _every(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    step = settings.whole(layer.key, high=layers, default=layer.default)
    last_of_step = step - 1
    offset = last_of_step
    if layer.offset is not None:
        offset = settings.whole(layer.offset, low=0, high=last_of_step, default=last_of_step)
    places = range(offset, layers, step)
    return _with_named(layer, layers, places)


def _alike(_settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    kinds = (layer.named,) * layers
    return KindsOfLayers(kinds)


def _blocks(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    """Return what the blocks keep: those without attention nothing, the others by their KV heads,
    in which they may differ.
    """
    heads = [block.kv_heads for block in blocks_of(settings, layers)]
    counts = [count for count in heads if count]
    if not counts:
        blocks = settings.get(layer.key)
        expected = "a list with `n_heads_in_group` in its blocks"
        raise settings.wrong(layer.key, blocks, expected)
    kinds = ["full" if count else "none" for count in heads]
    entries: float | None = sum(counts) / max(counts)
    if entries == len(counts):
        entries = None
    return KindsOfLayers(tuple(kinds), entries)


def _ratios(settings: ModelConfig, layer: LayerKey, layers: int) -> KindsOfLayers:
    """Return what layers keep that share an entry among several tokens.

    They also keep the window whole, which the caller adds. Draft layers stand at the end.
    """
    listed: Sequence[Any] = settings.list_of(layer.key) or ()
    ratios = listed[:layers]
    are_ratios = all(map(_is_ratio, ratios))
    if len(ratios) < layers or not are_ratios:
        expected = f"a list of {layers} numbers of tokens"
        raise settings.wrong(layer.key, list(ratios), expected)
    width = settings.whole("head_dim")
    index = settings.whole("index_head_dim", default=_INDEX_WIDTH)
    index_share = index / width
    kinds = ["full" if ratio else "sliding" for ratio in ratios]
    entries = entries_of(ratios, index_share) or None
    return KindsOfLayers(tuple(kinds), entries)


def _is_ratio(ratio: Any) -> bool:
    return type(ratio) is int and 0 <= ratio <= _MAX_RATIO


def entries_of(ratios: Sequence[int], index_share: float) -> float:
    """Return how many whole layers keep as much of a token as layers with these ratios.

    `index_share`: what an entry of the index is of one that is kept whole.
    """
    entries: list[float] = []
    for ratio in ratios:
        if ratio == INDEXED_RATIO:
            entries.append((1 + index_share) / ratio)
        elif ratio:
            entries.append(1 / ratio)
    return sum(entries)


_READERS: Mapping[str, Callable[[ModelConfig, LayerKey, int], KindsOfLayers]] = {
    "letters": _letters,
    "words": _words,
    "numbers": _numbers,
    "numbered": _numbered,
    "every": _every,
    "alike": _alike,
    "blocks": _blocks,
    "ratios": _ratios,
}


def _by_window(settings: ModelConfig, layers: int) -> tuple[str, ...]:
    """Return the kinds of a model that states a window and perhaps a pattern."""
    window = window_of(settings)
    context = settings.whole("max_position_embeddings", high=_MAX_WINDOW, default=_MAX_WINDOW)
    if not window or window >= context or not settings.flag("use_sliding_window", default=True):
        return ("full",) * layers
    model = settings.text("model_type").casefold()
    pattern = settings.whole(
        "sliding_window_pattern",
        "_sliding_window_pattern",
        low=0,
        high=layers,
        default=_DEFAULT_PATTERN.get(model, 0),
    )
    # Qwen 2: layers from here on slide.
    above = settings.whole("max_window_layers", low=0, default=0)
    if pattern:
        full = layers // pattern
    else:
        full = min(above, layers)
    sliding = layers - full
    return ("full",) * full + ("sliding",) * sliding


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
    layer_blocks = []
    for place, block in enumerate(blocks):
        layer_block = _block(settings, place, block, heads, hidden)
        layer_blocks.append(layer_block)
    return tuple(layer_blocks)


def _block(settings: ModelConfig, place: int, block: Any, heads: int, hidden: int) -> LayerBlock:
    name = f"block_configs.{place}"
    entries = []
    if isinstance(block, Mapping):
        entries = [block.get("attention"), block.get("ffn")]
    halves = [_half(settings, f"{name}.", half) for half in entries if isinstance(half, Mapping)]
    if len(halves) != 2:
        raise settings.wrong(name, block, "a table with `attention` and `ffn`")
    attention, mlp = halves
    kv_heads = _kv_heads(attention, heads)
    width = 0
    if not _is_left_out(mlp):
        width = mlp.whole("intermediate_size", default=0)
        if not width:
            width = _multiplied(mlp, hidden)
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
    two_thirds = int(2 * multiple * hidden / 3)
    rest = -two_thirds % 256
    return two_thirds + rest
