"""A tuning that was never made, for pages and pictures to be looked at: the stages of a published
write-up, with the dead ends that it tells of. Values only; whoever shows it says that it is made
up."""

from msgspec.structs import replace

from skep.tuner.records import (
    ConfigFailure,
    Knob,
    KnobConfig,
    StageDecision,
    TuneGoal,
    TuneStage,
    Tuning,
)
from skep.units import Interval

BASELINE = KnobConfig.of(
    {
        "graphs": False,
        "kv_dtype": "auto",
        "layout": "TP=2",
        "mtp": 0,
        "memory_share": 0.83,
        "slots": 8,
        "checkpoint": "awq",
    }
)
KNOBS = (
    Knob("graphs", "CUDA graphs", (False, True)),
    Knob("kv_dtype", "type of the KV cache", ("auto", "fp8", "tq3"), alters_answers=True),
    Knob("layout", "how the cards are divided", ("TP=2", "TP=1", "2 x TP=1")),
    Knob("mtp", "tokens drafted ahead", (0, 1, 2, 3, 4, 5, 6), ordered=True),
    Knob("memory_share", "share of the cards' memory", (0.83, 0.92, 0.97), ordered=True),
    Knob("slots", "requests at once", (1, 2, 4, 8), ordered=True),
    Knob("checkpoint", "weights", ("awq", "autoround"), alters_answers=True),
)
OUT_OF_MEMORY = ConfigFailure(
    "out-of-memory",
    "the cards' memory was too small for the graphs",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.02 GiB",
    "memory_share 0.92 → 0.83 leaves room for them",
)
REFUSED = ConfigFailure(
    "no-start",
    "the engine does not take this KV type with a hybrid model",
    (
        "NotImplementedError: TurboQuant KV cache is not supported for hybrid (attention + "
        "Mamba) models"
    ),
    "kv_dtype fp8",
)


def sample_tuning(**changed):
    tuning = Tuning(
        id="20260801-101500-tuned1",
        created_at=1_785_580_500.0,
        model="qwen3.6-27b",
        engine="vllm",
        rig="2x rtx-3090",
        aim=TuneGoal("effective_tok_s", 4, 1024, 1024, slo="ttft=2s", min_context=16384),
        budget_s=7200.0,
        seed=1,
        simulated=True,
        baseline=BASELINE,
        knobs=KNOBS,
        base={"model": "qwen3.6-27b", "engine": "vllm"},
        host={"cpu_model": "Test CPU", "cpu_cores": 16, "driver_version": "580.159.03"},
        skep_version="0.1.0",
    )
    return replace(tuning, **changed)


def sample_stages():
    """Nine attempts after the baseline: four accepted, and one of every other decision."""
    stages = _Stages()
    stages.add({}, 25.1, why="where the search begins", decision=StageDecision.BASELINE)
    stages.add(
        {"memory_share": 0.92, "graphs": True},
        None,
        failure=OUT_OF_MEMORY,
        why="it ran out of memory",
    )
    stages.add(
        {"graphs": True}, 1.72, predicted=1.9, why="better with 95 % confidence over 2 starts"
    )
    stages.add({"kv_dtype": "tq3"}, None, failure=REFUSED, why="it did not start")
    stages.add({"mtp": 3}, 1.18, predicted=1.6, why="better with 95 % confidence over 2 starts")
    stages.add(
        {"slots": 4},
        1.004,
        StageDecision.SAME,
        predicted=1.0,
        why="a difference of 2 % would have been seen",
    )
    stages.add(
        {"checkpoint": "autoround"},
        1.21,
        StageDecision.ANSWERS_WORSE,
        why="31 of 48 right against 44 of 48",
    )
    stages.add(
        {"layout": "2 x TP=1"},
        3.36,
        predicted=2.4,
        why="better with 95 % confidence over 2 starts",
    )
    stages.add(
        {"slots": 1}, 1.1, StageDecision.OVER_LIMIT, why="TTFT 2.6 s is over the limit of 2 s"
    )
    stages.add(
        {"mtp": 6},
        0.93,
        StageDecision.WORSE,
        predicted=1.05,
        why="worse with 95 % confidence over 2 starts",
    )
    stages.add({"mtp": 5}, 1.11, why="better with 95 % confidence over 3 starts")
    stages.add(
        {"memory_share": 0.97}, 1.01, StageDecision.UNDECIDED, why="time ran out after one start"
    )
    return stages.stages


class _Stages:
    """Stages by their ratio over the best of that moment;
    each accepted one becomes the next best.
    """

    def __init__(self):
        self.stages = []
        self._best = BASELINE
        self._figure = 0.0

    def add(
        self, values, ratio, decision=StageDecision.ACCEPTED, *, why, predicted=None, failure=None
    ):
        first = decision is StageDecision.BASELINE
        config = self._best.turned(values)
        if ratio is None:
            figure = None
        else:
            figure = ratio if first else ratio * self._figure
        self.stages.append(
            TuneStage(
                number=len(self.stages),
                changes=config.changes_from(self._best),
                config=config,
                decision=StageDecision.FAILED if failure else decision,
                why=why,
                figure=_around(figure, 0.02),
                ratio=None if first else _around(ratio, 0.015),
                predicted=predicted,
                ttft_ms=None if figure is None else 60_000 / figure,
                tpot_ms=None if figure is None else 900 / figure,
                starts=1 if failure else 2,
                readings=0 if failure else 8,
                seconds=95.0 if failure else 640.0,
                failure=failure,
            )
        )
        if figure is not None and decision in (StageDecision.BASELINE, StageDecision.ACCEPTED):
            self._best = config
            self._figure = figure


def _around(value, share):
    if value is None:
        return None
    return Interval(value * (1 - share), value, value * (1 + share))
