"""Which level of sessions is run next, and when enough is measured.

Pure: knows neither clock nor server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skep.bench.agent_figures import AgentsSummary, SessionSearchEnd
from skep.stats.turning import LevelPoint, SpeedCurve

PAST_CLIFF = 2  # levels beyond it
LIMITED_RUNS = 2  # of one level, all limited by the client, before the search ends there

LevelRun = tuple[int, int]  # a level, and which of its runs


class SessionRounds:
    """Runs every level once, then every level again, so that a drift does not pass for an effect
    of the number of sessions.
    """

    def __init__(
        self, levels: Sequence[int], runs: int, begun: Mapping[int, int] | None = None
    ) -> None:
        """`begun`: how many runs of a level there were before."""
        numbers = begun or {}
        self._pending = [
            (level, numbers.get(level, 0) + repeat) for repeat in range(runs) for level in levels
        ]

    def next_run(self) -> LevelRun | None:
        return next(iter(self._pending), None)

    def add_run(
        self,
        level: int,
        summary: AgentsSummary,  # noqa: ARG002
        *,
        limited: bool,  # noqa: ARG002
    ) -> None:
        """Take in that a run of the level has ended."""
        self._pending.remove(self._next_of(level))

    def _next_of(self, level: int) -> LevelRun:
        return next(place for place in self._pending if place[0] == level)


class SessionSearch:
    """Doubles the sessions until two levels lie past the cliff, or past the level from which on
    turns a minute no longer grow; then runs all levels again, where several runs are asked for.
    """

    def __init__(self, runs: int, *, most_sessions: int) -> None:
        self._runs = runs
        self._most_sessions = most_sessions
        self._levels = [1]
        self._climbs: LevelRun | None = (1, 0)
        self._rounds = SessionRounds((), 0)
        self._begun: dict[int, int] = {}  # runs of each level
        self.end: SessionSearchEnd | None = None

    def next_run(self) -> LevelRun | None:
        if self._climbs is not None:
            return self._climbs
        return self._rounds.next_run()

    def add_run(self, level: int, summary: AgentsSummary, *, limited: bool) -> None:
        """Take in a run, and decide on the next one by the figures of all runs so far."""
        if self._climbs is None:
            self._rounds.add_run(level, summary, limited=limited)
            return
        self._begun[level] = self._begun.get(level, 0) + 1
        if limited and self._begun[level] < LIMITED_RUNS:
            self._climbs = (level, self._begun[level])
            return
        self.end = self._find_end(level, summary, limited=limited)
        if self.end is None:
            self._levels.append(2 * level)
            self._climbs = (2 * level, 0)
            return
        self._climbs = None
        self._rounds = SessionRounds(self._levels, self._runs - 1, self._begun)

    def _find_end(
        self, level: int, summary: AgentsSummary, *, limited: bool
    ) -> SessionSearchEnd | None:
        if limited:
            return SessionSearchEnd(level, "client")
        turning = past_which(summary)
        beyond = [measured for measured in self._levels if measured > (turning or level)]
        if turning is not None and len(beyond) >= PAST_CLIFF:
            return SessionSearchEnd(level, "past the cliff", turning)
        if 2 * level > self._most_sessions:
            return SessionSearchEnd(level, "most", turning)
        return None


def past_which(summary: AgentsSummary) -> int | None:
    """Return the number of sessions past which nothing is gained: where hits leave the possible,
    or from where turns a minute do not grow, by the estimates so far; None: it is not in sight.
    """
    candidates = []
    if summary.cliff is not None:
        candidates.append(summary.cliff.sessions)
    usable = [level for level in summary.levels if level.turns_per_min and not level.limited]
    curve = SpeedCurve(LevelPoint(level.sessions, level.turns_of_runs) for level in usable)
    knee = curve.knee()
    if knee is not None:
        candidates.append(curve.levels[knee.at].concurrency)
    return min(candidates, default=None)
