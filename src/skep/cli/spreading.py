"""`--cluster` of bench commands: this process joins the Ray cluster, and its nodes make the load."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, redirect_stdout
from pathlib import Path

from skep.bench.crowd import Crowd
from skep.bench.endpoint import Endpoint
from skep.cli.output import note

Reaching = Callable[..., Awaitable[Crowd | None]]  # of endpoints
MAX_SPREAD = 65_536  # streams of a whole cluster


@contextmanager
def joined(address: str | None) -> Iterator[None]:
    """Around the event loop: Ray sets signal handlers of its own, which the loop's then replace.

    It also prints what befalls its workers, on stdout, where a JSON document is to stand alone: that is left out.
    """
    if address is None:
        yield
        return
    from skep.cluster.joining import join

    join(address)
    import ray

    with _survived(), Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _survived() -> Iterator[None]:
    """Ray ends this process without a word when this machine's node is gone: another one says it then."""
    hint = (
        "hint: Ray does so where this machine's node has ended: see `skep cluster status`; "
        "what was measured is kept, marked as incomplete: `skep runs` lists it"
    )
    said = ("error: killed in the middle", hint)
    words = ["/bin/sh", "-c", 'read -r word || printf "%s\\n" "$@" >&2', "sh", *said]
    teller = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        teller.communicate(b"done\n")


@asynccontextmanager
async def load_from(address: str | None, workers: int | None = None) -> AsyncIterator[Reaching]:
    """Gives the workers on the cluster's nodes that reach an endpoint, or several; None: this machine makes the load.

    The same ones each time it is asked in the block, and gone when that ends.
    """
    if address is None:
        yield _here
        return
    from skep.cluster.load import RayCrowd

    crowd = RayCrowd(workers)

    async def reaching(*endpoints: Endpoint) -> Crowd:
        is_new = not crowd.workers
        await crowd.open(*(endpoint.origin for endpoint in endpoints))
        if is_new:
            nodes = sorted({worker.node for worker in crowd.workers})
            ids = {worker.node_id for worker in crowd.workers}
            note(f"load from {_many(len(crowd.workers), 'worker')} on {_many(len(ids), 'node')}: {', '.join(nodes)}")
        return crowd

    try:
        yield reaching
    finally:
        await crowd.close()


async def _here(*_endpoints: Endpoint) -> None:
    return None


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
