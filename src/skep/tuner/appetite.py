"""Which value of a knob asks for at least as much memory as another. Pure.

Of a knob that is not named here nothing is known: only equal values ask for as much.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

from skep.tunings import Value

INDIFFERENT = frozenset({"threads", "threads_batch"})  # memory does not depend on them
_MORE_IS_MORE = frozenset({"slots", "batched_tokens", "batch", "context", "mtp", "ngram", "replicas"})
_ON_IS_MORE = frozenset({"graphs"})
_OFF_IS_MORE = frozenset({"flash_attention"})  # the whole matrix of scores is laid out
# Bits a value of the KV cache takes, its scales included, at least and at most: `auto` follows the checkpoint.
_KV_BITS = {
    "auto": (8.0, 16.0), "f32": (32.0, 32.0), "fp32": (32.0, 32.0), "float32": (32.0, 32.0),
    **dict.fromkeys(("f16", "fp16", "bf16", "float16", "bfloat16"), (16.0, 16.0)),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "int8"), (8.0, 8.0)),
    "q8_0": (8.5, 8.5), "q5_1": (6.0, 6.0), "q5_0": (5.5, 5.5), "q4_1": (5.0, 5.0),
    "q4_0": (4.5, 4.5), "iq4_nl": (4.5, 4.5), "fp4": (4.5, 4.5), "nvfp4": (4.5, 4.5), "fp4_e2m1": (4.5, 4.5),
}  # fmt: skip


def asks_as_much(knob: str, value: Value, other: Value, *, share: str | None) -> bool:
    """`share`: which way of `memory_share` asks for more, "up" or "down"; None: nobody knows."""
    if value == other or knob in INDIFFERENT:
        return True
    if knob == "kv":
        bits, others = kv_bits(value), kv_bits(other)
        return bits is not None and others is not None and bits[0] >= others[1]
    if isinstance(value, bool) and isinstance(other, bool):
        return knob in (_ON_IS_MORE if value else _OFF_IS_MORE)
    if not (is_number(value) and is_number(other)):
        return False
    if knob == "memory_share":
        return share is not None and (value > other) is (share == "up")
    return knob in _MORE_IS_MORE and value > other


def kv_bits(value: Value) -> tuple[float, float] | None:
    """None: not known. A pair of types, `q8_0/q5_1`, is not."""
    if value is None:
        return _KV_BITS["auto"]
    return _KV_BITS.get(value.lower()) if isinstance(value, str) else None


def narrower(value: Value, values: Iterable[Value]) -> Value:
    """The widest of the values that is surely narrower; None: there is none."""
    have = kv_bits(value)
    if have is None:
        return None
    known = [(bits[1], str(one)) for one in values if one is not None and (bits := kv_bits(one)) is not None]
    fitting = [(bits, one) for bits, one in known if bits < have[1] and bits <= have[0]]
    return max(fitting)[1] if fitting else None


def is_number(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
