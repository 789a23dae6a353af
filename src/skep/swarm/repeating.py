"""Some of the finished tasks once more, one after the other, to know what one takes alone.

Their answers count for nothing. The endpoint may have kept the prompts, so what is measured is at most as long as the
first time would have been.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from skep.swarm.work import Work
from skep.swarm.writer import Writer
from skep.tasks import Ending, Result, Task


def chosen(results: Sequence[Result], wanted: int) -> list[Result]:
    """Spread evenly over those that are done."""
    done = [result for result in results if result.ending is Ending.DONE]
    few = min(wanted, len(done))
    return [done[(2 * place + 1) * len(done) // (2 * few)] for place in range(few)]


async def repeat_alone(
    work: Work, tasks: Mapping[str, Task], results: Sequence[Result], wanted: int, writer: Writer
) -> None:
    for result in chosen(results, wanted):
        began, began_at = time.monotonic(), time.time()
        came = await work.attempt(tasks[result.task], 0, None)
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
