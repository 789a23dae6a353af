"""What a failed start or run teaches: its kind, what would mend it, and which configurations look like it.

Nothing is concluded from words but whether it was memory, of which the planner knows who needs more. Of other failures
values, and pairs of values, that the failures have and nothing that ran has are suspected: what has them must promise
more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import TypeGuard

from skep.catalog.presets import EngineOptions
from skep.engines.base import Diagnosis, Launch
from skep.tuner.knobs import draft_depth
from skep.tuner.records import ConfigFailure, Knob, KnobConfig, Value

# A cause that is told as "ran out of memory", and words of a log that are about memory of any kind.
_OUT_OF_MEMORY = re.compile(
    r"\bout of (?:GPU )?memory\b|\b(?:no|not enough) (?:GPU )?memory\b|\bruns out of memory\b", re.IGNORECASE
)
_MEMORY = re.compile(
    r"out of (?:\w+ )?memory|\bOutOfMemory|\bOOM\b|no memory for|not enough memory|(?:lower|raise) memory_share"
    r"|bad_alloc|room in the KV cache|memory for the (?:KV cache|cache blocks)|the KV cache ran out|max seq len"
    r"|increas\w+ \S*(?:gpu_memory_utilization|mem-fraction-static)",
    re.IGNORECASE,
)


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
    if _OUT_OF_MEMORY.search(found.cause):
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


def apply_remedy(config: KnobConfig, failure: ConfigFailure, knobs: Sequence[Knob]) -> KnobConfig | None:
    """Return it with what the diagnosis says turned; None: it says nothing that a knob does."""
    wishes = dict(failure.mended)
    found = {
        knob.name: _nearest(knob, config.get(knob.name), wishes[knob.name]) for knob in knobs if knob.name in wishes
    }
    turned = config.turned({name: value for name, value in found.items() if value is not None})
    return turned if turned != config else None


@lru_cache(maxsize=1024)  # asked of every configuration that is thought of
def is_of_memory(failure: ConfigFailure) -> bool:
    """A crash under load is, where its log says so."""
    if failure.kind in ("out-of-memory", "refused"):
        return failure.kind == "out-of-memory"
    said = filter(None, (failure.cause, failure.evidence, failure.remedy))
    return _MEMORY.search(" ".join(said)) is not None


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
