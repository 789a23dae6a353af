"""From what an engine's diagnosis says to what the climb learns of it: a kind, its words, and the remedy as knobs."""

from __future__ import annotations

import re
from dataclasses import fields

from skep.catalog.options import Options
from skep.engines.base import Diagnosis, Launch
from skep.tunings import Failure, Value

_MEMORY = re.compile(
    r"\b(?:out of (?:GPU )?memory|(?:no|not enough) (?:GPU )?memory|runs out of memory)\b", re.IGNORECASE
)

_OPTIONS = tuple(one.name for one in fields(Options) if one.name != "draft")


def failure_of(found: Diagnosis, launch: Launch, *, under_load: bool) -> Failure:
    """`launch` is what was started; `under_load`: it had answered before."""
    cause = f"died under load: {found.cause}" if under_load else found.cause
    kind = "crash-under-load" if under_load else "no-start"
    if _MEMORY.search(found.cause):
        kind = "out-of-memory"
    mended = () if found.change is None else knobs_between(launch, found.change)
    return Failure(kind, cause, found.evidence, found.remedy, mended)


def knobs_between(old: Launch, new: Launch) -> tuple[tuple[str, Value], ...]:
    """What differs, by the names that knobs have. Speculation is a knob for each method, its value the depth."""
    drafts = [launch.options.draft for launch in (old, new)]
    methods = dict.fromkeys(draft.method for draft in drafts if draft is not None)
    pairs: dict[str, tuple[object, object]] = {
        "slots": (old.slots, new.slots),
        "threads": (old.threads, new.threads),
        **{name: (getattr(old.options, name), getattr(new.options, name)) for name in _OPTIONS},
        **{method: (_depth(old, method), _depth(new, method)) for method in methods},
    }
    return tuple(
        (name, after)
        for name, (before, after) in pairs.items()
        if before != after and (after is None or isinstance(after, str | int | float | bool))
    )


def _depth(launch: Launch, method: str) -> int:
    draft = launch.options.draft
    return draft.depth if draft is not None and draft.method == method else 0
