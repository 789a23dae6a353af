"""What stored trials have shown of a KV type: that a model calls tools with it as well as with KV
of 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from skep.bench.stored_run import QUALITY
from skep.catalog.tool_calling import launched_model
from skep.deploy.kv_caveat import gives_small_kv
from skep.deploy.plan_request import PlanAnswer
from skep.errors import SkepError
from skep.planner.setup import known_kv
from skep.quality.banks import has_tools
from skep.quality.trial_compare import compare_trials, load_trial
from skep.store.database import Store, open_store
from skep.store.records import RunState, StoredRun

MOST_RUNS = 20  # trials of a model that are looked at, the newest first


def with_kv_evidence(answer: PlanAnswer, store_path: Path) -> PlanAnswer:
    """Return the answer with the run that shows its KV type to be good enough for tool calls,
    where it gives sessions one below 8 bits and there is such a run.
    """
    plans = [plan for choice in answer.choices for plan in choice.plans[:1]]
    small = [plan for plan in plans if gives_small_kv(plan)]
    if not small or not store_path.exists():
        return answer
    kv = small[0].setup.kv.id
    with open_store(store_path, read_only=True) as store:
        shown_by = run_that_shows(store, answer.model.geometry.id, kv)
    return msgspec.structs.replace(answer, kv_shown_by=shown_by)


def run_that_shows(store: Store, model: str, kv: str) -> str:
    """Return the newest trial with tools that found this KV type no worse than 16 bits, on the
    same tasks; empty: none did.
    """
    trials = [run for run in store.runs() if is_trial_of(run, model)][:MOST_RUNS]
    plain = [run for run in trials if is_half(run.config["kv"])]
    for trial in trials:
        if trial.config["kv"] == kv and shows(store, plain, trial):
            return trial.id
    return ""


def is_trial_of(run: StoredRun, model: str) -> bool:
    """Return whether a run is a real trial with tools of this model, with a known KV type."""
    if run.kind != QUALITY or run.state is not RunState.DONE or run.simulated:
        return False
    if not has_tools(str(run.config.get("bank", ""))) or not run.config.get("kv"):
        return False
    return model in (run.model, launched_model(run.model))


def is_half(kv: str) -> bool:
    kind = known_kv(kv)
    return kind is not None and kind.family == "half"


def shows(store: Store, plain: Sequence[StoredRun], trial: StoredRun) -> bool:
    """Return whether a trial is no worse than one of those with KV of 16 bits, at every level."""
    for run in plain:
        try:
            compared = compare_trials(load_trial(store, run), load_trial(store, trial))
        except SkepError:  # other tasks, or nothing was measured
            continue
        if compared.levels:
            return compared.holds
    return False
