"""The fake engine in the place of an engine that cannot be installed: other flags, and further routes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from skep.testing.fake_engine import new_loop, serve
from skep.testing.fake_options import parse_options
from skep.testing.fake_server import FakeServer, Route

Routes = Mapping[tuple[str, str], Route]


def speak(words: Sequence[str], key: str, routes: Callable[[FakeServer], Routes]) -> int:
    """Serve until SIGTERM or SIGINT. `words`: options of the fake engine; `key` is wanted on all paths but /health."""
    options = replace(parse_options([*words, "--token-ms=4", "--default-tokens=16"]), key=key)

    def prepare(server: FakeServer) -> None:
        server.routes.update(routes(server))

    try:
        new_loop().run_until_complete(serve(options, prepare=prepare))
    except OSError as error:  # as uvicorn and Go's net say it
        sys.stderr.write(f"error: bind on {options.host}:{options.port}: {os.strerror(error.errno or 0).lower()}\n")
        return 1
    sys.stdout.flush()
    os._exit(0)  # open streams are cut, as an engine that is told to stop cuts them


def write_program(path: str, module: str) -> None:
    """An executable of that name that runs one of these modules with its own words."""
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
    os.chmod(path, 0o755)  # noqa: PTH101, S103
