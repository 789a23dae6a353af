"""The fall of a real rig, shown by two fake replicas: faster up to its slots, slower past them."""

from __future__ import annotations

import asyncio
import time

import pytest
from fake_raw_client import chat, read_all

from skep.testing.process import FakeEngine

TOKENS = 128


async def rate(urls: list[str], *, agents: int, limit: int, requests: int) -> float:
    """Tokens per second of agents behind plain least-connections, with at most `limit` requests let through."""
    inside = dict.fromkeys(urls, 0)
    gate = asyncio.Semaphore(limit)
    todo = iter(range(requests))

    async def agent() -> None:
        for _ in todo:
            async with gate:
                url = min(urls, key=lambda url: inside[url])
                inside[url] += 1
                stream = await read_all(url, chat(words=TOKENS, tokens=TOKENS))
                inside[url] -= 1
                assert b"[DONE]" in stream.raw

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(agents):
            group.create_task(agent())
    return requests * TOKENS / (time.perf_counter() - started)


@pytest.fixture(scope="module")
def urls():
    with FakeEngine(preset="dual-3090", time_scale=0.1) as a, FakeEngine(preset="dual-3090", time_scale=0.1) as b:
        yield [a.url, b.url]


@pytest.mark.slow  # on an idle machine: it compares rates
def test_rig_falls_when_it_is_overfilled_and_holds_when_it_is_not(urls):
    """Eight agents give about 0.74 of what four give, and all of it when four at a time are let through."""
    four = asyncio.run(rate(urls, agents=4, limit=4, requests=12))
    eight = asyncio.run(rate(urls, agents=8, limit=8, requests=24))
    held = asyncio.run(rate(urls, agents=8, limit=4, requests=12))
    assert eight / four == pytest.approx(0.75, abs=0.08)
    assert held / four == pytest.approx(1.0, abs=0.08)
