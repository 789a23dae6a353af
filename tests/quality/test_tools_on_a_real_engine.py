"""Tasks with tools on a real llama.cpp with the smallest model: it fails most of them, and each
failure has a name.
"""

import asyncio

import pytest

from embedded_process import MODEL, serving, weights
from skep.bench.endpoint import find_endpoint
from skep.engines.base import Launch
from skep.host.facts import NvidiaReport, read_host
from skep.quality.judging import Judge
from skep.quality.tool_bank import ready_tools
from skep.quality.trial import QualityTrial, TrialPlan

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]
HOST = read_host(NvidiaReport())
COUNT = 2


async def measured(url, store):
    endpoint = await find_endpoint(url, None)
    ready = await ready_tools(endpoint, "tools:2k", seed=7, count=COUNT, max_tokens=24)
    plan = TrialPlan((2,), delta=0.45, seed=7)
    trial = QualityTrial(
        plan,
        ready.bank,
        endpoint,
        store,
        HOST,
        Judge(None),
        histories=ready.histories,
    )
    return await trial.run()


def test_every_task_is_judged_alone_and_under_load(store):
    launch = Launch(
        "e",
        "embedded",
        MODEL,
        weights(),
        slots=2,
        context_tokens=6400,
        threads=2,
    )
    with serving(launch) as url:
        summary = asyncio.run(measured(url, store))
    (level,) = summary.levels
    (size,) = level.sizes
    judged = (
        level.base.outcomes,
        level.load.outcomes,
        size.base,
        size.load,
    )
    for outcomes in judged:
        assert sum(dict(outcomes).values()) == COUNT
    rows = store.requests(summary.run_id)
    first_turns = [row for row in rows if row.level and not row.turn]
    verdicts = store.verdicts(summary.run_id)
    assert len(first_turns) == len(verdicts) == 3 * COUNT
