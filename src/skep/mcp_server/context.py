"""The folders of this server, the endpoint that tasks are sent to, and whether files may be named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from skep.errors import UserError
from skep.paths import Paths
from skep.store.database import Store, open_store
from skep.supervisor.control import ask, local_key, socket_of
from skep.swarm.client import URL_VARIABLE
from skep.swarm.records import SwarmRun
from skep.swarm.store import SwarmStore

Answer = dict[str, Any]  # of a tool: what is unknown is None in it, and left out on the wire


class ServerContext(msgspec.Struct, frozen=True):
    paths: Paths
    env: Mapping[str, str]
    url: str | None = None  # None: what SKEP_URL says, or the hive that runs here
    model: str | None = None  # None: the only one that is served
    key_env: str | None = None
    files: bool = False  # the client is this machine's user, who may name files
    clock: Callable[[], float] = time.time

    def named_url(self) -> str | None:
        return self.url or self.env.get(URL_VARIABLE) or None

    def endpoint_url(self) -> str:
        """Raises NotRunning where no URL was given and no hive runs."""
        return self.named_url() or str(self.hive_status()["url"])

    def key(self, url: str) -> str | None:
        """The variable that was named; else the key that skep itself has for a server on this machine."""
        if self.key_env is None:
            return local_key(url, self.env, self.paths)
        value = self.env.get(self.key_env)
        if not value:
            raise UserError(f"--key-env `{self.key_env}` is not set", hint="set it where `skep mcp` is started")
        return value

    def hive_status(self) -> dict[str, object]:
        """What the running supervisor tells. Raises NotRunning."""
        return ask(socket_of(self.paths.lock, self.paths.socket), {"op": "status"})

    def reading(self) -> Store:
        """The store, for reading. Raises UserError where nothing has been stored yet."""
        if not self.paths.store.exists():
            raise UserError("no run is stored here yet", hint="swarm_dispatch makes the first run")
        return open_store(self.paths.store, read_only=True)

    @contextmanager
    def runs(self) -> Iterator[SwarmStore]:
        """The runs of swarms, for reading."""
        with self.reading() as store:
            yield SwarmStore(store)

    def newest_runs(self, limit: int) -> list[SwarmRun]:
        """Of swarms; none where nothing has been stored yet."""
        if not self.paths.store.exists():
            return []
        with self.runs() as runs:
            return runs.runs(limit)
