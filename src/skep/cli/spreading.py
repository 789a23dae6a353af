"""`--cluster` of bench commands: this process joins the Ray cluster, and its nodes make the load."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from skep.bench.crowd import Crowd
from skep.bench.endpoint import Endpoint
from skep.cli.output import note

MAX_SPREAD = 65_536  # streams of a whole cluster


@contextmanager
def joined(address: str | None) -> Iterator[None]:
    """Around the event loop: Ray sets signal handlers of its own, which the loop's then replace."""
    if address is None:
        yield
        return
    from skep.cluster.joining import join

    join(address)
    import ray

    try:
        yield
    finally:
        ray.shutdown()


@asynccontextmanager
async def load_from(address: str | None, endpoint: Endpoint, workers: int | None = None) -> AsyncIterator[Crowd | None]:
    """Workers on the cluster's nodes, ready; None where this machine makes the load. Gone when the block ends."""
    if address is None:
        yield None
        return
    from skep.cluster.load import RayCrowd

    crowd = RayCrowd(workers)
    await crowd.open(endpoint.origin)
    try:
        nodes = sorted({worker.node for worker in crowd.workers})
        ids = {worker.node_id for worker in crowd.workers}
        note(f"load from {len(crowd.workers)} workers on {len(ids)} nodes: {', '.join(nodes)}")
        yield crowd
    finally:
        await crowd.close()
