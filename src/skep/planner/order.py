"""Which of several setups goes first, and why it goes before a faster one.

Each rule keeps some of the candidates that the rules before it have kept, and the last one decides. A rule that nobody
meets keeps all. Published pairs of setups on the same cards say how much a lead in speed is worth: the ratio of two
predictions is off by 18 % in half of them (594 pairs under 145 loads, predicted without their source).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from skep.planner.ranking import KNOWN_ENGINES, Rated, kernels_share
from skep.units import format_seconds

COMPARABLE = 0.8  # of the fastest's speed: a lead of less is no more than what half of the ratios are off by
HALF = 0.5  # of the fastest's speed: too slow to go first for what it holds
SAME_CONTEXT = 0.75  # of the largest context
SAME_FIRST_TOKEN = 1.25  # times the shortest wait
SHORT_WAIT_S = 1.0  # longer than the shortest: nobody minds
TASKS_OF_CONTEXT = 4  # a conversation that has grown to more tasks than this tells no layouts apart
SAME_SPEED = 0.95  # of the fastest's: the nicer setup goes first

Candidates = Sequence[Rated]
Preference = tuple[bool | float, ...]


def in_order(rated: Iterable[Rated]) -> list[Rated]:
    """Return them best first."""
    left = list(rated)
    ordered: list[Rated] = []
    while left:
        best = first_of(left)
        ordered.append(best)
        left.remove(best)
    return ordered


def first_of(candidates: Candidates) -> Rated:
    for rule, _ in RULES:
        candidates = rule(candidates)
    return max(candidates, key=preference)


def why_first(candidates: Candidates, shown: Candidates) -> str | None:
    """Return why the first of the candidates is not the fastest of those that are shown; None where it is."""
    first = first_of(candidates)
    fastest = max(shown, key=_shown_tok_s)
    if f"{_shown_tok_s(fastest):,.0f}" == f"{_shown_tok_s(first):,.0f}":
        return None
    for rule, reason in RULES:
        candidates = rule(candidates)
        if fastest not in candidates:
            return reason(first, fastest)
    if _shown_tok_s(first) < SAME_SPEED * _shown_tok_s(fastest):
        return _slow_alone(first, fastest)
    return f"{_nicer(first, fastest)}; {_words(fastest)} leads by less than 5 %"


def _nicer(first: Rated, fastest: Rated) -> str:
    """Name the first difference that decides between setups of the same speed."""
    reasons = (
        f"{first.setup.quant.title} keeps more bits of each weight than {fastest.setup.quant.title}",
        "a KV cache of 16 bits changes no answer",
        f"more measurements of {first.setup.engine} are known than of {fastest.setup.engine}",
        "less is known to slow it down",
        "it depends less on the versions of engine and driver",
    )
    decided = zip(preference(first), preference(fastest), reasons, strict=False)
    return next((reason for ours, theirs, reason in decided if ours != theirs), "its layout is simpler")


def preference(rated: Rated) -> Preference:
    """Return what decides between equals: bits of weights and KV, evidence, rules against it, a simple layout."""
    setup = rated.setup
    verdicts = [finding.verdict for finding in rated.findings]
    return (
        setup.quant.nominal,
        setup.kv.family == "half",
        setup.engine in KNOWN_ENGINES,
        -verdicts.count("costs"),
        -verdicts.count("depends"),
        -setup.layout.pp,
        setup.layout.ep,
        rated.score,
    )


# The rules, in their order


def _can_be_had(candidates: Candidates) -> Candidates:
    return _those(candidates, lambda rated: rated.published)


def _within_limits(candidates: Candidates) -> Candidates:
    """Keep those within --slo; where none is, those that miss it by least."""
    least = min(rated.over_limit for rated in candidates)
    most = max(1.0, least / SAME_SPEED)
    return [rated for rated in candidates if rated.over_limit <= most]


def _hold_all_agents(candidates: Candidates) -> Candidates:
    return _unless_half_as_fast(candidates, lambda rated: rated.holds_all)


def _leave_a_margin(candidates: Candidates) -> Candidates:
    return _unless_half_as_fast(candidates, lambda rated: not rated.on_paper)


def _stay_on_cards(candidates: Candidates) -> Candidates:
    return _unless_half_as_fast(candidates, lambda rated: not rated.setup.cpu_moe)


def _are_as_fast(candidates: Candidates) -> Candidates:
    """Keep those inside the error of the fastest.

    There is no such doubt about one agent's time, which is asked for by name, nor about TP of a dense model over slow
    links, which was measured to be slower than replicas: these are kept as near ties only.
    """
    best = max(candidates, key=lambda rated: rated.score)
    comparable = max(COMPARABLE, best.low / best.speed)

    def least_share(rated: Rated) -> float:
        is_sure = rated.goal.kind == "latency" or _is_slowed_by_links(rated) > _is_slowed_by_links(best)
        return SAME_SPEED if is_sure else comparable

    return [rated for rated in candidates if rated.score >= least_share(rated) * best.score]


def _is_slowed_by_links(rated: Rated) -> bool:
    costs = any(finding.rule == "links" and finding.verdict == "costs" for finding in rated.findings)
    return costs and not rated.setup.model.is_moe


def _have_context(candidates: Candidates) -> Candidates:
    most = max(map(_useful_context, candidates))
    return [rated for rated in candidates if _useful_context(rated) >= SAME_CONTEXT * most]


def _answer_soon(candidates: Candidates) -> Candidates:
    soonest = min(rated.outcome.ttft_s for rated in candidates)
    latest = max(SAME_FIRST_TOKEN * soonest, soonest + SHORT_WAIT_S)
    return [rated for rated in candidates if rated.outcome.ttft_s <= latest]


def _are_fastest(candidates: Candidates) -> Candidates:
    """Keep what is within 5 % of the best, with what a single agent gets counted."""
    best = max(rated.score for rated in candidates)
    return [rated for rated in candidates if rated.score >= SAME_SPEED * best]


def _those(candidates: Candidates, meets: Callable[[Rated], bool]) -> Candidates:
    return [rated for rated in candidates if meets(rated)] or candidates


def _unless_half_as_fast(candidates: Candidates, meets: Callable[[Rated], bool]) -> Candidates:
    good = _those(candidates, meets)
    fastest = max(rated.speed for rated in candidates)
    return good if max(rated.speed for rated in good) > HALF * fastest else candidates


def _useful_context(rated: Rated) -> float:
    return min(rated.context_each, TASKS_OF_CONTEXT * rated.goal.need_tokens)


# Why the fastest was left out, by rule


def _unpublished(_: Rated, fastest: Rated) -> str:
    return f"its checkpoint exists; none is known for {_words(fastest)}"


def _late(_: Rated, fastest: Rated) -> str:
    return f"it is nearer to --slo than {_words(fastest)}"


def _small(first: Rated, fastest: Rated) -> str:
    return f"it holds {first.slots} agents at once; {_words(fastest)} holds {fastest.slots}"


def _tight(_: Rated, fastest: Rated) -> str:
    return f"it leaves memory free; {_words(fastest)} fits on paper only"


def _in_ram(_: Rated, fastest: Rated) -> str:
    return f"it fits on the cards; {_words(fastest)} keeps experts in system memory"


def _slow_alone(first: Rated, fastest: Rated) -> str:
    if first.goal.kind == "latency":
        return f"--goal latency ranks by the time of one task, in which {_words(fastest)} is slower"
    if kernels_share(fastest.setup, fastest.card) < kernels_share(first.setup, first.card):
        cause = f"{fastest.setup.engine} has few kernels for {fastest.card.id}"
        return f"{cause}: {_words(fastest)} may not be reached"
    alone = f"{first.alone_tok_s:,.0f} tok/s for an agent alone against {fastest.alone_tok_s:,.0f}"
    return f"{alone}; {_words(fastest)} leads by less than plans are off"


def _narrow(first: Rated, fastest: Rated) -> str:
    held = f"{first.context_each:,} tokens of context each against {fastest.context_each:,}"
    return f"{held}; {_words(fastest)} leads by less than plans are off"


def _slow_to_begin(first: Rated, fastest: Rated) -> str:
    waits = [format_seconds(rated.outcome.ttft_s) for rated in (first, fastest)]
    told = f"the first token comes after {waits[0]} against {waits[1]}"
    return f"{told}; {_words(fastest)} leads by less than plans are off"


def _words(rated: Rated) -> str:
    setup = rated.setup
    drafts = f", {setup.spec}" if setup.spec is not None else ""
    what = f"{setup.layout}, {setup.quant.title}{drafts} ({setup.engine})"
    return f"{what} with {_shown_tok_s(rated):,.0f} tok/s"


def _shown_tok_s(rated: Rated) -> float:
    return rated.outcome.effective_tok_s


RULES: tuple[tuple[Callable[[Candidates], Candidates], Callable[[Rated, Rated], str]], ...] = (
    (_can_be_had, _unpublished),
    (_within_limits, _late),
    (_hold_all_agents, _small),
    (_leave_a_margin, _tight),
    (_stay_on_cards, _in_ram),
    (_are_as_fast, _slow_alone),
    (_have_context, _narrow),
    (_answer_soon, _slow_to_begin),
    (_are_fastest, _slow_alone),
)
