"""Models that are loaded and unloaded, in the order that hurts:
each test names what goes wrong.
"""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

from supervised import until

from skep.config.gateway_messages import GatewayStatus, ModelUsage
from skep.engines.base import Launch
from skep.gateway.unloaded_models import UnloadedModels
from skep.supervisor.eviction import MemoryBudget
from skep.supervisor.lifecycle import ReplicaState
from skep.supervisor.model_loader import ModelLoader

READY = ReplicaState.READY
FAILED = ReplicaState.FAILED
STARTING = ReplicaState.STARTING


class StubReplicas:
    """What a loader needs of the replicas, without processes: one a model, whose state the test
    says.
    """

    def __init__(self, launches):
        self.all = {launch.model: self._replica(launch) for launch in launches}
        self.dormant = {launch.name for launch in launches if launch.on_demand}

    def _replica(self, launch):
        return SimpleNamespace(
            launch=launch, life=SimpleNamespace(state=ReplicaState.STOPPED, why=None)
        )

    def of_model(self, model):
        return [self.all[model]]

    def is_dormant(self, replica):
        return replica.launch.name in self.dormant

    def is_asleep(self, model):
        return self.is_dormant(self.all[model])

    def serves(self, model):
        return not self.is_asleep(model) and self.all[model].life.state is READY

    def wake(self, model):
        """As the real ones: one that was given up is told to restart, and does so when its task
        runs.
        """
        if self.all[model].life.state is not FAILED:
            self.dormant.discard(self.all[model].launch.name)
            self.all[model].life.state = STARTING

    def hold(self, model):
        pass

    def release(self, model):
        pass

    async def unload_model(self, model):
        self.dormant.add(self.all[model].launch.name)


class Setup:
    """A loader, its replicas, what it published and sent to gateways."""

    def __init__(self, launches, tasks, figures):
        self.replicas = StubReplicas(launches)
        self.published = []
        self.messages = []
        self.figures_asked = asyncio.Event()
        self._figures = figures
        self.loader = ModelLoader(
            self.replicas,
            tasks,
            status=self._status,
            say=self.messages.append,
            changed=self._changed,
        )

    def _changed(self):
        self.loader.look()
        self.published.append(self.loader.unloaded_models())

    async def _status(self):
        self.figures_asked.set()
        if self._figures:
            return GatewayStatus(models=self._figures)
        return None

    def become(self, model, state, why=None):
        self.replicas.all[model].life.state, self.replicas.all[model].life.why = state, why
        self.loader.look()

    def load(self, model):
        """A request wants it, and it came."""
        self.loader.requested(model)
        self.become(model, READY)


@asynccontextmanager
async def loader_of(*models, figures=None, max_loaded=None, begin=False):
    """For launches of these models: a name, and what else its launch says."""
    launches = [
        Launch(f"{name}-0", "fake", name, None, slots=1, context_tokens=100, threads=1, **fields)
        for name, fields in models
    ]
    async with asyncio.TaskGroup() as tasks:
        setup = Setup(launches, tasks, figures)
        setup.loader.configure(launches, MemoryBudget(max_loaded=max_loaded), begin=begin)
        running = tasks.create_task(setup.loader.run())
        await asyncio.sleep(0)
        yield setup, tasks
        assert not running.done()
        running.cancel()
        setup.loader.pause()


ON_DEMAND = {"on_demand": True}


async def test_a_gateway_hears_that_a_model_is_not_waited_for_any_more():
    """Its client left before there was room.

    The next one's request must be told to the supervisor again.
    """
    figures = {"a": ModelUsage(busy=1), "b": ModelUsage()}
    async with loader_of(("a", ON_DEMAND), ("b", ON_DEMAND), figures=figures, max_loaded=1) as (
        setup,
        _,
    ):
        setup.load("a")
        setup.loader.requested("b")
        assert setup.published[-1]["b"].state == "waiting"
        # Nobody waits for it any more.
        await until(lambda: setup.loader.unloaded_models()["b"].state == "unloaded")
    gateway = UnloadedModels()
    gateway.become(setup.published[-1], ["a"])
    assert gateway.should_request_load("b")


async def test_an_unload_ends_also_if_the_model_fails_while_it_drains():
    async with loader_of(("a", {}), begin=True) as (setup, tasks):
        setup.become("a", READY)
        unload = tasks.create_task(setup.loader.unload("a", wait=True))
        await asyncio.sleep(0)
        setup.become("a", FAILED)
        await asyncio.wait_for(unload, 5)


async def test_a_load_is_not_refused_because_another_replica_changed_meanwhile():
    async with loader_of(("a", {}), begin=True) as (setup, _):
        setup.become("a", FAILED)
        setup.messages.clear()
        await setup.loader.load("a", wait=False)
        setup.loader.look()  # some other replica changed
        assert setup.messages == []


async def test_a_gateway_is_told_of_a_model_that_was_given_up_and_that_it_comes_back():
    """A gateway that was started since refuses with the reason too, for as long as nobody tries
    again.
    """
    async with loader_of(("a", {}), begin=True) as (setup, _):
        assert setup.loader.unloaded == {}  # it is being started, as all that is not on demand
        setup.become("a", FAILED, "no memory")
        gateway = UnloadedModels()
        gateway.become(setup.loader.unloaded, [], ["a"])
        assert gateway.failure("a", 1e9) == ("no memory", None)
        setup.become("a", STARTING)  # skep replica restart
        gateway.become(setup.loader.unloaded, [], ["a"])
        assert gateway.failure("a", 0.0) is None
        assert gateway.states == {"a": "loading"}


async def test_an_unload_ends_also_if_requests_bring_the_model_back_at_once():
    figures = {"a": ModelUsage(queued=1)}
    async with loader_of(("a", ON_DEMAND), figures=figures) as (setup, tasks):
        setup.load("a")
        unload = tasks.create_task(setup.loader.unload("a", wait=True))
        await asyncio.sleep(0)
        setup.loader.requested("a")
        await until(lambda: setup.replicas.is_asleep("a"))
        setup.loader.look()
        assert (await unload)["state"] == "loading"
