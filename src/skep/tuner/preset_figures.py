"""What the planner expects of a preset where it was published: its own layout, cards and flags. Starts nothing."""

from __future__ import annotations

from skep.catalog.presets import NO_CARDS, Preset, Published
from skep.config.rigs import parse_rig
from skep.planner.ranking import published_basis
from skep.tuner.predictions import Predictor
from skep.tuner.records import KnobConfig, TuneGoal


def planned_tok_s(preset: Preset, figure: Published, lengths: tuple[int, int]) -> float | None:
    """Return it counted as the figure is; None: the planner has nothing to say. `lengths`: of prompt and answer."""
    if preset.hardware == NO_CARDS:
        return None
    rig = parse_rig(preset.hardware, preset.link)
    prompt, answer = lengths
    goal = TuneGoal("effective_tok_s", figure.concurrency, prompt, answer)
    engine = "llamacpp" if preset.engine in ("embedded", "ollama") else preset.engine
    found = Predictor(preset, rig, goal, (), published_basis(engine)).outcome(KnobConfig.of({}))
    if found is None:
        return None
    if figure.metric == "decode":
        return figure.concurrency * found.task_tok_s
    return found.effective_tok_s * (1 + prompt / answer if figure.metric == "combined" else 1)
