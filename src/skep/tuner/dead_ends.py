"""What a dead end teaches: what to try instead, and what need not be tried at all. Pure.

Only inferences that hold whatever the other knobs do: who asks for at least as much memory in every respect as one
that ran out of it runs out too; a value that the engine does not know is unknown in every configuration. Of crashes
and hangs nothing is inferred but that the same configuration would meet the same end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from skep.tuner.appetite import INDIFFERENT, asks_as_much, is_number, narrower
from skep.tunings import FAILURES, Config, Failure, Knob, Value, value_words

_POOL = re.compile(
    r"room in the KV cache|memory for the (?:KV cache|cache blocks)|the KV cache ran out|max seq len|"
    r"raise memory_share|increas\w+ \S*(?:gpu_memory_utilization|mem-fraction-static)",
    re.IGNORECASE,
)
_MEMORY = re.compile(
    r"out of (?:\w+ )?memory|\bOutOfMemory|\bOOM\b|no memory for|not enough memory|lower memory_share|bad_alloc",
    re.IGNORECASE,
)
_BESIDE = re.compile(
    r"CUDA (?:error: )?out of memory|HIP out of memory|out of GPU memory|cudaMalloc|lower memory_share", re.IGNORECASE
)
_UNKNOWN = re.compile(
    r"unrecognized argument|invalid choice|unknown (?:option|argument|value|type)|does not know", re.IGNORECASE
)
_UNSUPPORTED = re.compile(r"\b(?:not|un)[ -]?supported|not implemented|does not (?:take|support)", re.IGNORECASE)
_CONDITION = re.compile(
    r"\b(?:with|without|together|when|while|unless|if|requires?|needs?|both|than|combin\w+)\b", re.IGNORECASE
)
_GROUND = ("checkpoint", "quant", "dtype", "layout")  # what is not supported on one may be on another
_PLAIN = ("auto", "none", "off", "on")
_SHORTEST = 2  # characters of a value that a message can be said to name

Turn = tuple[str, str]  # a knob, and which way: "up", "down", "narrower", "off"
_POOL_TURNS: tuple[Turn, ...] = (
    ("memory_share", "up"), ("kv", "narrower"), ("slots", "down"), ("batched_tokens", "down"), ("mtp", "down"),
)  # fmt: skip
_MEMORY_TURNS: tuple[Turn, ...] = (
    ("memory_share", "down"), ("slots", "down"), ("batched_tokens", "down"), ("batch", "down"), ("mtp", "down"),
    ("kv", "narrower"), ("replicas", "down"), ("graphs", "off"),
)  # fmt: skip
_TURNS: dict[str, tuple[Turn, ...]] = {
    "crash-under-load": (("slots", "down"), ("batched_tokens", "down"), ("mtp", "down"), ("ngram", "down")),
    "errors-under-load": (("slots", "down"), ("mtp", "down"), ("ngram", "down")),
    "hang": (("mtp", "off"), ("ngram", "off"), ("graphs", "off")),
}


def remedied(config: Config, failure: Failure, knobs: Sequence[Knob]) -> Config | None:
    """The same with as little turned as may mend it: what the diagnosis says, else one rung of what usually helps.

    None: nobody knows a remedy, or it is no matter of these knobs.
    """
    by_name = {knob.name: knob for knob in knobs}
    told = {
        name: value
        for name, wish in failure.mended
        if name in by_name and (value := _nearest(by_name[name], config.get(name), wish)) is not None
    }
    if told and config.turned(told) != config:
        return config.turned(told)
    for name, way in _turns(failure):
        knob = by_name.get(name)
        value = None if knob is None else _turned(knob, config.get(name), way)
        if value is not None:
            return config.turned({name: value})
    return None


def hopeless(config: Config, failures: Sequence[tuple[Config, Failure]], knobs: Sequence[Knob]) -> str | None:
    """Why it need not be tried, by what failed before. None: nothing speaks against it."""
    for failed, failure in failures:
        reason = None
        if config == failed:
            reason = f"{FAILURES.get(failure.kind, failure.kind)} before: {failure.cause}"
        elif is_of_memory(failure):
            reason = _as_much_again(config, failed, failure)
        elif _is_refusal(failure):
            reason = _refused_again(config, failed, failure, knobs)
        if reason is not None:
            return reason
    return None


@lru_cache(maxsize=1024)  # asked of every configuration that is thought of
def is_of_memory(failure: Failure) -> bool:
    """A crash under load is, where its log says so."""
    if failure.kind in ("out-of-memory", "refused"):
        return failure.kind == "out-of-memory"
    told = _advised(failure)
    return (_MEMORY.search(told) or _POOL.search(told)) is not None


@lru_cache(maxsize=1024)
def greedy_share(failure: Failure) -> str | None:
    """Which way of memory_share asks for more: "down" where the engine's own share was too small for its KV cache,
    "up" where it left too little beside it. None: the words do not tell.
    """
    if _POOL.search(_advised(failure)):
        return "down"
    return "up" if _BESIDE.search(_advised(failure)) else None


def _as_much_again(config: Config, failed: Config, failure: Failure) -> str | None:
    share, had = greedy_share(failure), failed.as_dict
    for name, value in config.values:
        if name not in had or not asks_as_much(name, value, had[name], share=share):
            return None
    changes = config.changes_from(failed)
    telling = [change for change in changes if change.knob not in INDIFFERENT]
    if not telling:
        return f"ran out of memory before ({failure.cause}), which {_joined(c.knob for c in changes)} cannot mend"
    before = _joined(f"{change.knob} {value_words(change.before)}" for change in telling)
    after = _joined(f"{change.knob} {value_words(change.after)}" for change in telling)
    return f"{before} ran out of memory ({failure.cause}), and {after} asks for no less"


@lru_cache(maxsize=1024)
def _is_refusal(failure: Failure) -> bool:
    """Of a value that the engine does not take, by words that name no condition beside it."""
    said = _said(failure)
    if failure.kind not in ("refused", "no-start"):
        return False
    return bool(_UNKNOWN.search(said)) or bool(_UNSUPPORTED.search(said) and not _CONDITION.search(said))


def _refused_again(config: Config, failed: Config, failure: Failure, knobs: Iterable[Knob]) -> str | None:
    said = _said(failure)
    named = [(knob.name, value) for knob in knobs if _names(said, value := failed.get(knob.name))]
    if len(named) != 1:
        return None
    name, value = named[0]
    same_ground = all(config.get(ground) == failed.get(ground) for ground in _GROUND)
    if config.get(name) != value or not (same_ground or _UNKNOWN.search(said)):
        return None
    return f"{name} {value_words(value)} was refused whatever the rest: {failure.cause}"


def _names(said: str, value: Value) -> bool:
    if not isinstance(value, str) or len(value) < _SHORTEST or value.lower() in _PLAIN:
        return False
    return re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w-])", said, re.IGNORECASE) is not None


def _turns(failure: Failure) -> tuple[Turn, ...]:
    if is_of_memory(failure):
        share = greedy_share(failure)
        turns = _POOL_TURNS if share == "down" else _MEMORY_TURNS
        return turns if share is not None else tuple(turn for turn in turns if turn[0] != "memory_share")
    return _TURNS.get(failure.kind, ())


def _turned(knob: Knob, value: Value, way: str) -> Value:
    """None: there is no such rung."""
    if way == "narrower":
        return narrower(value, knob.values)
    if way == "off":
        return next((off for off in knob.values if value and off is not None and not off), None)
    if not is_number(value):
        return None
    rungs = _rungs(knob, value)
    steps = dict(pairwise(rungs if way == "up" else rungs[::-1]))
    return steps.get(value)


def _nearest(knob: Knob, value: Value, wish: Value) -> Value:
    """The wish itself, or the next rung beyond it as seen from the value that failed; None: there is none."""
    if wish in knob.values:
        return wish
    if not (is_number(wish) and is_number(value)):
        return None
    if wish < value:
        return max((rung for rung in _rungs(knob) if rung <= wish), default=None)
    return min((rung for rung in _rungs(knob) if rung >= wish), default=None)


def _rungs(knob: Knob, *besides: Value) -> list[float]:
    return sorted({value for value in (*knob.values, *besides) if is_number(value)})


def _said(failure: Failure) -> str:
    return " ".join(filter(None, (failure.cause, failure.evidence)))


def _advised(failure: Failure) -> str:
    return " ".join(filter(None, (failure.cause, failure.evidence, failure.remedy)))


def _joined(words: Iterable[str]) -> str:
    return ", ".join(words)
