"""Which run is the best of each model on each machine, and what the step was that won it. Values in, values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skep.bench.loaded import JUDGED, OF_A_TUNING, TIMED
from skep.records import Run, RunState
from skep.report.figures import shortened
from skep.web.runs_book import Figures
from skep.web.runs_words import engine_of, layout_of, machine_key, machine_of, setup_of

# What may differ between repeats of the same work: chance, patience and how the client is built.
_NO_MATTER = frozenset({
    "seed", "chars_per_token", "processes", "budget_s", "timeout_s", "keep_text", "precision", "most_runs",
    "overhead_tokens", "quick_warm_up", "runs", "max_concurrency", "same_tasks", "kind",
})  # fmt: skip
_HOST = ("driver_version", "cuda_version")
_MOST_TOLD = 3
_LONGEST = 32  # letters of a value
_HARDLY = 0.01  # of a gain: less is what repeats differ by
_SPEAKING = ("layout", "engine", "speculation", "weights")  # values that say by themselves what they are
_IN_THE_LAYOUT = ("replicas", "simulated", "rig")


@dataclass(frozen=True, slots=True)
class Step:
    """From the next best setup to the best one. `what` is empty where no other setup was measured."""

    what: tuple[tuple[str, str, str], ...]  # name, there, here
    gain: float | None  # best over the next best, less one; None where their loads differ
    beaten: str | None  # the run
    other_load: tuple[str, ...] = ()  # what the two loads differ in


@dataclass(frozen=True, slots=True)
class Leader:
    """The best run of one model on one machine."""

    run: Run
    figures: Figures
    machine: str
    engine: str
    layout: str
    tried: int  # runs of this model on this machine
    setups: int  # that were told apart among them
    step: Step


def candidates(runs: Sequence[Run]) -> list[Run]:
    """Finished runs whose levels are concurrencies."""
    skipped = (*JUDGED, *TIMED, *OF_A_TUNING, "calibrate")
    return [run for run in runs if run.state is RunState.DONE and run.kind not in skipped]


def leaders(runs: Sequence[Run], figures: Mapping[str, Figures], *, public: bool = False) -> list[Leader]:
    """Measured ones before simulated ones; by model, and the quickest machine first."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in candidates(runs):
        if run.id in figures and figures[run.id].best_tok_s is not None:
            groups.setdefault((run.simulated, run.model, machine_key(run)), []).append(run)
    found = [_leader(group, figures, public=public) for group in groups.values()]
    found = _told_apart(found)
    return sorted(found, key=lambda one: (one.run.simulated, one.run.model, -(one.figures.best_tok_s or 0.0)))


def step_words(step: Step) -> str:
    """In one line."""
    if step.beaten is None:
        return "the only setup that was tried"
    told = "; ".join(_change(*one) for one in step.what[:_MOST_TOLD])
    told += f" and {len(step.what) - _MOST_TOLD} more" if len(step.what) > _MOST_TOLD else ""
    if step.other_load:
        return f"{told}; how much it brought is not known, as the load was another: {', '.join(step.other_load)}"
    if step.gain is None:
        return told
    return f"{told}: {step.gain * 100:+.1f} %" + (", about the same" if step.gain < _HARDLY else "")


def _change(name: str, there: str, here: str) -> str:
    """Only what differs: the same words before and behind it are left out."""
    a, b = there.split(", "), here.split(", ")
    while a and b and a[0] == b[0]:
        a, b = a[1:], b[1:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    short = (shortened(", ".join(part), _LONGEST) or "nothing" for part in (a, b))
    told = " → ".join(short)
    return told if name in _SPEAKING else f"{name.replace('_', ' ')} {told}"


def _leader(group: Sequence[Run], figures: Mapping[str, Figures], *, public: bool) -> Leader:
    ranked = sorted(group, key=lambda run: figures[run.id].best_tok_s or 0.0, reverse=True)
    best = ranked[0]
    setups: list[Run] = []
    for run in ranked:
        if all(_unlike(_setup(run), _setup(other)) for other in setups):
            setups.append(run)
    return Leader(best, figures[best.id], machine_of(best, public=public), engine_of(best), layout_of(best),
                  len(group), len(setups), _step(best, ranked[1:], figures))  # fmt: skip


def _step(best: Run, others: Sequence[Run], figures: Mapping[str, Figures]) -> Step:
    """The next best of another setup; under the same load where there is one."""
    rivals = [run for run in others if _unlike(_setup(run), _setup(best))]
    if not rivals:
        return Step((), None, None)
    fair = [run for run in rivals if not _unlike(_load(run), _load(best))]
    rival = (fair or rivals)[0]
    here, there = _setup(best), _setup(rival)
    what = tuple((name, there[name], here[name]) for name in _unlike(here, there))
    a, b = figures[rival.id].best_tok_s, figures[best.id].best_tok_s
    other = tuple(_unlike(_load(best), _load(rival)))
    return Step(what, b / a - 1 if a and b is not None and not other else None, rival.id, other)


def _unlike(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """The names that both tell, and tell differently: what one of them does not say is unknown, not another value."""
    return sorted(name for name in {*a} & {*b} if a[name] != b[name])


def _setup(run: Run) -> dict[str, str]:
    """What served: the engine as the endpoint told it, the layout, the driver."""
    told = _flat(run.engine)
    if parts := setup_of(run):
        told = {name: value for name, value in told.items() if name not in _IN_THE_LAYOUT} | parts
    told |= {name: str(run.host[name]) for name in _HOST if run.host.get(name)}
    return told


def _load(run: Run) -> dict[str, str]:
    """What was asked of it. The levels are left out: the best of them is what counts."""
    return {name: value for name, value in _flat(run.config).items() if name not in ("concurrency", "to_saturation")}


def _flat(facts: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in facts.items():
        if name in _NO_MATTER or value is None:
            continue
        if isinstance(value, Mapping):
            found |= _flat(value)
        else:
            found[name] = str(value).rsplit("/", 1)[-1] if name == "model_path" else str(value)
    return found


def _told_apart(found: Sequence[Leader]) -> list[Leader]:
    """Machines that look alike are told apart by what else is known of them."""
    seen: dict[tuple[bool, str, str], int] = {}
    for one in found:
        name = (one.run.simulated, one.run.model, one.machine)
        seen[name] = seen.get(name, 0) + 1
    return [
        one if seen[one.run.simulated, one.run.model, one.machine] == 1 else _more(one)
        for one in found
    ]  # fmt: skip


def _more(one: Leader) -> Leader:
    _, cpu, cores, memory = (*machine_key(one.run), None, None, None)[:4]
    return replace(one, machine=f"{one.machine} ({cpu}, {cores} cores, {memory} GiB)")
