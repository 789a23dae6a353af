"""Which of several setups goes first, and why it goes before a faster one.

Each rule keeps some of the candidates that the rules before it have kept; between those that the
last one keeps, `preference` decides. A rule that no candidate meets keeps all.

Published pairs of setups on the same cards say how much a lead in speed is worth (734 pairs under
172 loads, predicted without their source): where the slower one is predicted at 70 to 80 % of the
faster one's speed, it was really faster in 24 % of the pairs; below 70 % in 6 %. Knows the figures
of a plan, not how they came about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from skep.catalog.engines import kind_of, most_measured_engine
from skep.planner.ranking import Rated, kernels_share
from skep.units import format_seconds

# of the fastest's speed: who is slower than that loses clearly, however wide the band is
COMPARABLE_SPEED = 0.7
# of the fastest form of a layout: people do not see the forms that were not chosen
COMPARABLE_FORM_SPEED = 0.8
# of the fastest's speed: too slow to go first for a margin or for staying on the cards
HALF_SPEED = 0.5
WITH_ROOM = 0.85  # of the fastest's speed: slower than that, room for every agent is not worth it
SAME_CONTEXT = 0.75  # of the largest context; below it agents run out of room sooner
SESSION_TASKS = 2  # tasks that a conversation grows to: more context counts only if it is twice
MOST_TASKS = 8  # context for more tasks than that tells no layouts apart
SPARE_SESSIONS = 1.5  # times the agents: so many should stay warm
SAME_SESSION = 0.5  # of the largest context, where both hold a session
SAME_FIRST_TOKEN = 1.25  # times the shortest wait
SHORT_WAIT_S = 1.5  # longer than the shortest: nobody minds
FEW_SPLIT = 2  # cards over which llama.cpp's tensor split has been tried
SAME_SPEED = 0.95  # of the fastest's speed: as fast, so that other figures decide
SETUPS_NAMED = 3  # of the setups that a rule left out; the others are counted

Candidates = Sequence[Rated]
Preference = tuple[bool | float, ...]


def in_order(rated: Iterable[Rated]) -> list[Rated]:
    """Return the candidates best first."""
    unplaced = list(rated)
    ordered: list[Rated] = []
    while unplaced:
        best = first_of(unplaced)
        ordered.append(best)
        unplaced.remove(best)
    return ordered


def first_of(candidates: Candidates) -> Rated:
    """Return the best of what the last rule keeps."""
    for rule, _ in RULES:
        candidates = rule(candidates)
    return max(candidates, key=preference)


def best_form(forms: Candidates) -> Rated:
    """Return the form that stands for a layout with one format: forms differ in KV type and
    drafts.
    """
    for rule in FORM_RULES:
        forms = rule(forms)
    return max(forms, key=preference)


def why_first(candidates: Candidates, listed: Candidates) -> str | None:
    """Return why the first of the candidates goes before each faster one that is shown; None where
    it is the fastest.

    Each rule that left out a faster one adds a clause.
    """
    first = first_of(candidates)
    faster = [rated for rated in listed if _is_shown_faster(rated, first)]
    faster.sort(key=_shown_speed, reverse=True)
    clauses = []
    for rule, reason in RULES:
        remaining = rule(candidates)
        lost = [rated for rated in faster if rated in candidates and rated not in remaining]
        if lost:
            clauses.append(reason(first, lost))
        candidates = remaining
    near_ties: dict[str, list[Rated]] = {}
    for rated in faster:
        if rated in candidates:
            difference = _deciding_difference(first, rated)
            near_ties.setdefault(difference, []).append(rated)
    clauses += [_near_tie(first, rows, difference) for difference, rows in near_ties.items()]
    return "; ".join(clauses) or None


def what_room_costs(candidates: Candidates) -> str | None:
    """Return what room for every agent would cost; None where the first has it, or none has."""
    first = first_of(candidates)
    if first.holds_all:
        return None
    roomy = [
        rated
        for rated in candidates
        if rated.holds_all
        and rated.published >= first.published
        and rated.window_tokens >= min(first.window_tokens, first.goal.least_window_tokens)
    ]
    if not roomy:
        return None
    best = first_of(roomy)
    lost = 1 - best.speed / first.speed
    cost = f"room for all {first.goal.agents} costs {lost:.0%} of the speed"
    return f"{cost}: {_name(best)}"


def _is_shown_faster(rated: Rated, first: Rated) -> bool:
    digits = 0 if rated.session is None else 1
    speed = round(_shown_speed(rated), digits)
    speed_of_first = round(_shown_speed(first), digits)
    return speed > speed_of_first


def _deciding_difference(first: Rated, near: Rated) -> str:
    """Name the first difference that decides between setups of the same speed."""
    for figure, reason in PREFERENCES:
        if figure(first) != figure(near):
            return reason.format(first=first.setup.engine, near=near.setup.engine)
    return "nothing tells them apart"


def preference(rated: Rated) -> Preference:
    """Return what decides between equals, the most important figure first."""
    return tuple(figure(rated) for figure, _ in PREFERENCES)


def _count_findings(rated: Rated, verdict: str) -> int:
    return sum(finding.verdict == verdict for finding in rated.findings)


# The rules, in their order


def _keep_published(candidates: Candidates) -> Candidates:
    return _keep_meeting(candidates, lambda rated: rated.published)


def _keep_within_limits(candidates: Candidates) -> Candidates:
    """Keep those within --slo; where none is, those that miss it by least."""
    smallest_miss = min(rated.over_limit for rated in candidates)
    allowed = max(1.0, smallest_miss / SAME_SPEED)
    return [rated for rated in candidates if rated.over_limit <= allowed]


def _keep_known_to_start(candidates: Candidates) -> Candidates:
    return _keep_meeting(candidates, lambda rated: rated.no_start is None)


def _keep_enough_context(candidates: Candidates) -> Candidates:
    """Keep those in which a session has the context that it needs, and if it costs less than half
    of the speed, the one that is planned.
    """
    goal = candidates[0].goal
    able = _keep_meeting(candidates, lambda rated: rated.window_tokens >= goal.least_window_tokens)
    return _keep_unless_slower(
        able, lambda rated: rated.window_tokens >= goal.window_tokens, HALF_SPEED
    )


def _keep_with_room_for_all(candidates: Candidates) -> Candidates:
    return _keep_unless_slower(candidates, lambda rated: rated.holds_all, WITH_ROOM)


def _keep_with_margin(candidates: Candidates) -> Candidates:
    return _keep_unless_slower(candidates, lambda rated: not rated.on_paper, HALF_SPEED)


def _keep_on_cards(candidates: Candidates) -> Candidates:
    return _keep_unless_slower(candidates, lambda rated: not rated.setup.cpu_moe, HALF_SPEED)


def _drop_experiments(candidates: Candidates) -> Candidates:
    """Leave out llama.cpp's tensor split over many cards on PCIe, where a layout of the engine
    with most measurements was measured on such cards.
    """
    measured_engines = {rated.setup.engine for rated in candidates if rated.measured}
    if most_measured_engine() not in measured_engines:
        return candidates
    return _keep_unless_slower(candidates, lambda rated: not _is_experiment(rated), HALF_SPEED)


def _is_experiment(rated: Rated) -> bool:
    link = rated.prospect.link
    over_pcie = link is None or link.kind != "nvlink"
    split = kind_of(rated.setup.engine).reads_gguf and rated.setup.layout.tp > FEW_SPLIT
    return split and over_pcie and not rated.measured


def _keep_comparable(candidates: Candidates) -> Candidates:
    return _keep_inside_band(candidates, COMPARABLE_SPEED)


def _keep_comparable_forms(forms: Candidates) -> Candidates:
    return _keep_inside_band(forms, COMPARABLE_FORM_SPEED)


def _keep_inside_band(candidates: Candidates, share: float) -> Candidates:
    """Keep those inside the band of the fastest that do not lose clearly.

    There is no such doubt about one agent's time, which is asked for by name: near ties only.
    """
    fastest = max(candidates, key=lambda rated: rated.speed)
    slowest = max(share * fastest.speed, fastest.low)
    if fastest.goal.kind == "latency":
        slowest = SAME_SPEED * fastest.speed
    return [rated for rated in candidates if rated.speed >= slowest]


def _keep_largest_context(candidates: Candidates) -> Candidates:
    """Keep those with about the largest context; where all hold a session, half of it is as
    good. Where sessions are planned, keep those with room for a few more: sub-agents, and
    sessions that have grown.
    """
    goal = candidates[0].goal
    if goal.shape is not None:
        return _keep_meeting(candidates, lambda rated: _has_spare_room(rated, goal.agents))
    largest = max(map(_useful_context, candidates))
    session = SESSION_TASKS * goal.need_tokens
    about_as_much = min(SAME_CONTEXT * largest, session)
    enough = max(about_as_much, SAME_SESSION * largest)
    return [rated for rated in candidates if _useful_context(rated) >= enough]


def _has_spare_room(rated: Rated, agents: int) -> bool:
    """Return whether a few more sessions stay warm than there are agents. Slots with memory of
    their own hold one session each, however much memory that is.
    """
    return (
        not kind_of(rated.setup.engine).has_pool or rated.warm_sessions >= SPARE_SESSIONS * agents
    )


def _keep_soonest(candidates: Candidates) -> Candidates:
    """Keep those whose first token comes about as soon as the soonest. Of sessions, turns a minute
    count the wait already.
    """
    if candidates[0].goal.shape is not None:
        return candidates
    soonest = min(rated.first_token_s for rated in candidates)
    latest = max(SAME_FIRST_TOKEN * soonest, soonest + SHORT_WAIT_S)
    return [rated for rated in candidates if rated.first_token_s <= latest]


def _keep_fastest(candidates: Candidates) -> Candidates:
    """Keep what is within 5 % of the fastest."""
    slowest = SAME_SPEED * _highest_speed(candidates)
    return [rated for rated in candidates if rated.speed >= slowest]


def _drop_beaten(candidates: Candidates) -> Candidates:
    """Leave out what another beats in speed, context and first token at once: nothing makes up for
    that.
    """
    return [
        rated
        for rated in candidates
        if not any(_beats(candidate, rated) for candidate in candidates)
    ]


def _beats(rival: Rated, rated: Rated) -> bool:
    """Return whether a rival is better in all three.

    Where both hold the same context, more bits of each weight may make up for the rest.
    """
    if rival.speed <= rated.speed or rival.first_token_s >= rated.first_token_s:
        return False
    if rival.context_each == rated.context_each:
        return rival.setup.quant.nominal >= rated.setup.quant.nominal
    return rival.context_each > rated.context_each


def _keep_most_bits(candidates: Candidates) -> Candidates:
    bits = [rated.setup.quant.nominal for rated in candidates]
    most_bits = max(bits)
    return [rated for rated in candidates if rated.setup.quant.nominal == most_bits]


def _keep_fastest_alone(candidates: Candidates) -> Candidates:
    """Keep what is within 5 % of the best with what a single agent gets counted."""
    best = max(rated.score for rated in candidates)
    lowest = SAME_SPEED * best
    return [rated for rated in candidates if rated.score >= lowest]


def _keep_meeting(candidates: Candidates, meets: Callable[[Rated], bool]) -> Candidates:
    """Keep those that meet a condition; all of them where none does."""
    meeting = [rated for rated in candidates if meets(rated)]
    if meeting:
        return meeting
    return candidates


def _keep_unless_slower(
    candidates: Candidates, meets: Callable[[Rated], bool], share: float
) -> Candidates:
    """Keep those that meet a condition, unless the best of them has no more than `share` of the
    fastest's speed.
    """
    good = _keep_meeting(candidates, meets)
    too_slow = share * _highest_speed(candidates)
    if _highest_speed(good) > too_slow:
        return good
    return candidates


def _highest_speed(candidates: Candidates) -> float:
    return max(rated.speed for rated in candidates)


def _useful_context(rated: Rated) -> float:
    return min(rated.context_each, MOST_TASKS * rated.goal.need_tokens)


# Why faster ones were left out, by rule


def _why_published(_: Rated, faster: Candidates) -> str:
    return f"its checkpoint exists, while none is known for {_names(faster)}"


def _why_within_limits(_: Rated, faster: Candidates) -> str:
    return f"it is nearer to --slo than {_names(faster)}"


def _why_known_to_start(_: Rated, faster: Candidates) -> str:
    return f"somebody with such cards could not start {_names(faster)}"


def _why_enough_context(first: Rated, faster: Candidates) -> str:
    windows = [rated.window_tokens for rated in faster]
    verb = _verb(faster, "gives", "give")
    return (
        f"a session has a context of {first.window_tokens:,} tokens, while {_names(faster)} "
        f"{verb} {max(windows):,}{_at_most(windows)}"
    )


def _why_room_for_all(first: Rated, faster: Candidates) -> str:
    held = [rated.slots for rated in faster]
    verb = _verb(faster, "holds", "hold")
    return (
        f"it holds {first.slots} agents at once, while {_names(faster)} {verb} "
        f"{max(held)}{_at_most(held)}"
    )


def _why_margin(_: Rated, faster: Candidates) -> str:
    return (
        f"it leaves memory free, while {_names(faster)} {_verb(faster, 'fits', 'fit')} on paper "
        "only"
    )


def _why_on_cards(_: Rated, faster: Candidates) -> str:
    verb = _verb(faster, "keeps", "keep")
    return f"it fits on the cards, while {_names(faster)} {verb} experts in system memory"


def _why_tried(_: Rated, faster: Candidates) -> str:
    verb = _verb(faster, "is", "are")
    cause = (
        "llama.cpp's tensor split over PCIe, experimental and measured by nobody on so many cards"
    )
    title = kind_of(most_measured_engine()).title
    return f"{title} was measured on such cards, while {_names(faster)} {verb} {cause}"


def _why_comparable(first: Rated, faster: Candidates) -> str:
    """Say why figures that are shown higher count for less."""
    doubted = [rated for rated in faster if _is_doubted(first, rated)]
    others = [rated for rated in faster if not _is_doubted(first, rated)]
    clauses = []
    if doubted:
        engines = dict.fromkeys(rated.setup.engine for rated in doubted)
        verb = "has" if len(engines) == 1 else "have"
        named_engines = " and ".join(engines)
        cause = f"{named_engines} {verb} few kernels for {doubted[0].card.id}"
        clauses.append(f"{cause}, so that {_names(doubted)} may not be reached")
    if others:
        verb = _verb(others, "is", "are")
        clauses.append(
            f"--goal latency ranks by the time of one task, in which {_names(others)} "
            f"{verb} slower"
        )
    return "; ".join(clauses)


def _near_tie(first: Rated, faster: Candidates, reason: str) -> str:
    """Say what decided between setups of the same speed, unless the figures that are shown are not
    that near.
    """
    others = faster
    if first.goal.kind != "latency":
        others = [rated for rated in faster if _is_doubted(first, rated)]
    near = [rated for rated in faster if rated not in others]
    clauses = []
    if others:
        clauses.append(_why_comparable(first, others))
    if near:
        clauses.append(f"{reason}, while {_lead(near)} by less than 5 %")
    return "; ".join(clauses)


def _is_doubted(first: Rated, faster: Rated) -> bool:
    """Return whether the faster one's engine has fewer kernels for its card."""
    share_of_faster = kernels_share(faster.setup, faster.card)
    share_of_first = kernels_share(first.setup, first.card)
    return share_of_faster < share_of_first


def _why_larger_context(first: Rated, faster: Candidates) -> str:
    if first.goal.shape is not None:
        warm = [rated.warm_sessions for rated in faster]
        return (
            f"{first.warm_sessions} sessions stay warm against {max(warm)}{_at_most(warm)}, "
            f"while {_lead(faster)} by less than plans are off"
        )
    contexts = [rated.context_each for rated in faster]
    held = (
        f"{first.context_each:,} tokens of context each against "
        f"{max(contexts):,}{_at_most(contexts)}"
    )
    return f"{held}, while {_lead(faster)} by less than plans are off"


def _why_soonest(first: Rated, faster: Candidates) -> str:
    soonest = min(rated.first_token_s for rated in faster)
    wait = format_seconds(first.first_token_s)
    waits = f"{wait} against {format_seconds(soonest)}"
    lead = _lead(faster)
    return f"the first token comes after {waits}, while {lead} by less than plans are off"


def _why_not_beaten(_: Rated, faster: Candidates) -> str:
    return (
        "another layout is faster, has no less context and a sooner first token than "
        f"{_names(faster)}"
    )


def _why_more_bits(first: Rated, faster: Candidates) -> str:
    reason = f"{first.setup.quant.title} keeps more bits of each weight"
    return _near_tie(first, faster, reason)


def _why_fastest_alone(first: Rated, faster: Candidates) -> str:
    fastest = max(rated.alone_tok_s for rated in faster)
    reason = f"{first.alone_tok_s:,.0f} tok/s for an agent alone against {fastest:,.0f}"
    return _near_tie(first, faster, reason)


def _lead(faster: Candidates) -> str:
    return f"{_names(faster)} {_verb(faster, 'leads', 'lead')}"


def _verb(rows: Candidates, singular: str, plural: str) -> str:
    return singular if len(rows) == 1 else plural


def _at_most(figures: Sequence[int]) -> str:
    return " at most" if len(set(figures)) > 1 else ""


def _names(rows: Candidates) -> str:
    """Return the first few by name, and how many more there are."""
    names = [_name(rated) for rated in rows[:SETUPS_NAMED]]
    rest = len(rows) - SETUPS_NAMED
    if rest > 0:
        names.append(f"{rest} more")
    *heads, last = names
    if not heads:
        return last
    listed = ", ".join(heads)
    return f"{listed} and {last}"


def _name(rated: Rated) -> str:
    setup = rated.setup
    drafts = f", {setup.spec}" if setup.spec is not None else ""
    form = f"{setup.quant.title}{drafts}"
    speed = f"{_shown_speed(rated):,.0f} tok/s"
    if rated.session is not None:
        speed = f"{_shown_speed(rated):,.1f} turns/min"
    return f"{setup.layout}, {form} ({setup.engine}) with {speed}"


def _shown_speed(rated: Rated) -> float:
    if rated.session is not None:
        return rated.session.turns_per_min
    return rated.outcome.effective_tok_s


RULES: tuple[
    tuple[Callable[[Candidates], Candidates], Callable[[Rated, Candidates], str]], ...
] = (
    (_keep_published, _why_published),
    (_keep_within_limits, _why_within_limits),
    (_keep_known_to_start, _why_known_to_start),
    (_keep_enough_context, _why_enough_context),
    (_keep_with_room_for_all, _why_room_for_all),
    (_keep_with_margin, _why_margin),
    (_keep_on_cards, _why_on_cards),
    (_drop_experiments, _why_tried),
    (_keep_comparable, _why_comparable),
    (_keep_largest_context, _why_larger_context),
    (_keep_soonest, _why_soonest),
    (_keep_fastest, _why_comparable),
    (_drop_beaten, _why_not_beaten),
    (_keep_most_bits, _why_more_bits),
    (_keep_fastest_alone, _why_fastest_alone),
)


def _form_rules() -> tuple[Callable[[Candidates], Candidates], ...]:
    """Return the rules between forms of one layout: those of `RULES` with a narrower band, and
    without the one that leaves out what is beaten.
    """
    rules: list[Callable[[Candidates], Candidates]] = []
    for rule, _ in RULES:
        if rule is _keep_comparable:
            rules.append(_keep_comparable_forms)
        elif rule is not _drop_beaten:
            rules.append(rule)
    return tuple(rules)


FORM_RULES = _form_rules()

# What decides between equals: a figure, of which more is better, and what it says of the first
PREFERENCES: tuple[tuple[Callable[[Rated], bool | float], str], ...] = (
    (lambda rated: rated.setup.kv.family == "half", "a KV cache of 16 bits changes no answer"),
    (
        lambda rated: kind_of(rated.setup.engine).well_measured,
        "more measurements of {first} are known than of {near}",
    ),
    (lambda rated: -_count_findings(rated, "costs"), "less is known to slow it down"),
    (
        lambda rated: -_count_findings(rated, "depends"),
        "it depends less on the versions of engine and driver",
    ),
    (lambda rated: -rated.setup.layout.pp, "it has fewer pipeline stages"),
    (lambda rated: rated.setup.layout.ep, "its experts are spread over more cards"),
    (lambda rated: rated.score, "more tok/s for an agent alone"),
)
