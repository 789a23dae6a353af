"""The swarm from Python: `results = await swarm.map("Summarise: {}", texts, schema=Summary)`.

What the command line does, for those who have their items at hand: the same journal, the same pace, the same retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Literal, TypeVar, Unpack, overload

from skep.errors import UserError
from skep.swarm.api_run import Failure, Items, Options, Prompt, Run, SwarmError, run_items

__all__ = ["Failure", "Options", "Run", "SwarmError", "map", "map_sync", "run", "run_sync"]

T = TypeVar("T")
LOOK_S = 0.2
Raise = Literal["raise"]
Return = Literal["return"]


@overload
async def run(prompt: Prompt, items: Items, *, schema: None = None, **options: Unpack[Options]) -> Run[str]: ...
@overload
async def run(prompt: Prompt, items: Items, *, schema: type[T], **options: Unpack[Options]) -> Run[T]: ...
@overload
async def run(prompt: Prompt, items: Items, *, schema: Mapping[str, Any], **options: Unpack[Options]) -> Run[Any]: ...
async def run(prompt: Prompt, items: Items, *, schema: Any = None, **options: Unpack[Options]) -> Run[Any]:
    """As `map`, with all that is known of it: tokens, times, what failed and why. Raises nothing for failed tasks."""
    made = await run_items(prompt, items, schema, options)
    if made is None:
        raise UserError("there are no items")
    return made


@overload
async def map(  # noqa: A001
    prompt: Prompt, items: Items, *, schema: None = None, failures: Raise = "raise", **options: Unpack[Options]
) -> list[str]: ...
@overload
async def map(  # noqa: A001
    prompt: Prompt, items: Items, *, schema: type[T], failures: Raise = "raise", **options: Unpack[Options]
) -> list[T]: ...
@overload
async def map(  # noqa: A001
    prompt: Prompt, items: Items, *, schema: Mapping[str, Any], failures: str = "raise", **options: Unpack[Options]
) -> list[Any]: ...
@overload
async def map(  # noqa: A001
    prompt: Prompt, items: Items, *, schema: None = None, failures: Return, **options: Unpack[Options]
) -> list[str | Failure]: ...
@overload
async def map(  # noqa: A001
    prompt: Prompt, items: Items, *, schema: type[T], failures: Return, **options: Unpack[Options]
) -> list[T | Failure]: ...
async def map(  # noqa: A001 - `swarm.map` says what it is
    prompt: Prompt, items: Items, *, schema: Any = None, failures: str = "raise", **options: Unpack[Options]
) -> list[Any]:
    """One value for each item, in their order: a text; with a schema, JSON; with a type, an instance of it.

    `prompt`: a template (`{}` and `{item}` are the item, `{title}` a field of it), or a function that makes a prompt,
    messages or a task of an item. Tasks that failed for good raise `SwarmError` in the end, or, with
    `failures="return"`, have a `Failure` in their place. `Options` names everything else.
    """
    if failures not in ("raise", "return"):
        raise UserError(f'`failures` is "raise" or "return", not {failures!r}')
    made = await run_items(prompt, items, schema, options)
    if made is None:
        return []
    if made.failures and failures == "raise":
        raise SwarmError(made.id, made.values)
    return made.values


@overload
def map_sync(
    prompt: Prompt, items: Items, *, schema: None = None, failures: Raise = "raise", **options: Unpack[Options]
) -> list[str]: ...
@overload
def map_sync(
    prompt: Prompt, items: Items, *, schema: type[T], failures: Raise = "raise", **options: Unpack[Options]
) -> list[T]: ...
@overload
def map_sync(
    prompt: Prompt, items: Items, *, schema: Mapping[str, Any], failures: str = "raise", **options: Unpack[Options]
) -> list[Any]: ...
@overload
def map_sync(
    prompt: Prompt, items: Items, *, schema: None = None, failures: Return, **options: Unpack[Options]
) -> list[str | Failure]: ...
@overload
def map_sync(
    prompt: Prompt, items: Items, *, schema: type[T], failures: Return, **options: Unpack[Options]
) -> list[T | Failure]: ...
def map_sync(
    prompt: Prompt, items: Items, *, schema: Any = None, failures: str = "raise", **options: Unpack[Options]
) -> list[Any]:
    """`map` for plain code, and for a notebook, where a loop runs already. Ctrl-C keeps what is done."""
    return _finished(map(prompt, items, schema=schema, failures=failures, **options))


@overload
def run_sync(prompt: Prompt, items: Items, *, schema: None = None, **options: Unpack[Options]) -> Run[str]: ...
@overload
def run_sync(prompt: Prompt, items: Items, *, schema: type[T], **options: Unpack[Options]) -> Run[T]: ...
@overload
def run_sync(prompt: Prompt, items: Items, *, schema: Mapping[str, Any], **options: Unpack[Options]) -> Run[Any]: ...
def run_sync(prompt: Prompt, items: Items, *, schema: Any = None, **options: Unpack[Options]) -> Run[Any]:
    """`run` for plain code, as `map_sync` is `map`."""
    return _finished(run(prompt, items, schema=schema, **options))


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """Where a loop runs in this thread, in a thread beside it: a loop does not run within another.

    Ctrl-C comes as an interrupt in a notebook; under `asyncio.run`, the task that waits here is marked as cancelled.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    loops: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def beside() -> T:
        task = asyncio.ensure_future(work)
        loops.set_result((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(asyncio.run, beside())
        try:
            waiting = asyncio.current_task()
            while not done.done() and not (waiting and waiting.cancelling()):
                wait([done], timeout=LOOK_S)
        finally:
            if not done.done():
                loop, task = loops.result()
                loop.call_soon_threadsafe(task.cancel)
        return done.result()
