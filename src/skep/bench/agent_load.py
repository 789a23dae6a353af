"""Agents' sessions as a load: N of them are held at once, each sends turn after turn.

A session is played as its script says: the answers go back as the engine gave them, tools take
their pauses, sub-agents run between two turns and are waited for. `skep bench agents` compares
levels of such loads; what its rows say is worked out in `agent_figures.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count

import msgspec
from msgspec.structs import replace

from skep.bench.agent_figures import (
    CONVERSATIONS,
    SESSION_SEARCH,
    AgentsSummary,
    ConversationFact,
    agents_summary,
)
from skep.bench.agent_search import SessionRounds, SessionSearch
from skep.bench.endpoint import Endpoint
from skep.bench.load_shapes import OnRow
from skep.bench.metrics import repeat_of
from skep.bench.session import Identity, OnProgress, Recording, RunSession, fingerprint_of
from skep.bench.stored_run import AGENTS
from skep.bench.sweep import most_agents
from skep.bench.tasks import BenchTask, Sender
from skep.catalog.gpus import HostFacts
from skep.catalog.session_shapes import ScriptedTurn, SessionScript
from skep.errors import EndpointError
from skep.host.power import PowerMeter
from skep.store.database import Store
from skep.store.records import LevelFact, Request
from skep.workload.session_text import SessionTexts

FEWEST_SESSIONS = 4  # of a run of a level, unless asked otherwise
SESSIONS_EACH = 2  # in a run, for each session that is held at once
CONNECTIONS_EACH = 6  # of a session: its own and those of its sub-agents
WARM_UP_TOKENS = 4
WARM_UP_QUESTION = "Are you ready?"
MOST_WARM_UPS = 8  # shared beginnings that are sent ahead of the first level
SESSION_HEADER = "x-skep-session"
# The name by which a gateway tells a sub-agent from the session that it belongs to.
AGENT_HEADER = "x-claude-code-agent-id"

# Returns so many sessions, the same ones each time.
ScriptsOf = Callable[[int], Sequence[SessionScript]]


class AgentPlan(msgspec.Struct, frozen=True):
    """What is measured: how many sessions at once, how many in all, and how they are cut."""

    load: str  # the name of a shape or of a trace
    concurrency: tuple[int, ...] = (1, 2, 4, 8)
    # Instead of these levels, double from one session until two levels lie past the cliff.
    finds_cliff: bool = False
    # In a run of a level; None: two for each that is held at once, four at least.
    sessions: int | None = None
    runs: int = 1
    turns_at_most: int | None = None
    pause_scale: float = 1.0
    window_tokens: int | None = None
    seed: int = 0
    timeout_s: float = 900.0

    def sessions_at(self, level: int) -> int:
        usual = max(FEWEST_SESSIONS, SESSIONS_EACH * level)
        return max(level, self.sessions or usual)

    @property
    def widest(self) -> int:
        if self.finds_cliff:
            return most_agents() // CONNECTIONS_EACH
        return max(self.concurrency)


class PlannedConversation(msgspec.Struct, frozen=True):
    """A script with its place in a run: its number, its session's, and where its rows begin."""

    number: int
    session: int
    first_index: int
    script: SessionScript
    # By the number of the turn after whose answer they begin.
    subagents: Mapping[int, tuple[PlannedConversation, ...]] = {}

    @property
    def is_subagent(self) -> bool:
        return self.number != self.session

    def all(self) -> Iterator[PlannedConversation]:
        """Yield it and its sub-agents'."""
        yield self
        for children in self.subagents.values():
            for child in children:
                yield from child.all()

    def fact(self) -> ConversationFact:
        """Return what the figures need to know of it, beside its rows."""
        turns = self.script.turns
        return ConversationFact(
            number=self.number,
            session=self.session,
            turns=len(turns),
            shared_tokens=self.script.shared_tokens,
            first_tokens=self.script.shared_tokens + turns[0].new_tokens,
            anew=tuple(number for number, turn in enumerate(turns) if turn.begins_anew),
        )


# Is given a conversation and the number of the turn that was answered.
Hold = Callable[[PlannedConversation, int], Awaitable[None]]


def planned(scripts: Sequence[SessionScript]) -> list[PlannedConversation]:
    """Number the sessions from 0, their sub-agents behind the last one."""
    numbers = count(len(scripts))
    next_index = 0

    def plan(script: SessionScript, number: int, session: int) -> PlannedConversation:
        nonlocal next_index
        first_index = next_index
        next_index += len(script.turns)
        subagents = {
            turn_number: tuple(plan(child, next(numbers), session) for child in turn.subagents)
            for turn_number, turn in enumerate(script.turns)
            if turn.subagents
        }
        return PlannedConversation(number, session, first_index, script, subagents)

    return [plan(script, number, number) for number, script in enumerate(scripts)]


def cut_short(script: SessionScript, turns_at_most: int | None) -> SessionScript:
    """Return at most so many turns of a session; sub-agents are cut alike."""
    if turns_at_most is None:
        return script
    turns = tuple(_cut_turn(turn, turns_at_most) for turn in script.turns[:turns_at_most])
    return replace(script, turns=turns)


def _cut_turn(turn: ScriptedTurn, turns_at_most: int) -> ScriptedTurn:
    children = tuple(cut_short(child, turns_at_most) for child in turn.subagents)
    return replace(turn, subagents=children)


class SessionPlayer:
    """Plays the conversations of one run of one level, and hands every row on as it ends."""

    def __init__(
        self,
        sender: Sender,
        on_row: OnRow,
        texts: SessionTexts,
        *,
        level: int,
        repeat: int,
        name: str,
        pause_scale: float = 1.0,
        hold: Hold | None = None,
    ) -> None:
        """`name`: the beginning of the sessions' names, so that no other run has the same. `hold`:
        awaited after each answer but the last, before its tools run.
        """
        self._sender = sender
        self._on_row = on_row
        self._texts = texts
        self._level = level
        self._repeat = repeat
        self._name = name
        self._pause_scale = pause_scale
        self._hold = hold

    async def play(self, conversation: PlannedConversation) -> None:
        """Send turn after turn until the last one is answered or one fails."""
        script = conversation.script
        system = {
            "role": "system",
            "content": self._texts.shared(script.shared_name, script.shared_tokens),
        }
        messages = [system]
        for turn_number, turn in enumerate(script.turns):
            if turn.begins_anew:
                messages = [system]
            name = f"{self._level}/{self._repeat}/{conversation.number}"
            text = self._texts.turn(name, turn_number, turn.new_tokens)
            messages = [*messages, {"role": "user", "content": text}]
            task = self._task(conversation, turn_number, messages)
            row, answer = await self._sender.ask(task)
            self._on_row(row)
            if not row.ok:
                return
            messages = [*messages, {"role": "assistant", "content": answer}]
            await self._run_tools(conversation, turn_number)

    async def _run_tools(self, conversation: PlannedConversation, turn_number: int) -> None:
        """Run the sub-agents that a turn starts, and pause as long as its tools take."""
        following = conversation.script.turns[turn_number + 1 : turn_number + 2]
        if self._hold is not None and following:
            await self._hold(conversation, turn_number)
        pause_s = sum(turn.pause_s for turn in following) * self._pause_scale
        async with asyncio.TaskGroup() as tools:
            tools.create_task(asyncio.sleep(pause_s))
            for child in conversation.subagents.get(turn_number, ()):
                tools.create_task(self.play(child))

    def _task(
        self, conversation: PlannedConversation, turn_number: int, messages: list[dict[str, str]]
    ) -> BenchTask:
        session = f"{self._name}-{self._level}-{self._repeat}-{conversation.session}"
        headers = {SESSION_HEADER: session}
        if conversation.is_subagent:
            headers[AGENT_HEADER] = f"agent-{conversation.number}"
        return BenchTask(
            level=self._level,
            repeat=self._repeat,
            index=conversation.first_index + turn_number,
            kind="sub-agent" if conversation.is_subagent else "session",
            messages=messages,
            max_tokens=conversation.script.turns[turn_number].output_tokens,
            fixed_output=True,
            traffic=conversation.script.shared_name,
            session=conversation.number,
            turn=turn_number,
            headers=headers,
        )


async def run_sessions(
    sender: Sender,
    on_row: OnRow,
    conversations: Sequence[PlannedConversation],
    width: int,
    player_of: Callable[[Sender, OnRow], SessionPlayer],
) -> None:
    """Hold `width` sessions at once until all have ended: where one is over, the next begins. A
    session that fails ends alone.
    """
    remaining = iter(conversations)
    player = player_of(sender, on_row)

    async def hold_place() -> None:
        for conversation in remaining:
            await player.play(conversation)

    async with asyncio.TaskGroup() as places:
        for _ in range(min(width, len(conversations))):
            places.create_task(hold_place())


async def run_agents(
    plan: AgentPlan,
    endpoint: Endpoint,
    store: Store,
    host: HostFacts,
    scripts_of: ScriptsOf,
    on_progress: OnProgress = lambda _: None,
    *,
    texts: SessionTexts | None = None,
    meter: PowerMeter | None = None,
) -> AgentsSummary:
    """Run the levels of a plan and return their figures.

    Turns that fail become rows. An error that ends the run as a whole is raised, and the rows so
    far are kept.
    """
    config = msgspec.to_builtins(plan)
    identity = Identity(AGENTS, run_fingerprint(plan, endpoint, host), config)
    async with Recording(store, endpoint, host, identity) as recording:
        bench = AgentBench(
            plan,
            endpoint,
            recording,
            scripts_of,
            on_progress,
            texts=texts or SessionTexts(plan.seed),
            meter=meter,
        )
        async with bench.session.open():
            await bench.run()
    return agents_summary(
        recording.run_id,
        recording.rows,
        recording.samples,
        recording.facts,
        simulated=recording.simulated,
    )


def run_fingerprint(plan: AgentPlan, endpoint: Endpoint, host: HostFacts) -> str:
    """Return a digest that is equal for repeats: only the seed and the address may differ."""
    levels = "auto" if plan.finds_cliff else ",".join(map(str, plan.concurrency))
    work = {
        "kind": AGENTS,
        "load": plan.load,
        "concurrency": levels,
        "sessions": plan.sessions,
        "turns_at_most": plan.turns_at_most,
        "pause_scale": plan.pause_scale,
        "window_tokens": plan.window_tokens,
    }
    return fingerprint_of([work], endpoint, host)


class AgentBench:
    """Runs the levels of a plan in turns."""

    def __init__(
        self,
        plan: AgentPlan,
        endpoint: Endpoint,
        recording: Recording,
        scripts_of: ScriptsOf,
        on_progress: OnProgress,
        *,
        texts: SessionTexts,
        meter: PowerMeter | None = None,
    ) -> None:
        self.plan = plan
        self.recording = recording
        self._scripts_of = scripts_of
        self._texts = texts
        self.course: SessionRounds | SessionSearch
        if plan.finds_cliff:
            self.course = SessionSearch(plan.runs, most_sessions=plan.widest)
        else:
            self.course = SessionRounds(plan.concurrency, plan.runs)
        self.session = RunSession(
            endpoint,
            recording,
            on_progress,
            widest=CONNECTIONS_EACH * plan.widest,
            keep_text=False,
            timeout_s=plan.timeout_s,
            meter=meter,
        )
        self._speeds: dict[int, list[float]] = {}  # tokens a second of the runs, by level

    async def run(self) -> None:
        await self.warm_up()
        while (next_run := self.course.next_run()) is not None:
            await self.run_level(*next_run)
        if isinstance(self.course, SessionSearch):
            end = msgspec.to_builtins(self.course.end)
            self.recording.add_fact(LevelFact(end["at"], 0, SESSION_SEARCH, end))

    async def warm_up(self) -> None:
        """Send each shared beginning once: a server in use has had them from earlier sessions."""
        widest = max(self.plan.concurrency)
        shared: dict[str, int] = {}
        for conversation in self._conversations(self.plan.sessions_at(widest)):
            for part in conversation.all():
                script = part.script
                longest = max(shared.get(script.shared_name, 0), script.shared_tokens)
                shared[script.shared_name] = longest
        longest_first = sorted(shared.items(), key=lambda item: -item[1])
        beginnings = [item for item in longest_first[:MOST_WARM_UPS] if item[1]]
        beginnings = beginnings or longest_first[:1]
        self.session.begin(level=0, repeat=0, done=0, total=len(beginnings))
        for index, (name, tokens) in enumerate(beginnings):
            row = await self._send_beginning(index, name, tokens)
            if not row.ok:
                url = self.session.driver.endpoint.url
                raise EndpointError(
                    f"{url} answered no warm-up request: {row.error}",
                    hint="look at its log; `skep doctor` checks this machine",
                )

    async def _send_beginning(self, index: int, name: str, tokens: int) -> Request:
        messages = [
            {"role": "system", "content": self._texts.shared(name, tokens)},
            {"role": "user", "content": WARM_UP_QUESTION},
        ]
        task = BenchTask(0, 0, index, "warm-up", messages, WARM_UP_TOKENS, traffic=name)
        row, _ = await self.session.driver.sender.ask(task)
        self.recording.add_row(row)
        self.session.count_row(row)
        return row

    async def run_level(self, level: int, repeat: int) -> None:
        """Hold `level` sessions at once until all of the run have ended."""
        conversations = self._conversations(self.plan.sessions_at(level))
        parts = [part for conversation in conversations for part in conversation.all()]
        self.session.begin(
            level=level,
            repeat=repeat,
            label=session_count(level),
            done=0,
            total=sum(len(part.script.turns) for part in parts),
        )
        facts = [msgspec.to_builtins(part.fact()) for part in parts]
        self.recording.add_fact(LevelFact(level, repeat, CONVERSATIONS, {CONVERSATIONS: facts}))
        player_of = partial(
            SessionPlayer,
            texts=self._texts,
            level=level,
            repeat=repeat,
            name=self.recording.run_id,
            pause_scale=self.plan.pause_scale,
        )
        rows, limited = await self.session.driver.run_load(
            level=level,
            repeat=repeat,
            load=partial(
                run_sessions, conversations=conversations, width=level, player_of=player_of
            ),
            width=level,
            on_row=self.session.count_row,
            is_closed=False,
        )
        speed = repeat_of(0, rows, None).effective_tok_s
        self._speeds.setdefault(level, []).append(speed)
        self.course.add_run(level, self._summary_so_far(), limited=limited)
        self.session.report(ended=True, figures=self._speeds)
        self.recording.check()

    def _summary_so_far(self) -> AgentsSummary:
        """Return the figures of the run so far."""
        recording = self.recording
        return agents_summary(recording.run_id, recording.rows, recording.samples, recording.facts)

    def _conversations(self, sessions: int) -> list[PlannedConversation]:
        scripts = self._scripts_of(sessions)
        return planned([cut_short(script, self.plan.turns_at_most) for script in scripts])


def session_count(level: int) -> str:
    return "1 session" if level == 1 else f"{level} sessions"


def least_seconds(plan: AgentPlan, scripts_of: ScriptsOf) -> float:
    """Return how long the pauses of the plan's levels take by themselves."""
    total_s = 0.0
    levels = (1,) if plan.finds_cliff else plan.concurrency
    for level in levels:
        scripts = scripts_of(plan.sessions_at(level))
        pauses_s = sum(
            turn.pause_s
            for script in scripts
            for turn in cut_short(script, plan.turns_at_most).turns
        )
        total_s += plan.runs * pauses_s * plan.pause_scale / level
    return math.ceil(total_s)
