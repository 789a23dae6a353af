"""The process that works on one run, started by `RunLauncher`: `python -m skep.mcp_server.worker RUN CANCEL`.
It prints nothing but why it could not go on: how the run stands is in the journal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import uvloop

from skep.errors import SkepError, first_of
from skep.mcp_server.context import ServerContext
from skep.paths import user_paths
from skep.swarm.runner import carry_out


def main() -> int:
    try:
        uvloop.run(_work(sys.argv[1], int(sys.argv[2])))
    except asyncio.CancelledError:
        return 130
    except (BaseExceptionGroup, SkepError, OSError) as raised:
        error = first_of(raised) if isinstance(raised, BaseExceptionGroup) else raised
        if not isinstance(error, SkepError):
            print(f"error: unexpected {error!r}", file=sys.stderr)  # noqa: T201
            return 1
        hint = [f"hint: {error.hint}"] if error.hint else []
        print(f"error: {error}", *hint, sep="\n", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


async def _work(run_id: str, after_cancel: int) -> None:
    """TERM and Ctrl-C end it in order. A run that was cancelled while this process was starting is not begun."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    paths = user_paths(os.environ)
    with ServerContext(paths, os.environ).runs() as runs:
        run = runs.run(run_id)
    place = ServerContext(paths, os.environ, key_env=run.options.key_env)
    await carry_out(paths, run.id, key=place.key(run.url), after_cancel=after_cancel)


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal of a client that goes away is none of ours
    sys.exit(main())
