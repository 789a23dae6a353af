"""Sessions against the fake engine, which remembers prefixes: turns, pauses, sub-agents, faults."""

import asyncio
from itertools import count

import pytest
from msgspec.structs import replace
from sample_rows import HOST

from sample_sessions import tiny_shape
from skep.bench.agent_load import AgentPlan, cut_short, least_seconds, planned, run_agents
from skep.bench.endpoint import context_tokens, find_endpoint
from skep.catalog.session_shapes import ScriptedTurn, SessionScript, Varying, draw_sessions
from skep.errors import EndpointError
from skep.store.database import open_store
from skep.store.records import RunState
from skep.testing.process import FakeEngine
from skep.wire.client import Pool

SEED = 5
PLAN = AgentPlan("tiny", concurrency=(1, 2), sessions=3, seed=SEED)


def script(*turns, shared=120, name="tiny"):
    return SessionScript(name, shared, turns)


def scripts_of(shape):
    return lambda number: draw_sessions(shape, number, SEED)


def run(engine, store, plan=PLAN, scripts=None, progress=lambda _: None):
    async def measured():
        endpoint = await find_endpoint(engine.url, None)
        sessions = scripts or scripts_of(tiny_shape())
        return await run_agents(plan, endpoint, store, HOST, sessions, progress)

    return asyncio.run(measured())


def rows_of(store, summary):
    return [row for row in store.requests(summary.run_id) if row.level]


def rows_alone(store, session, **fields):
    """Play one session on an engine of its own."""
    plan = replace(
        PLAN,
        concurrency=(1,),
        sessions=1,
        **fields,
    )
    with FakeEngine(slots=4, token_ms=2) as engine:
        summary = run(engine, store, plan, lambda _: [session])
    return rows_of(store, summary)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two levels of three sessions: the figures, the stored run, its rows, its plans."""
    path = tmp_path_factory.mktemp("agents") / "s.sqlite3"
    with FakeEngine(slots=4, token_ms=1) as engine, open_store(path) as store:
        summary = run(engine, store)
        return summary, store.run(summary.run_id), store.requests(summary.run_id)


def test_a_run_of_sessions_is_stored_with_its_kind(measured):
    _, stored, _ = measured
    assert stored.kind == "agents"
    assert stored.state is RunState.DONE
    assert stored.config["concurrency"] == [1, 2]


def test_the_shared_beginning_is_sent_once_before_the_first_level(measured):
    _, _, rows = measured
    (warm_up,) = [row for row in rows if not row.level]
    assert warm_up.kind == "warm-up"
    assert warm_up.traffic == "tiny"


def test_every_turn_of_every_session_is_a_row_in_its_order(measured):
    _, _, rows = measured
    drawn = draw_sessions(tiny_shape(), 3, SEED)
    for level in PLAN.concurrency:
        of_level = [row for row in rows if row.level == level]
        for number, session in enumerate(drawn):
            turns = [row.turn for row in of_level if row.session == number]
            assert turns == [*range(len(session.turns))]


def test_answers_have_the_scripted_length(measured):
    _, _, rows = measured
    drawn = draw_sessions(tiny_shape(), 3, SEED)
    turns = [row for row in rows if row.level]
    for row in turns:
        scripted = drawn[row.session].turns[row.turn]
        assert row.output_tokens == scripted.output_tokens


def test_a_memory_of_all_prefixes_hits_nearly_all_that_is_possible(measured):
    """What a level could not hit is what was new in each turn."""
    summary, _, _ = measured
    for level in summary.levels:
        assert level.hit_rate == pytest.approx(level.possible_hit_rate, abs=0.05)
        assert level.warm_sessions == level.told_sessions == 3


def test_levels_that_differ_in_nothing_have_no_cliff(measured):
    summary, _, _ = measured
    assert summary.cliff is None
    assert [level.sessions_ended for level in summary.levels] == [3, 3]


def last_headers(store, session):
    """What the engine read in the head of the last request of a run."""
    with FakeEngine(slots=4) as engine:
        plan = replace(PLAN, concurrency=(1,), sessions=1)
        summary = run(engine, store, plan, lambda _: [session])
        return summary.run_id, engine.state()["last_headers"]


def test_a_session_names_itself_in_each_request(store):
    run_id, headers = last_headers(store, script(ScriptedTurn(30, 2), ScriptedTurn(30, 2)))
    assert headers["x-skep-session"] == f"{run_id}-1-0-0"
    assert "x-claude-code-agent-id" not in headers


def test_a_subagent_names_itself_inside_its_session(store):
    child = script(ScriptedTurn(30, 3), name="child", shared=60)
    run_id, headers = last_headers(store, script(ScriptedTurn(30, 2, subagents=(child,))))
    assert headers["x-skep-session"] == f"{run_id}-1-0-0"
    assert headers["x-claude-code-agent-id"] == "agent-1"


def test_the_next_turn_waits_for_the_subagents_of_the_one_before(store):
    child = script(
        ScriptedTurn(30, 3),
        ScriptedTurn(30, 3),
        name="child",
        shared=60,
    )
    parent = script(
        ScriptedTurn(40, 3, subagents=(child,)),
        ScriptedTurn(30, 3),
    )
    rows = rows_alone(store, parent)
    first, last = (row for row in rows if row.kind == "session")
    children = [row for row in rows if row.kind == "sub-agent"]
    assert len(children) == 2
    assert first.ended_s <= min(row.started_s for row in children)
    assert max(row.ended_s for row in children) <= last.started_s


def test_a_pause_passes_between_two_turns_and_can_be_scaled(store):
    session = script(
        ScriptedTurn(30, 2),
        ScriptedTurn(30, 2, pause_s=4.0),
    )
    first, second = rows_alone(store, session, pause_scale=0.05)
    assert second.started_s - first.ended_s >= 0.2


def test_a_compacted_conversation_begins_anew_behind_its_system_prompt(store):
    session = script(
        ScriptedTurn(40, 3),
        ScriptedTurn(300, 3),
        ScriptedTurn(60, 3, begins_anew=True),
    )
    rows = rows_alone(store, session)
    assert rows[2].prompt_tokens < rows[1].prompt_tokens


def test_a_session_that_fails_ends_alone(store):
    """Its reason is told, the others go on."""
    with FakeEngine(slots=4) as engine:

        def fail_once(progress):
            if progress.level and not progress.done and next(calls) == 0:
                engine.fault(kind="500", times=1)

        calls = count()
        plan = replace(PLAN, concurrency=(1,))
        summary = run(engine, store, plan, progress=fail_once)
    (level,) = summary.levels
    assert level.sessions_failed == 1
    assert level.sessions_ended == 2
    assert level.errors == (("http_500", 1),)


def test_an_endpoint_that_answers_no_beginning_ends_the_run(store):
    with FakeEngine() as engine:
        engine.fault(kind="500", times=None)
        with pytest.raises(EndpointError, match="answered no warm-up request"):
            run(engine, store)


def test_a_session_that_is_cut_short_keeps_its_first_turns():
    child = script(*[ScriptedTurn(30, 3)] * 5, name="child")
    parent = script(ScriptedTurn(40, 3, subagents=(child,)), *[ScriptedTurn(30, 3)] * 5)
    cut = cut_short(parent, 2)
    assert len(cut.turns) == 2
    assert len(cut.turns[0].subagents[0].turns) == 2


def parts_of_two_sessions():
    """Return the conversations of two sessions of two turns, each with a sub-agent of two."""
    child = script(
        ScriptedTurn(30, 3),
        ScriptedTurn(30, 3),
        name="child",
    )
    parent = script(
        ScriptedTurn(40, 3, subagents=(child,)),
        ScriptedTurn(30, 3),
    )
    sessions = planned([parent, parent])
    return [part for session in sessions for part in session.all()]


def test_conversations_are_numbered_sessions_first():
    parts = parts_of_two_sessions()
    numbers = {part.number: part.session for part in parts}
    assert numbers == {
        0: 0,
        1: 1,
        2: 0,
        3: 1,
    }


def test_rows_of_a_run_have_numbers_of_their_own():
    begins = sorted(part.first_index for part in parts_of_two_sessions())
    assert begins == [0, 2, 4, 6]


def test_pauses_alone_say_how_long_a_run_takes_at_least():
    session = script(ScriptedTurn(30, 2), ScriptedTurn(30, 2, pause_s=6.0))
    plan = AgentPlan("tiny", concurrency=(1, 2), sessions=4, runs=2)
    assert least_seconds(plan, lambda number: [session] * number) == 2 * (24 + 12)


async def test_the_context_of_an_endpoint_is_what_it_tells():
    with FakeEngine(ctx=5_000) as engine:
        endpoint = await find_endpoint(engine.url, None)
        pool = Pool(endpoint.origin)
        try:
            assert await context_tokens(pool, endpoint) == 5_000
        finally:
            await pool.close()


def test_a_window_keeps_prompts_below_its_end(store):
    """The engine refuses what is longer than its context."""
    shape = tiny_shape(turns=Varying(12, 12), growth_tokens=Varying(60, 90))
    drawn = draw_sessions(shape, 2, SEED, window_tokens=600)
    with FakeEngine() as engine:
        plan = replace(PLAN, concurrency=(2,), sessions=2, window_tokens=600)
        summary = run(engine, store, plan, lambda _: drawn)
    rows = rows_of(store, summary)
    assert max(row.prompt_tokens for row in rows) < 600
    assert any(turn.begins_anew for session in drawn for turn in session.turns)
