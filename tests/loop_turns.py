"""How long the turns of an event loop are while work is under way on it.

Time is the processor's, of the loop's own thread: what other threads and programs do meanwhile
does not count, so a busy machine does not change it."""

import asyncio
import time

PAUSE_S = 0.001


async def longest_turn(work):
    """Return what the work returns, the longest turn, and what the process computed in all: both
    in seconds.
    """
    task = asyncio.ensure_future(work)
    began = time.process_time()
    before = time.thread_time()
    longest_s = 0.0
    while not task.done():
        await asyncio.sleep(PAUSE_S)
        now = time.thread_time()
        longest_s = max(longest_s, now - before)
        before = now
    return await task, longest_s, time.process_time() - began
