"""A fake engine as a real process: `python -m skep.testing.fake_engine --slots 2 --token-ms 10`.

Speaks the OpenAI protocol with words for tokens, keeps the times it was told to keep, and fails on command.
`--help` lists everything; POST /fake/fault breaks it while it runs; tests start it through `skep.testing.process`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import uvloop

from skep.testing.fake_options import parse_options
from skep.testing.fake_server import FakeServer, Route

RoutesOf = Callable[[FakeServer], Mapping[tuple[str, str], Route]]
GRANDCHILD_LIFE_S = 120
GRANDCHILD = "import select, sys; select.select([int(fd) for fd in sys.argv[2:]], [], [], float(sys.argv[1]))"


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_options(sys.argv[1:] if argv is None else argv)
    if options.crash_at_start is not None:
        sys.stderr.write(options.crash_at_start + "\n")
        return int(options.exit_code)
    grandchildren = tuple(start_grandchild(options.parent_fd) for _ in range(options.grandchildren))
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    uvloop.new_event_loop().run_until_complete(serve(options, grandchildren))
    os._exit(0)  # open streams are cut, as an engine that is told to stop cuts them


async def serve(
    options: argparse.Namespace, grandchildren: Sequence[int] = (), routes: RoutesOf = lambda _: {}
) -> None:
    """Until a signal says stop. The address is told last: whoever knows it may send the signal."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT,) if options.ignore_term else (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if options.parent_fd is not None:
        loop.add_reader(options.parent_fd, os._exit, 0)
    server = FakeServer(options, grandchildren)
    server.routes.update(routes(server))
    addresses = await server.open()
    if options.report_fd is None:
        print(f"listening on {addresses['url']}", flush=True)  # noqa: T201 - whoever starts it by hand reads it
    else:
        with os.fdopen(options.report_fd, "w", encoding="utf-8") as out:
            out.write(json.dumps(addresses) + "\n")
    await stop.wait()


def start_grandchild(parent_fd: int | None) -> int:
    """Run a process in a session of its own that ignores SIGTERM; it ends with `parent_fd` or after two minutes."""
    fds = () if parent_fd is None else (parent_fd,)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is ignored stays ignored over exec
    try:
        argv = [sys.executable, "-I", "-S", "-c", GRANDCHILD, str(GRANDCHILD_LIFE_S), *map(str, fds)]
        child = subprocess.Popen(argv, pass_fds=fds, start_new_session=True, stdin=subprocess.DEVNULL)
    finally:
        signal.signal(signal.SIGTERM, before)
    return child.pid


if __name__ == "__main__":
    sys.exit(main())
