"""Which load worker was lost is said also where it is found by asking for its clock. Needs Ray's errors, no cluster."""

import asyncio
from types import SimpleNamespace

import pytest

from skep.cluster.load import Worker
from skep.errors import EngineError

pytestmark = pytest.mark.ray


def test_a_worker_that_is_lost_before_it_begins_is_named_with_its_node():
    import ray

    async def lost():
        raise ray.exceptions.ActorDiedError

    worker = Worker(SimpleNamespace(now=SimpleNamespace(remote=lost)), "10.0.0.7", "a1", ())
    with pytest.raises(EngineError, match=r"the load worker on 10\.0\.0\.7 was lost"):
        asyncio.run(worker.compare())
