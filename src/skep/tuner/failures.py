"""What a failed start or run teaches: its kind and remedy, what to try instead, and what need not be tried at all.

Only inferences that hold whatever the other knobs do: who asks for at least as much memory in every respect as one
that ran out of it runs out too; a value that the engine does not know is unknown in every configuration. Of crashes
and hangs nothing is inferred but that the same configuration would meet the same end; values, and pairs of values,
that the failures have and nothing that ran has are suspected, and what has them must promise more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import combinations
from typing import TypeGuard

from skep.catalog.presets import EngineOptions
from skep.engines.base import Diagnosis, Launch
from skep.planner.setup import known_kv
from skep.tuner.knobs import draft_depth, packaged_facts
from skep.tuner.records import ConfigFailure, Knob, KnobConfig, Value, value_words

INDIFFERENT = frozenset({"threads", "threads_batch"})  # memory does not depend on them


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("|".join(packaged_facts("failures.toml")["says"][name]), re.IGNORECASE)


def asks_as_much(knob: str, value: Value, other: Value, *, share: str | None) -> bool:
    """`share`: which way of `memory_share` asks for more, "up" or "down"; None: nobody knows."""
    if value == other or knob in INDIFFERENT:
        return True
    if knob == "kv":
        size, others = kv_bytes(value), kv_bytes(other)
        return size is not None and others is not None and size[0] >= others[1]
    way = share if knob == "memory_share" else packaged_facts("failures.toml")["more_memory"].get(knob)
    if way is None or not (isinstance(value, int | float) and isinstance(other, int | float)):
        return False
    return (value > other) is (way == "up")


def kv_bytes(value: Value) -> tuple[float, float] | None:
    """Of one value of the cache, at least and at most: `auto` follows the checkpoint. None: not known."""
    if value in (None, "auto"):
        return 1.0, 2.0
    known = known_kv(str(value))
    return None if known is None else (known.bytes, known.bytes)


def narrower(value: Value, values: Iterable[Value]) -> Value:
    """Return the widest of the values that is surely narrower; None: there is none."""
    least, most = kv_bytes(value) or (0.0, 0.0)
    known = [(size[1], str(one)) for one in values if one is not None and (size := kv_bytes(one)) is not None]
    return max(((size, one) for size, one in known if size < most and size <= least), default=(0.0, None))[1]


def is_number(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


_OTHERWISE = 4.0  # how much speaks for a cause that no pair explains

Suspect = tuple[tuple[str, Value], ...]  # one value, or two


class FailureSuspects:
    def __init__(self) -> None:
        self._ran: set[Suspect] = set()
        self._failed: dict[KnobConfig, None] = {}  # in order
        self._explained: Counter[Suspect] = Counter()
        self._known: dict[KnobConfig, frozenset[Suspect]] = {}

    def ran(self, config: KnobConfig) -> None:
        self._ran |= self._suspects(config)

    def failed(self, config: KnobConfig) -> None:
        if config not in self._failed:
            self._failed[config] = None
            self._explained.update(self._suspects(config))

    def trust(self, config: KnobConfig) -> float:
        """1: nothing of it is under suspicion. Small: it has all that the failures have."""
        mine = self._suspects(config)
        worst = 0.0
        for failed in self._failed:  # of what is suspected of it, how much this one has as well
            whole = shared = 0.0
            for suspect in self._suspects(failed) - self._ran:
                weight = self._explained[suspect] ** 2
                whole += weight
                shared += weight if suspect in mine else 0.0
            worst = max(worst, shared / (whole + _OTHERWISE))
        return float((1 - worst) ** 2)

    def _suspects(self, config: KnobConfig) -> frozenset[Suspect]:
        if config not in self._known:
            self._known[config] = frozenset([*((one,) for one in config.values), *combinations(config.values, 2)])
        return self._known[config]


_OPTIONS = tuple(name for name in EngineOptions.__struct_fields__ if name != "draft")


def failure_of(found: Diagnosis, launch: Launch, *, under_load: bool) -> ConfigFailure:
    """`launch` is what was started; `under_load`: it had answered before."""
    cause = f"died under load: {found.cause}" if under_load else found.cause
    kind = "crash-under-load" if under_load else "no-start"
    if _pattern("out_of_memory").search(found.cause):
        kind = "out-of-memory"
    mended = () if found.change is None else knobs_between(launch, found.change)
    return ConfigFailure(kind, cause, found.evidence, found.remedy, mended)


def knobs_between(old: Launch, new: Launch) -> tuple[tuple[str, Value], ...]:
    """Return what differs, by the names that knobs have. Speculation is a knob for each method, its value the depth."""
    drafts = [launch.options.draft for launch in (old, new)]
    methods = dict.fromkeys(draft.method for draft in drafts if draft is not None)
    pairs: dict[str, tuple[object, object]] = {
        "slots": (old.slots, new.slots),
        "threads": (old.threads, new.threads),
        **{name: (getattr(old.options, name), getattr(new.options, name)) for name in _OPTIONS},
        **{method: (draft_depth(old.options, method), draft_depth(new.options, method)) for method in methods},
    }
    return tuple(
        (name, after)
        for name, (before, after) in pairs.items()
        if before != after and (after is None or isinstance(after, str | int | float | bool))
    )


_GROUND = ("checkpoint", "quant", "dtype", "layout")  # what is not supported on one may be on another
_PLAIN = ("auto", "none", "off", "on")
_SHORTEST = 2  # characters of a value that a message can be said to name


def apply_remedy(config: KnobConfig, failure: ConfigFailure, knobs: Sequence[Knob]) -> KnobConfig | None:
    """As little turned as may mend it: what the diagnosis says, else one rung of what usually helps; None: nothing."""
    by_name = {knob.name: knob for knob in knobs}
    told = {
        name: value
        for name, wish in failure.mended
        if name in by_name and (value := _nearest(by_name[name], config.get(name), wish)) is not None
    }
    if told and config.turned(told) != config:
        return config.turned(told)
    kind, share = failure.kind, None
    if is_of_memory(failure):
        share = greedy_share(failure)
        kind = "pool" if share == "down" else "memory"
    for name, way in packaged_facts("failures.toml")["turns"].get(kind, ()):
        knob = by_name.get(name) if name != "memory_share" or share is not None else None
        if knob is not None and (value := _turned(knob, config.get(name), way)) is not None:
            return config.turned({name: value})
    return None


def why_hopeless(
    config: KnobConfig, failures: Sequence[tuple[KnobConfig, ConfigFailure]], knobs: Sequence[Knob]
) -> str | None:
    """Return why it need not be tried, by what failed before. None: nothing speaks against it."""
    for failed, failure in failures:
        reason = None
        if config == failed:
            reason = f"{failure.title} before: {failure.cause}"
        elif is_of_memory(failure):
            reason = _as_much_again(config, failed, failure)
        elif _is_refusal(failure):
            reason = _refused_again(config, failed, failure, knobs)
        if reason is not None:
            return reason
    return None


@lru_cache(maxsize=1024)  # asked of every configuration that is thought of
def is_of_memory(failure: ConfigFailure) -> bool:
    """A crash under load is, where its log says so."""
    if failure.kind in ("out-of-memory", "refused"):
        return failure.kind == "out-of-memory"
    told = _said(failure, failure.remedy)
    return (_pattern("memory").search(told) or _pattern("pool").search(told)) is not None


@lru_cache(maxsize=1024)
def greedy_share(failure: ConfigFailure) -> str | None:
    """Which way of memory_share asks for more: "down", too little for the KV cache, or "up", too little beside it."""
    told = _said(failure, failure.remedy)
    return "down" if _pattern("pool").search(told) else "up" if _pattern("beside").search(told) else None


def _as_much_again(config: KnobConfig, failed: KnobConfig, failure: ConfigFailure) -> str | None:
    share, had = greedy_share(failure), failed.as_dict
    if not all(name in had and asks_as_much(name, value, had[name], share=share) for name, value in config.values):
        return None
    changes = config.changes_from(failed)
    telling = [change for change in changes if change.knob not in INDIFFERENT]
    if not telling:
        return f"ran out of memory before ({failure.cause}), which {', '.join(c.knob for c in changes)} cannot fix"
    before = ", ".join(f"{change.knob} {value_words(change.before)}" for change in telling)
    after = ", ".join(f"{change.knob} {value_words(change.after)}" for change in telling)
    return f"{before} ran out of memory ({failure.cause}), and {after} asks for no less"


@lru_cache(maxsize=1024)
def _is_refusal(failure: ConfigFailure) -> bool:
    """Of a value that the engine does not take, by words that name no condition beside it."""
    said = _said(failure)
    unsupported = _pattern("unsupported").search(said) and not _pattern("condition").search(said)
    return failure.kind in ("refused", "no-start") and bool(_pattern("unknown").search(said) or unsupported)


def _refused_again(config: KnobConfig, failed: KnobConfig, failure: ConfigFailure, knobs: Iterable[Knob]) -> str | None:
    said = _said(failure)
    named = [(knob.name, value) for knob in knobs if _names(said, value := failed.get(knob.name))]
    if len(named) != 1:
        return None
    name, value = named[0]
    same_ground = all(config.get(ground) == failed.get(ground) for ground in _GROUND)
    if config.get(name) != value or not (same_ground or _pattern("unknown").search(said)):
        return None
    return f"{name} {value_words(value)} was refused with any other setting: {failure.cause}"


def _names(said: str, value: Value) -> bool:
    if not isinstance(value, str) or len(value) < _SHORTEST or value.lower() in _PLAIN:
        return False
    return re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w-])", said, re.IGNORECASE) is not None


def _turned(knob: Knob, value: Value, way: str) -> Value:
    """None: there is no such rung."""
    if way == "narrower":
        return narrower(value, knob.values)
    if way == "off":
        return next((off for off in knob.values if value and off is not None and not off), None)
    if not is_number(value):
        return None
    rungs = [rung for rung in knob.values if is_number(rung)]
    if way == "up":
        return min((rung for rung in rungs if rung > value), default=None)
    return max((rung for rung in rungs if rung < value), default=None)


def _nearest(knob: Knob, value: Value, wish: Value) -> Value:
    """Return the wish itself, or the next rung beyond it as seen from the value that failed; None: there is none."""
    if wish in knob.values:
        return wish
    if not (is_number(wish) and is_number(value)):
        return None
    rungs = [rung for rung in knob.values if is_number(rung)]
    if wish < value:
        return max((rung for rung in rungs if rung <= wish), default=None)
    return min((rung for rung in rungs if rung >= wish), default=None)


def _said(failure: ConfigFailure, remedy: str | None = None) -> str:
    return " ".join(filter(None, (failure.cause, failure.evidence, remedy)))
