"""Sessions on a real engine: llama.cpp with a small model counts, caches and ends as asked."""

import asyncio
import statistics

import pytest
from sample_rows import HOST

from embedded_process import MODEL, serving, weights
from sample_sessions import tiny_shape
from skep.bench.agent_load import AgentPlan, run_agents
from skep.bench.endpoint import find_endpoint
from skep.bench.tasks import calibrate_on
from skep.catalog.session_shapes import Varying, draw_sessions
from skep.engines.base import Launch
from skep.store.database import open_store
from skep.workload.session_text import SessionTexts

pytestmark = pytest.mark.engine
SEED = 11
SLOTS = 2
SHAPE = tiny_shape(
    shared_tokens=120,
    first_tokens=Varying(60, 80),
    growth_tokens=Varying(50, 70),
    turns=Varying(2, 3),
)
SESSIONS = 2
PLAN = AgentPlan("tiny", concurrency=(1, SLOTS), sessions=SESSIONS, seed=SEED)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The figures and the rows of one and of two sessions at once."""
    path = tmp_path_factory.mktemp("llama") / "s.sqlite3"
    launch = Launch("e", "embedded", MODEL, weights(), slots=SLOTS, context_tokens=2048, threads=2)

    async def run(url, store):
        endpoint = await find_endpoint(url, None)
        texts = SessionTexts(SEED, await calibrate_on(endpoint, 120, SEED))
        return await run_agents(
            PLAN,
            endpoint,
            store,
            HOST,
            lambda count: draw_sessions(SHAPE, count, SEED, window_tokens=2048),
            texts=texts,
        )

    with serving(launch) as url, open_store(path) as store:
        summary = asyncio.run(run(url, store))
        rows = [row for row in store.requests(summary.run_id) if row.level]
    return summary, rows


def scripted():
    return draw_sessions(SHAPE, SESSIONS, SEED, window_tokens=2048)


def test_all_sessions_end(measured):
    summary, _ = measured
    assert [level.sessions_ended for level in summary.levels] == [SESSIONS, SESSIONS]
    assert [level.failed for level in summary.levels] == [0, 0]


def test_the_model_answers_as_long_as_the_script_says(measured):
    _, rows = measured
    scripts = scripted()
    for row in rows:
        assert row.output_tokens == scripts[row.session].turns[row.turn].output_tokens


def test_prompts_are_as_long_as_the_script_says(measured):
    """By the model's own tokenizer, which the texts were fitted to; templates add a little."""
    _, rows = measured
    lengths = [script.prompts() for script in scripted()]
    ratios = [row.prompt_tokens / lengths[row.session][row.turn] for row in rows]
    assert 0.9 <= statistics.median(ratios) <= 1.15


def test_a_session_alone_hits_what_it_could(measured):
    """Its slot has the turn before; the answer came back as it was."""
    summary, _ = measured
    alone = summary.levels[0]
    assert alone.hit_rate == pytest.approx(alone.possible_hit_rate, abs=0.12)
    assert alone.warm_sessions == SESSIONS


def test_the_engine_tells_what_each_turn_has_hit(measured):
    summary, rows = measured
    assert summary.hits_told
    assert all(row.engine.cached_tokens is not None for row in rows)
