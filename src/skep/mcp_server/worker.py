"""The process that works on one run, started by `RunLauncher`: `python -m skep.mcp_server.worker RUN CANCEL`.
It prints nothing but why it could not go on: how the run stands is in the journal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping

from skep.errors import SkepError, UserError, first_of
from skep.paths import Paths, user_paths
from skep.store.database import open_store
from skep.supervisor.control import local_key
from skep.swarm.store import SwarmStore


def main() -> int:
    import uvloop

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
    from skep.swarm.runner import carry_out  # not where a server only asks for the key of an endpoint

    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    paths = user_paths(os.environ)
    with open_store(paths.store, read_only=True) as store:
        run = SwarmStore(store).run(run_id)
    key = key_of(run.url, run.options.key_env, os.environ, paths)
    await carry_out(paths, run.id, key=key, after_cancel=after_cancel)


def key_of(url: str, key_env: str | None, env: Mapping[str, str], paths: Paths) -> str | None:
    """The key in the variable that was named; else the one that skep itself has for a server on this machine."""
    if key_env is None:
        return local_key(url, env, paths)
    value = env.get(key_env)
    if not value:
        raise UserError(f"--key-env `{key_env}` is not set", hint="set it where `skep mcp` is started")
    return value


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal of a client that goes away is none of ours
    sys.exit(main())
