"""What agents get with N sessions at once: figures of `skep bench agents` from stored rows.

A cache could hit what the turns before a turn have computed: all of its prompt but what is new in
it. How much that is follows from the token counts of the answers, not from what
was planned. Pure: the same rows always give the same figures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from skep.bench.metrics import cached_share, ttft_values
from skep.bench.summary import limit_reason
from skep.stats.percentiles import Percentiles, mean_t_interval, percentiles, runs_interval
from skep.stats.turning import LevelPoint, find_turning
from skep.store.records import ClientSample, LevelFact, Request
from skep.units import Interval, known

CONVERSATIONS = "conversations"  # the fact that says what was planned
SESSION_SEARCH = "session search"  # the fact that says where a search for the cliff stopped
CLIFF_HIT_LOSS = 0.10  # so far below the possible hit rate a level is past the cliff
WARM_SHARE = 0.90  # of the hits that were possible: with so many a session is warm
Item = TypeVar("Item")
Key = tuple[int, int]  # a level and which of its runs


class ConversationFact(msgspec.Struct, frozen=True):
    """What was planned of one conversation of a run, as a fact of its level has it."""

    number: int
    session: int  # that it belongs to; its own number where it is no sub-agent
    turns: int
    shared_tokens: int
    first_tokens: int  # of its first prompt, with the shared ones
    anew: tuple[int, ...] = ()  # turns before which the client has compacted it


class AgentRun(msgspec.Struct, frozen=True):
    """One run of one level."""

    repeat: int
    wall_s: float
    sessions: int
    turns: int  # that were answered, sub-agents' among them
    turns_per_min: float
    hit_rate: float | None
    possible_hit_rate: float | None
    warm_sessions: int | None
    output_tok_s: float
    prompt_tok_s: float | None
    preemptions: int | None
    failed: int = 0  # turns
    session_p50_s: float | None = None
    ttft_p50_ms: float | None = None  # of later turns
    ttft_p95_ms: float | None = None
    limited: str = ""  # why the client was the limit; empty: it was not


class AgentLevel(msgspec.Struct, frozen=True):
    """All runs of one number of sessions at once."""

    sessions: int  # held at once
    sessions_ended: int  # with all of their turns, over all runs
    sessions_failed: int
    turns: int
    failed: int  # turns
    wall_s: float
    turns_per_min: float | None
    turns_interval: Interval | None
    session_s: Percentiles | None
    ttft_ms: Percentiles | None  # of later turns
    first_ttft_ms: Percentiles | None  # of each conversation's first turn
    hit_rate: float | None  # None: the engine does not tell
    possible_hit_rate: float | None
    # By how much hits lie below the possible, as a share of the prompts, a mean over sessions.
    lost_hits: Interval | None
    warm_sessions: int | None  # that hit nearly all that their later turns could
    told_sessions: int  # of which is known whether they did
    preemptions: int | None
    output_tok_s: float | None
    prompt_tok_s: float | None
    runs: tuple[AgentRun, ...] = ()
    errors: tuple[tuple[str, int], ...] = ()

    @property
    def limited(self) -> bool:
        """Return whether the client was the limit of every run: its figures are lower bounds."""
        return bool(self.runs) and all(run.limited for run in self.runs)

    @property
    def counted(self) -> list[AgentRun]:
        """Return the runs that its figures are made of."""
        return [run for run in self.runs if self.limited or not run.limited]

    @property
    def turns_of_runs(self) -> list[float]:
        """Return turns a minute of the runs that its figures are made of."""
        return [run.turns_per_min for run in self.counted]

    @property
    def requests(self) -> int:
        return self.turns + self.failed

    @property
    def turns_low(self) -> float | None:
        return min(self.turns_of_runs, default=None)

    @property
    def turns_high(self) -> float | None:
        return max(self.turns_of_runs, default=None)


class SessionCliff(msgspec.Struct, frozen=True):
    """The number of sessions beyond which each gets less, and what shows it."""

    sessions: int  # the last measured level before it
    beyond: int  # the first measured level that is surely past it
    why: Literal["turns", "hits"]
    # Per cent of turns a minute that are lost, or points of hits below the possible.
    loss_pct: float


class SessionSearchEnd(msgspec.Struct, frozen=True):
    """Where the search for the cliff stopped, and why."""

    at: int  # the most sessions that were measured
    reason: Literal["past the cliff", "client", "most"]
    beyond: int | None = None  # nothing was gained above so many


class AgentsSummary(msgspec.Struct, frozen=True):
    run_id: str
    levels: tuple[AgentLevel, ...]
    cliff: SessionCliff | None = None
    # Levels that the runs do not tell apart; None: no level was run twice.
    unclear: tuple[int, ...] | None = None
    hits_told: bool = False  # the engine tells cached tokens of each request
    client_limited: bool = False
    simulated: bool = False
    search: SessionSearchEnd | None = None
    unfinished_level: int | None = None  # the run was broken off in it, and no level had ended


class SessionsAtBest(msgspec.Struct, frozen=True):
    """What a list tells of a run: the level with the most turns a minute, and the cliff."""

    sessions: int
    turns_per_min: float
    session_p50_s: float | None
    ttft_p50_ms: float | None  # of later turns
    ttft_p95_ms: float | None
    hit_rate: float | None
    possible_hit_rate: float | None
    cliff: int | None  # None: none is shown


def sessions_at_best(summary: AgentsSummary) -> SessionsAtBest | None:
    """Return what a list tells of a run; None: no level has a figure that counts."""
    best = best_level(summary.levels)
    if best is None:
        return None
    return SessionsAtBest(
        sessions=best.sessions,
        turns_per_min=best.turns_per_min or 0.0,
        session_p50_s=p50_of(best.session_s),
        ttft_p50_ms=p50_of(best.ttft_ms),
        ttft_p95_ms=p95_of(best.ttft_ms),
        hit_rate=best.hit_rate,
        possible_hit_rate=best.possible_hit_rate,
        cliff=None if summary.cliff is None else summary.cliff.sessions,
    )


def p50_of(times: Percentiles | None) -> float | None:
    if times is None:
        return None
    return times.p50


def p95_of(times: Percentiles | None) -> float | None:
    if times is None:
        return None
    return times.p95


def best_level(levels: Sequence[AgentLevel]) -> AgentLevel | None:
    """Return the level with the most turns a minute that the client did not limit."""
    ranked = [level for level in levels if known(level.turns_per_min) and not level.limited]
    return max(ranked, key=lambda level: level.turns_per_min or 0.0, default=None)


def agents_summary(
    run_id: str,
    rows: Sequence[Request],
    samples: Sequence[ClientSample] = (),
    facts: Sequence[LevelFact] = (),
    *,
    simulated: bool = False,
) -> AgentsSummary:
    """Return the figures of a run from what is stored of it."""
    shared_since = _shared_since(rows)
    hits_told = any(row.engine.cached_tokens is not None for row in rows)
    played: dict[int, list[_PlayedRun]] = {}
    for key, rows_of_run in _by_run(rows).items():
        run = _PlayedRun(
            key,
            rows_of_run,
            plans=_plans(facts, key),
            counters=_counters(facts, key),
            limited=_limit(samples, key),
            shared_since=shared_since,
            hits_told=hits_told,
        )
        played.setdefault(run.level, []).append(run)
    levels = tuple(_level(level, played[level]) for level in sorted(played))
    turning = find_turning(_turns_point(level) for level in levels)
    is_repeated = any(len(level.turns_of_runs) > 1 for level in levels)
    return AgentsSummary(
        run_id=run_id,
        levels=levels,
        cliff=session_cliff(levels),
        unclear=turning.unclear if is_repeated else None,
        hits_told=hits_told,
        client_limited=any(level.limited for level in levels),
        simulated=simulated,
        search=_search_end(facts),
    )


def _by_run(rows: Sequence[Request]) -> dict[Key, list[Request]]:
    """Return the rows by level and run, without the warm-up."""
    runs: dict[Key, list[Request]] = {}
    for row in rows:
        if row.level:
            runs.setdefault((row.level, row.repeat), []).append(row)
    return dict(sorted(runs.items()))


def _shared_since(rows: Sequence[Request]) -> dict[str, float]:
    """Return when each shared beginning was first computed, by its name."""
    since: dict[str, float] = {}
    for row in rows:
        if row.ok:
            since[row.traffic] = min(row.ended_s, since.get(row.traffic, row.ended_s))
    return since


def _plans(facts: Sequence[LevelFact], key: Key) -> dict[int, ConversationFact]:
    plans: list[ConversationFact] = []
    for fact in facts:
        if fact.name == CONVERSATIONS and (fact.level, fact.repeat) == key:
            plans = msgspec.convert(fact.fact[CONVERSATIONS], list[ConversationFact])
    return {plan.number: plan for plan in plans}


def _counters(facts: Sequence[LevelFact], key: Key) -> Mapping[str, float]:
    """Return by how much the engine's own counters rose in a run."""
    for fact in facts:
        if fact.name == "counters" and (fact.level, fact.repeat) == key:
            return fact.fact
    return {}


def _limit(samples: Sequence[ClientSample], key: Key) -> str:
    """Return why the client was the limit of a run; empty: it was not."""
    for sample in samples:
        if sample.client_limited and (sample.level, sample.repeat) == key:
            return limit_reason(sample)
    return ""


def _search_end(facts: Sequence[LevelFact]) -> SessionSearchEnd | None:
    ends = [fact.fact for fact in facts if fact.name == SESSION_SEARCH]
    return msgspec.convert(ends[-1], SessionSearchEnd) if ends else None


def session_cliff(levels: Sequence[AgentLevel]) -> SessionCliff | None:
    """Return the cliff that the levels show: the earlier one of turns and of hits."""
    cliffs = [cliff for cliff in (_cliff_of_turns(levels), _cliff_of_hits(levels)) if cliff]
    return min(cliffs, key=lambda cliff: cliff.sessions, default=None)


def _turns_point(level: AgentLevel) -> LevelPoint:
    return LevelPoint(level.sessions, level.turns_of_runs, limited=level.limited)


def _cliff_of_turns(levels: Sequence[AgentLevel]) -> SessionCliff | None:
    """Return where turns a minute surely fall below the best; None where the runs do not show
    it.
    """
    turning = find_turning(_turns_point(level) for level in levels)
    if turning.cliff is None or turning.cliff_bracket is None:
        return None
    _, beyond = turning.cliff_bracket
    return SessionCliff(turning.cliff, beyond, "turns", turning.drop_pct or 0.0)


def _cliff_of_hits(levels: Sequence[AgentLevel]) -> SessionCliff | None:
    """Return where hits surely leave the possible by ten points, behind a level at which they
    surely did not.
    """
    usable = [level for level in levels if level.lost_hits is not None and not level.limited]
    far = next((level for level in usable if _lost(level).low > CLIFF_HIT_LOSS), None)
    if far is None:
        return None
    smaller = [level for level in usable if level.sessions < far.sessions]
    if not any(_lost(level).high < CLIFF_HIT_LOSS for level in smaller):
        return None
    near = [level.sessions for level in smaller if _lost(level).estimate < CLIFF_HIT_LOSS]
    return SessionCliff(max(near), far.sessions, "hits", 100 * _lost(far).estimate)


def _lost(level: AgentLevel) -> Interval:
    assert level.lost_hits is not None
    return level.lost_hits


class HitTokens(msgspec.Struct):
    """Tokens of some turns: of their prompts, possible to hit, and hit."""

    prompt: int = 0
    possible: int = 0
    hit: int = 0

    def add(self, tokens: HitTokens) -> None:
        self.prompt += tokens.prompt
        self.possible += tokens.possible
        self.hit += tokens.hit

    @property
    def is_warm(self) -> bool:
        return self.hit >= WARM_SHARE * self.possible

    @property
    def lost_share(self) -> float:
        return max(0, self.possible - self.hit) / self.prompt


def turn_tokens(
    turns: Sequence[Request], plan: ConversationFact | None, *, shared_before: bool
) -> list[HitTokens]:
    """Return the tokens of each answered turn of one conversation.

    `shared_before`: the beginning that it shares with others had been computed before it began.
    """
    tokens: list[HitTokens] = []
    shared = 0
    previous: Request | None = None
    for turn in turns:
        if not turn.ok:
            break
        prompt = turn.prompt_tokens or 0
        if previous is None:
            if plan is not None and plan.first_tokens:
                shared = round(prompt * plan.shared_tokens / plan.first_tokens)
            possible = shared if shared_before else 0
        elif plan is not None and turn.turn in plan.anew:
            possible = shared
        else:
            possible = _possible_after(previous, prompt)
        hit = min(turn.engine.cached_tokens or 0, prompt)
        tokens.append(HitTokens(prompt, max(0, min(possible, prompt - 1)), hit))
        previous = turn
    return tokens


def _possible_after(previous: Request, prompt: int) -> int:
    """Return how many tokens of a prompt the turn before has computed: those of its own prompt,
    and of its answer where the prompt is long enough to hold it.
    """
    computed = previous.prompt_tokens or 0
    with_answer = computed + (previous.output_tokens or 0)
    if with_answer <= prompt:
        return with_answer
    return computed


class _PlayedRun:
    """One run of one level, its rows sorted into conversations and sessions."""

    def __init__(
        self,
        key: Key,
        rows: Sequence[Request],
        *,
        plans: Mapping[int, ConversationFact],
        counters: Mapping[str, float],
        limited: str,
        shared_since: Mapping[str, float],
        hits_told: bool,
    ) -> None:
        self.level, self._repeat = key
        self.rows = rows
        self.answered = [row for row in rows if row.ok]
        self.first_turns: list[Request] = []
        self.later_turns: list[Request] = []
        self.session_s: list[float] = []
        self.failed_sessions = 0
        self.total = HitTokens()
        self.by_session: dict[int, HitTokens] = {}  # with its sub-agents
        self.later_of_session: dict[int, HitTokens] = {}  # its own turns but the first
        self._counters = counters
        self.limited = limited
        self._hits_told = hits_told
        for number, turns in by_conversation(rows).items():
            plan = plans.get(number)
            self.first_turns += turns[:1]
            self.later_turns += turns[1:]
            since = shared_since.get(turns[0].traffic)
            shared_before = since is not None and since <= turns[0].started_s
            tokens = turn_tokens(turns, plan, shared_before=shared_before)
            session = plan.session if plan is not None else number
            for turn in tokens:
                self.total.add(turn)
                self.by_session.setdefault(session, HitTokens()).add(turn)
            if session == number:
                self._add_session(number, turns, tokens, plan)

    def _add_session(
        self,
        number: int,
        turns: Sequence[Request],
        tokens: Sequence[HitTokens],
        plan: ConversationFact | None,
    ) -> None:
        """Add how a session ended, and what its later turns hit."""
        if any(not turn.ok for turn in turns):
            self.failed_sessions += 1
        elif plan is None or len(turns) == plan.turns:
            self.session_s.append(turns[-1].ended_s - turns[0].started_s)
        for turn in tokens[1:]:
            self.later_of_session.setdefault(number, HitTokens()).add(turn)

    @property
    def wall_s(self) -> float:
        begin = min(row.started_s for row in self.rows)
        return max(row.ended_s for row in self.rows) - begin

    @property
    def hit_rate(self) -> float | None:
        """Return the share of prompt tokens that a cache had, by the answers' `usage`, else by the
        engine's own counters.

        Where an engine tells the hits of any request, one without that figure had none.
        """
        if self._hits_told and self.total.prompt:
            return self.total.hit / self.total.prompt
        return cached_share(self.answered, self._counters)

    @property
    def possible_hit_rate(self) -> float | None:
        if self.total.prompt:
            return self.total.possible / self.total.prompt
        return None

    @property
    def lost_hits(self) -> list[float]:
        """Return the share of its prompts' tokens that each session could have hit and did not;
        that of the whole run where the engine does not tell what single requests hit.
        """
        if self._hits_told:
            return [tokens.lost_share for tokens in self.by_session.values() if tokens.prompt]
        if self.hit_rate is None or self.possible_hit_rate is None:
            return []
        return [max(0.0, self.possible_hit_rate - self.hit_rate)]

    def figures(self) -> AgentRun:
        warm = None
        if self._hits_told:
            warm = sum(tokens.is_warm for tokens in self.later_of_session.values())
        preemptions = self._counters.get("preemptions")
        wall_s = self.wall_s
        turns = len(self.answered)
        ttft_ms = percentiles(ttft_values(self.later_turns))
        return AgentRun(
            repeat=self._repeat,
            wall_s=wall_s,
            sessions=len(self.session_s),
            turns=turns,
            turns_per_min=_per_minute(turns, wall_s) or 0.0,
            hit_rate=self.hit_rate,
            possible_hit_rate=self.possible_hit_rate,
            warm_sessions=warm,
            output_tok_s=_rate(self.output_tokens, wall_s) or 0.0,
            prompt_tok_s=_rate(self.total.prompt, wall_s),
            preemptions=None if preemptions is None else round(preemptions),
            failed=len(self.rows) - turns,
            session_p50_s=p50_of(percentiles(self.session_s)),
            ttft_p50_ms=p50_of(ttft_ms),
            ttft_p95_ms=p95_of(ttft_ms),
            limited=self.limited,
        )

    @property
    def output_tokens(self) -> int:
        return sum(row.output_tokens or 0 for row in self.answered)


def by_conversation(rows: Sequence[Request]) -> dict[int, list[Request]]:
    """Return the turns of each conversation, in their order."""
    conversations: dict[int, list[Request]] = {}
    for row in sorted(rows, key=lambda row: (row.session or 0, row.turn or 0)):
        conversations.setdefault(row.session or 0, []).append(row)
    return conversations


def _level(sessions: int, of_level: Sequence[_PlayedRun]) -> AgentLevel:
    played = _counted(of_level)
    runs = [run.figures() for run in played]
    rows = _pooled(played, lambda run: run.rows)
    answered = _pooled(played, lambda run: run.answered)
    session_s = _pooled(played, lambda run: run.session_s)
    wall_s = math.fsum(run.wall_s for run in runs)
    errors = Counter(row.error_kind for row in rows if row.error_kind)
    return AgentLevel(
        sessions=sessions,
        sessions_ended=len(session_s),
        sessions_failed=sum(run.failed_sessions for run in played),
        turns=len(answered),
        failed=len(rows) - len(answered),
        wall_s=wall_s,
        turns_per_min=_per_minute(len(answered), wall_s),
        turns_interval=runs_interval(run.turns_per_min for run in runs),
        session_s=percentiles(session_s),
        ttft_ms=percentiles(ttft_values(_pooled(played, lambda run: run.later_turns))),
        first_ttft_ms=percentiles(ttft_values(_pooled(played, lambda run: run.first_turns))),
        hit_rate=_mean_rate((run.hit_rate, run.total.prompt) for run in played),
        possible_hit_rate=_mean_rate((run.possible_hit_rate, run.total.prompt) for run in played),
        lost_hits=mean_t_interval(_pooled(played, lambda run: run.lost_hits)),
        warm_sessions=_known_sum(run.warm_sessions for run in runs),
        told_sessions=sum(len(run.later_of_session) for run in played),
        preemptions=_known_sum(run.preemptions for run in runs),
        output_tok_s=_rate(sum(run.output_tokens for run in played), wall_s),
        prompt_tok_s=_rate(sum(run.total.prompt for run in played), wall_s),
        runs=tuple(run.figures() for run in of_level),
        errors=tuple(errors.most_common()),
    )


def _counted(of_level: Sequence[_PlayedRun]) -> Sequence[_PlayedRun]:
    """Return the runs that the client did not limit, or all of them where it limited each."""
    return [run for run in of_level if not run.limited] or of_level


def _pooled(
    played: Sequence[_PlayedRun], items_of: Callable[[_PlayedRun], Sequence[Item]]
) -> list[Item]:
    """Return the items of all runs in one list."""
    return [item for run in played for item in items_of(run)]


def _known_sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the counts that are known; None if there are none."""
    known_counts = [count for count in counts if count is not None]
    return sum(known_counts) if known_counts else None


def _per_minute(turns: int, wall_s: float) -> float | None:
    if wall_s <= 0:
        return None
    return 60 * turns / wall_s


def _rate(tokens: int, wall_s: float) -> float | None:
    """Return tokens a second; None without tokens or time."""
    if not tokens or wall_s <= 0:
        return None
    return tokens / wall_s


def _mean_rate(rates: Iterable[tuple[float | None, int]]) -> float | None:
    """Return the mean of the rates that are known, each with its weight."""
    known_rates = [(rate, weight) for rate, weight in rates if rate is not None]
    weights = sum(weight for _, weight in known_rates)
    if not weights:
        return None
    return sum(rate * weight for rate, weight in known_rates) / weights
