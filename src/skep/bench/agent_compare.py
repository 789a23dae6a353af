"""Two runs of `skep bench agents` side by side: turns a minute, session time, first token, hits.

The sample is the runs of a level. Runs are compared only where they played the same sessions: of
other ones the times say nothing about each other. Pure, but for `load_side`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.bench.agent_figures import (
    CONVERSATIONS,
    AgentLevel,
    AgentRun,
    AgentsSummary,
    SessionCliff,
    p50_of,
    p95_of,
)
from skep.bench.compare import ONE_RUN, strict_confidence, worse_beyond
from skep.bench.metrics import Comparison
from skep.bench.stored_run import load_agents, nothing_measured
from skep.catalog.session_shapes import session_shapes
from skep.stats.versus import Judgement, judge
from skep.store.database import Store
from skep.store.records import LevelFact, StoredRun

TURNS = "turns/min"
ANSWERED = "answered"
SESSION = "session p50"
TTFT_P50 = "TTFT p50"
TTFT_P95 = "TTFT p95"
HITS = "hits"
# What makes other work of the same name, by its key in a run's configuration, with its words.
LOAD_KEYS = {
    "load": "loads",
    "turns_at_most": "most turns of a session",
    "pause_scale": "scales of pauses",
    "sessions": "numbers of sessions",
}


class SessionFigure(msgspec.Struct, frozen=True):
    """A figure that is compared: of one run of a level, and as the level has it."""

    name: str
    higher_is_better: bool
    of_run: Callable[[AgentRun], float | None]
    of_level: Callable[[AgentLevel], float | None]


def _answered(counts: AgentRun | AgentLevel) -> float | None:
    """Return the share of turns that were answered."""
    sent = counts.turns + counts.failed
    if not sent:
        return None
    return counts.turns / sent


FIGURES: tuple[SessionFigure, ...] = (
    SessionFigure(TURNS, True, lambda run: run.turns_per_min, lambda level: level.turns_per_min),
    SessionFigure(ANSWERED, True, _answered, _answered),
    SessionFigure(
        SESSION,
        False,
        lambda run: run.session_p50_s,
        lambda level: p50_of(level.session_s),
    ),
    SessionFigure(
        TTFT_P50,
        False,
        lambda run: run.ttft_p50_ms,
        lambda level: p50_of(level.ttft_ms),
    ),
    SessionFigure(
        TTFT_P95,
        False,
        lambda run: run.ttft_p95_ms,
        lambda level: p95_of(level.ttft_ms),
    ),
    SessionFigure(HITS, True, lambda run: run.hit_rate, lambda level: level.hit_rate),
)


class AgentsSide(msgspec.Struct, frozen=True):
    """A run with what a comparison needs of it."""

    run: StoredRun
    summary: AgentsSummary
    facts: Sequence[LevelFact] = ()

    def level(self, sessions: int) -> AgentLevel | None:
        return next((level for level in self.summary.levels if level.sessions == sessions), None)

    def conversations(self, sessions: int) -> list[Any] | None:
        """Return what was planned of a run of a level; None: it is not stored."""
        for fact in self.facts:
            if fact.name == CONVERSATIONS and fact.level == sessions:
                planned: list[Any] = fact.fact[CONVERSATIONS]
                return planned
        return None


class PossibleHits(msgspec.Struct, frozen=True):
    """The hits that were possible at a level, in both runs."""

    sessions: int
    a: float | None
    b: float | None


class AgentsComparison(msgspec.Struct, frozen=True):
    """B against A, level by level.

    `unlike`: why the loads are not the same; empty where they are.
    """

    comparisons: tuple[Comparison, ...]
    worse: tuple[Comparison, ...]
    possible: tuple[PossibleHits, ...]
    cliffs: tuple[SessionCliff | None, SessionCliff | None]
    unlike: str = ""


def load_side(store: Store, run: StoredRun) -> AgentsSide:
    """Load a run to compare it; raise UserError where nothing was measured."""
    _, summary = load_agents(store, run.id)
    if not summary.levels:
        raise nothing_measured(run)
    return AgentsSide(run, summary, store.level_facts(run.id))


def compare_agents(
    a: AgentsSide, b: AgentsSide, allowed: float = 0.05, *, anyway: bool = False
) -> AgentsComparison:
    """Compare all figures of the levels that both have, in order of sessions.

    `anyway`: judge them even where the loads differ; else each is then not comparable.
    """
    unlike = load_difference(a, b)
    levels = common_levels(a, b)
    comparisons = [_compared(figure, level, a, b) for level in levels for figure in FIGURES]
    strict = strict_confidence(len(comparisons))
    worse = [
        _compared(figure, level, a, b, confidence=strict) for level in levels for figure in FIGURES
    ]
    if unlike and not anyway:
        why = f"other work: {unlike}"
        comparisons = [_unjudged(comparison, why) for comparison in comparisons]
        worse = []
    return AgentsComparison(
        comparisons=tuple(comparisons),
        worse=tuple(worse_beyond(allowed, worse)),
        possible=tuple(_possible(level, a, b) for level in levels),
        cliffs=(a.summary.cliff, b.summary.cliff),
        unlike=unlike,
    )


def common_levels(a: AgentsSide, b: AgentsSide) -> list[int]:
    return [level.sessions for level in a.summary.levels if b.level(level.sessions) is not None]


def load_difference(a: AgentsSide, b: AgentsSide) -> str:
    """Return in what the loads of two runs differ; empty: they played the same sessions."""
    config_a = a.run.config
    config_b = b.run.config
    for key, words in LOAD_KEYS.items():
        if key not in config_a or key not in config_b or config_a[key] == config_b[key]:
            continue
        return f"the {words} differ: {_words(config_a[key])} and {_words(config_b[key])}"
    levels = [level for level in common_levels(a, b) if _differ_in_sessions(level, a, b)]
    if not levels:
        return ""
    seed_a = config_a.get("seed")
    seed_b = config_b.get("seed")
    if config_a.get("load") in session_shapes() and seed_a != seed_b:
        return f"the seeds differ: {seed_a} and {seed_b} draw other sessions"
    named = ", ".join(map(str, levels))
    return f"the sessions differ, though they have one name: at {named} held at once"


def _words(setting: Any) -> str:
    if setting is None:
        return "not set"
    return str(setting)


def _differ_in_sessions(level: int, a: AgentsSide, b: AgentsSide) -> bool:
    planned_a = a.conversations(level)
    planned_b = b.conversations(level)
    if planned_a is None or planned_b is None:
        return False
    return planned_a != planned_b


def _possible(level: int, a: AgentsSide, b: AgentsSide) -> PossibleHits:
    level_a, level_b = _of_both(level, a, b)
    return PossibleHits(level, level_a.possible_hit_rate, level_b.possible_hit_rate)


def _of_both(level: int, a: AgentsSide, b: AgentsSide) -> tuple[AgentLevel, AgentLevel]:
    level_a = a.level(level)
    level_b = b.level(level)
    assert level_a is not None
    assert level_b is not None
    return level_a, level_b


def _compared(
    figure: SessionFigure, level: int, a: AgentsSide, b: AgentsSide, confidence: float = 0.95
) -> Comparison:
    level_a, level_b = _of_both(level, a, b)
    comparison = Comparison(
        concurrency=level,
        metric=figure.name,
        a=figure.of_level(level_a),
        b=figure.of_level(level_b),
        ratio=None,
        judgement=Judgement.UNKNOWN,
        higher_is_better=figure.higher_is_better,
    )
    sides = {"A": level_a, "B": level_b}
    limited = [name for name, of_level in sides.items() if of_level.limited]
    if limited:
        return replace(comparison, why=f"the client was the limit in {' and '.join(limited)}")
    unanswered = [name for name, of_level in sides.items() if not of_level.turns]
    if unanswered:
        return _without_answers(comparison, unanswered)
    ratio, judgement = judge(
        _values(figure, level_a),
        _values(figure, level_b),
        higher_is_better=figure.higher_is_better,
        confidence=confidence,
    )
    why = ""
    if judgement is Judgement.UNKNOWN:
        why = _why_unknown(figure, level_a, level_b)
    return replace(comparison, ratio=ratio, judgement=judgement, why=why)


def _why_unknown(figure: SessionFigure, level_a: AgentLevel, level_b: AgentLevel) -> str:
    """Return why a figure has no ratio; empty: the engine of a run does not tell it."""
    if figure.of_level(level_a) is None or figure.of_level(level_b) is None:
        return ""
    if min(len(level_a.counted), len(level_b.counted)) < 2:
        return ONE_RUN
    return f"{figure.name} are nothing in some runs: they have no ratio"


def _without_answers(comparison: Comparison, sides: Sequence[str]) -> Comparison:
    """Judge a level of which a run got no answer: where that is B alone, it is worse."""
    judgement = Judgement.UNKNOWN
    if comparison.metric == TURNS and len(sides) == 1:
        judgement = {"A": Judgement.BETTER, "B": Judgement.WORSE}[sides[0]]
    why = f"{' and '.join(sides)} got no answer at all"
    return replace(comparison, judgement=judgement, why=why)


def _values(figure: SessionFigure, level: AgentLevel) -> list[float]:
    """Return the figure of each run that counts and has it."""
    values = [figure.of_run(run) for run in level.counted]
    return [value for value in values if value is not None and value > 0]


def _unjudged(comparison: Comparison, why: str) -> Comparison:
    return replace(comparison, ratio=None, judgement=Judgement.UNKNOWN, why=why)
