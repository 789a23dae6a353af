"""Some of the finished tasks once more, one after the other, to know what one takes alone.

Their answers count for nothing. The endpoint may have kept the prompts, so what is measured is at most as long as the
first time would have been.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from skep.errors import SkepError
from skep.swarm.attempted import Attempted
from skep.swarm.progress import Lane
from skep.swarm.tally import SHOW_EVERY_S, Tally
from skep.swarm.work import Work
from skep.swarm.writer import Writer
from skep.tasks import Ending, Result, Task

NUMBER = 0  # of an attempt that does not count


def chosen(results: Sequence[Result], wanted: int) -> list[Result]:
    """Spread evenly over those that are done."""
    done = [result for result in results if result.ending is Ending.DONE]
    few = min(wanted, len(done))
    return [done[(2 * place + 1) * len(done) // (2 * few)] for place in range(few)]


async def repeat_alone(
    work: Work,
    tasks: Mapping[str, Task],
    results: Sequence[Result],
    writer: Writer,
    tally: Tally,
    heard: Callable[[str, int], int],
) -> None:
    for place, result in enumerate(results, 1):
        tally.say(f"`{result.task}` once more, alone: {place} of {len(results)}")
        began, began_at = time.monotonic(), time.time()
        async with asyncio.TaskGroup() as group:
            showing = group.create_task(_show(tally, result.task, heard))
            came = await _attempt(work, tasks[result.task])
            showing.cancel()
        first = None if came.first_token_at is None else came.first_token_at - began_at
        fact = {
            "task": result.task,
            "seconds": time.monotonic() - began,
            "first_token_s": first,
            "prompt_tokens": came.prompt_tokens,
            "output_tokens": came.output_tokens,
            "queued_ms": came.queued_ms,
            "error_kind": came.error_kind,
        }
        writer.fact("serial", fact)


async def _attempt(work: Work, task: Task) -> Attempted:
    """The run has its results: what goes wrong here is no reason to call it failed."""
    try:
        return await work.attempt(task, NUMBER, None)
    except SkepError as error:
        return Attempted(error_kind="unworkable", error=error.message)


async def _show(tally: Tally, task: str, heard: Callable[[str, int], int]) -> None:
    began = time.monotonic()
    while True:
        now = time.monotonic()
        tally.alone(Lane(0, task, now - began, heard(task, NUMBER), 1), now)
        await asyncio.sleep(SHOW_EVERY_S)
