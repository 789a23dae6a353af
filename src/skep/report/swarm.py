"""The report of a swarm's run: one page that needs no other file and no network, and its picture alone.

Pure: takes a story, gives text. The caller writes the file. What a run did not finish, simulate or measure is said on
the page, next to the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skep.records import Percentiles
from skep.report.figures import UNKNOWN, fact_list, moment, number, public_name, public_url, seconds, shortened
from skep.report.markup import Markup, banner, card, definitions, join, section, tag, text, trusted, wide_figure
from skep.report.style import document, mark
from skep.report.swarm_gantt import gantt, gantt_caption, gantt_element
from skep.report.swarm_story import Account, SwarmStory
from skep.report.swarm_tables import (
    agent_table,
    error_table,
    failure_table,
    replica_table,
    session_table,
    slow_table,
)
from skep.report.swarm_words import headline, outcome_words, share
from skep.tasks import RunState

__all__ = ["gantt", "swarm_page"]

_KINDS = {"map": "a list of tasks", "ask": "a goal, split among agents"}
_SHORT_GOAL = 140

_TERMS = {
    "Wall time": """From the beginning of each session to its end, or to its last attempt where every task has its
        result, added up. Pauses between sessions are not counted; time in which the endpoint was down is.""",
    "Effective tok/s": """Output tokens of the results over the wall time. Attempts that brought no result count with
        their time, not with tokens.""",
    "Seconds of a task": """From the start of its first attempt to its result, retries included, pauses between sessions
        left out.""",
    "TTFT": "Time to first token of the attempts that counted, from sending the request, the gateway's queue included.",
    "Agents at once": "Attempts under way at the same moment; the mean is over the wall time.",
    "Queued": "Of the time of all attempts, the part in the gateway's queue, as the gateway told it.",
    "Tokens": "Counted by the engine and taken from the usage field of each answer, never by counting chunks.",
    "Energy": "Of the GPUs of this machine, as their driver tells it, while the run worked; nothing else is measured.",
}


def swarm_page(story: SwarmStory) -> str:
    account = story.account
    title = _heading(account)
    header = tag(
        "header",
        mark(_KINDS.get(account.kind, "swarm run")),
        tag("h1", text(title)),
        tag("p", text(_where(story)), class_="where"),
        *_banners(account, story),
        tag("p", text(f"{headline(account)}."), class_="lead"),
    )
    main = tag(
        "main",
        _cards(account),
        _optional("picture", "Agent by agent", _picture(story)),
        _optional("failures", "Set aside", failure_table(story)),
        section("figures", "The account", _figures(story)),
        _optional("errors", "What went wrong on the way", error_table(account)),
        _optional("slow", "The slowest", slow_table(story)),
        _optional("replicas", "By replica", replica_table(account)),
        _optional("agents", "By agent", agent_table(account)),
        _optional("sessions", "Sessions", session_table(story)),
        section("how", "How each figure was made", _terms()),
    )
    footer = tag("footer", text(f"skep {story.run.skep_version} · run {account.run}"))
    return document(f"{title}: skep swarm", header, main, footer)


def _heading(account: Account) -> str:
    name = shortened(" ".join(account.name.split()), _SHORT_GOAL) or "Swarm run"
    return f"{name} (simulated)" if account.simulated else name


def _where(story: SwarmStory) -> str:
    model = public_name(story.account.model) if story.account.model else "model not told"
    return f"{model} · {public_url(story.run.url)} · {moment(story.run.created_at)}"


def _banners(account: Account, story: SwarmStory) -> list[Markup]:
    banners = []
    if account.state is not RunState.DONE:
        why = f" The last session ended with: {shortened(story.run.error, 300)}" if story.run.error else ""
        told = f"This run is {account.state.value}; {account.left} of {account.tasks} tasks have no result.{why}"
        banners.append(banner("incomplete", "Incomplete", told))
    if account.failed:
        told = f"{account.failed} of {account.tasks} tasks were set aside after all their tries; they are listed below."
        banners.append(banner("limited", "Set aside", told))
    if account.simulated:
        told = "No model ran. Speed and answers are a prediction, served in real time over the real protocol."
        banners.append(banner("simulated", "Simulated", told))
    return banners


def _cards(account: Account) -> Markup:
    done = f"{number(account.done, digits=0)} of {number(account.tasks, digits=0)}"
    return tag(
        "dl",
        card(seconds(account.wall_s), "Wall time", _wall_note(account)),
        card(number(account.effective_tok_s), "Effective tok/s", f"{_at_once(account)} at once"),
        card(done, "Tasks done", outcome_words(account) or "each at the first try"),
        class_="cards",
    )


def _wall_note(account: Account) -> str:
    parts = [f"{account.sessions} session{'' if account.sessions == 1 else 's'}"]
    if account.paused_s >= 1 and account.sessions > 1:
        parts.append(f"{seconds(account.paused_s)} of pauses not counted")
    if account.down_s >= 1:
        parts.append(f"{seconds(account.down_s)} of it the endpoint was down")
    return ", ".join(parts)


def _at_once(account: Account) -> str:
    mean = number(account.agents_mean) if account.agents_mean is not None else UNKNOWN
    return f"{mean} agents on average, {account.agents_max} at most"


def _picture(story: SwarmStory) -> Markup | None:
    drawn = gantt_element(story)
    if drawn is None:
        return None
    return wide_figure(trusted(drawn), "Every attempt", gantt_caption(story))


def _figures(story: SwarmStory) -> Markup:
    account = story.account
    groups = [("Work", _work(story)), ("Time", _time(account)), ("Tokens", _tokens(account))]
    energy = _energy(account)
    if energy:
        groups.append(("Energy", energy))
    groups.append(("Asked for", [("run", account.run), *fact_list(_shown(story.run.config))]))
    return tag("div", *(definitions(title, facts) for title, facts in groups), class_="columns")


def _work(story: SwarmStory) -> list[tuple[str, str]]:
    account = story.account
    facts = [
        ("tasks", number(account.tasks, digits=0)),
        ("done", number(account.done, digits=0)),
        ("set aside", number(account.failed, digits=0)),
        ("left", number(account.left, digits=0)),
        ("tried more than once", number(account.retried, digits=0)),
        ("attempts", f"{number(account.attempts, digits=0)}, {number(account.wasted, digits=0)} without a result"),
        ("cut at the limit", f"{number(account.truncated, digits=0)} answers"),
        ("state", account.state.value),
    ]
    if story.stages:
        facts.append(("stages", ", ".join(f"{stage}: {many} tasks" for stage, many in story.stages)))
    return facts


def _time(account: Account) -> list[tuple[str, str]]:
    return [
        ("wall", seconds(account.wall_s)),
        ("a task", f"{_pair(account.task_s)}, {seconds(account.task_max_s)} at most"),
        ("first token", _pair(account.ttft_s)),
        ("agents at once", _at_once(account)),
        ("queued", f"{share(account.queued_share)} of the agents' time"),
        ("endpoint down", seconds(account.down_s)),
        ("pauses", seconds(account.paused_s)),
    ]


def _pair(found: Percentiles | None) -> str:
    return f"{seconds(found.p50)} p50, {seconds(found.p95)} p95" if found else UNKNOWN


def _tokens(account: Account) -> list[tuple[str, str]]:
    facts = [
        ("in", number(account.prompt_tokens, digits=0)),
        ("out", number(account.output_tokens, digits=0)),
        ("out, without a result", number(account.wasted_output_tokens, digits=0)),
        ("effective", f"{number(account.effective_tok_s)} tok/s"),
    ]
    if account.tokens_unknown:
        facts.append(("not told", f"{number(account.tokens_unknown, digits=0)} answers came without their tokens"))
    return facts


def _energy(account: Account) -> list[tuple[str, str]]:
    told = account.energy
    if told is None:
        return []
    energy = told.energy
    facts = [
        ("GPUs", f"{number(energy.joules)} J, {told.kwh:.4g} kWh"),
        ("J per output token", number(energy.joules_per_token)),
        ("power", f"{number(energy.mean_w, digits=0)} W on average, {number(energy.max_w, digits=0)} W at most"),
        ("measured by", energy.source),
    ]
    if energy.throttled:
        facts.append(("throttled", ", ".join(energy.throttled)))
    if told.cost is not None:
        facts.append(("cost", f"{told.cost:.4g} at {told.price_kwh:g}/kWh"))
    return facts


def _shown(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is unset, and without the output's path: a page is made to be passed on."""
    return {key: value for key, value in config.items() if value is not None and key not in ("output", "ask")}


def _optional(anchor: str, title: str, body: Markup | None) -> Markup | None:
    return section(anchor, title, body) if body else None


def _terms() -> Markup:
    entries = (
        tag("div", tag("dt", text(name)), tag("dd", text(" ".join(body.split())))) for name, body in _TERMS.items()
    )
    return tag("dl", join(entries), class_="terms")
