"""The shell that scales: what the gateway says goes in, another number of replicas comes out, or why not."""

import asyncio
from types import SimpleNamespace

import pytest

from skep.engines.lifecycle import State
from skep.engines.scaler import Scaler
from skep.engines.scaling import Bounds
from skep.errors import DoesNotFit

BOUNDS = {"m": Bounds(1, 8, up_wait_s=1.0, down_after_s=0.05), "n": Bounds(1, 1)}
WAITING = {"busy": 4, "queued": 4, "wait_s": 2.0, "idle_s": None}
IDLE = {"busy": 0, "queued": 0, "wait_s": 0.0, "idle_s": 9.0}


def member(model, *, kind="replica", state=State.READY):
    launch = SimpleNamespace(place=None)
    life, started = SimpleNamespace(state=state, serving=state is State.READY), SimpleNamespace(slots=4)
    return SimpleNamespace(model=model, kind=kind, launch=launch, life=life, started=started)


class House:
    """A hive that has as many replicas as it is told to, if it has room for them."""

    def __init__(self, room=8):
        self.room, self.said, self.tried, self.heard = room, WAITING, [], []
        self.members = [member("m"), member("n"), member("m", kind="upstream")]
        self.drained = self.resting = None
        self.bounds, self.fault, self.looks = BOUNDS, None, 0
        self.moved = asyncio.Event()
        self.scaler = Scaler(
            self,
            bounds=lambda: self.bounds,
            figures=self.figures,
            scale=self.scale,
            possible=lambda: True,
            changed=self.changed,
            look_every_s=0.005,
            try_again_s=0.1,
        )

    def state(self, one):
        return "draining" if one in (self.drained, self.resting) else one.life.state.value

    def is_drained(self, one):
        return one is self.drained

    async def figures(self):
        self.looks += 1
        self.moved.set()
        if isinstance(self.said, Exception):
            raise self.said
        return {"m": self.said, "n": self.said} if isinstance(self.said, dict) else self.said

    async def scale(self, model, replicas):
        self.tried.append((model, replicas))
        if self.fault is not None:
            raise self.fault
        if replicas > self.room:
            raise DoesNotFit(f"{replicas} do not fit")
        others = [one for one in self.members if (one.model, one.kind) != (model, "replica")]
        self.members = [*others, *(member(model) for _ in range(replicas))]

    def changed(self):
        self.heard.append(self.scaler.standing("m"))
        self.moved.set()

    async def until(self, condition):
        async with asyncio.timeout(10):
            while not condition():
                self.moved.clear()
                await self.moved.wait()


def watched(story, house):
    async def run():
        running = asyncio.ensure_future(house.scaler.run())
        try:
            await story(house)
        finally:
            running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    return run


def test_it_grows_while_requests_wait_and_shrinks_when_they_are_gone():
    async def story(house):
        await house.until(lambda: house.scaler.standing("m")["replicas"] == 2)
        house.said = IDLE
        await house.until(lambda: house.scaler.standing("m")["replicas"] == 1)
        assert house.tried == [("m", 2), ("m", 1)], "a model with a fixed number is left alone"
        assert house.scaler.standing("n") == {
            "model": "n", "replicas": 1, "ready": 1, "least": 1, "most": 1, "why": None,
        }  # fmt: skip

    async def run():
        await watched(story, House())()

    asyncio.run(run())


def test_no_room_is_said_once_tried_again_later_and_forgotten_when_nothing_waits():
    async def story(house):
        await house.until(lambda: house.scaler.standing("m")["why"] == "would be 2: 2 do not fit")
        while len(house.tried) < 2:
            await asyncio.sleep(0.01)
        assert len(house.heard) == 1
        house.said = None  # a gateway that says nothing that is understood
        await asyncio.sleep(0.02)
        house.said = {**IDLE, "busy": 4}
        await house.until(lambda: house.scaler.standing("m")["why"] is None)
        assert house.scaler.standing("m")["replicas"] == 1

    async def run():
        await watched(story, House(room=1))()

    asyncio.run(run())


def test_where_not_all_fit_as_many_come_as_do():
    async def story(house):
        house.said = {**WAITING, "queued": 100}
        await house.until(lambda: house.scaler.standing("m")["replicas"] == 4)
        assert house.tried == [("m", 8), ("m", 4)]
        assert house.scaler.standing("m")["why"] == "would be 8: 8 do not fit"

    async def run():
        await watched(story, House(room=5))()

    asyncio.run(run())


def test_one_that_the_user_drained_is_made_up_for():
    async def story(house):
        house.said, house.drained = IDLE, house.members[0]
        await house.until(lambda: house.scaler.standing("m")["replicas"] == 2)

    async def run():
        await watched(story, House())()

    asyncio.run(run())


def test_one_that_rests_before_a_restart_is_not_made_up_for():
    """`skep restart` of the only replica, with an answer under way, once loaded another one for ten minutes."""

    async def story(house):
        house.said, house.resting = {**IDLE, "busy": 1}, house.members[0]
        await house.until(lambda: house.looks > 5)
        assert not house.tried

    asyncio.run(watched(story, House())())


def test_one_that_was_given_up_is_not_coming_and_is_made_up_for():
    async def story(house):
        house.members.append(member("m", state=State.FAILED))
        await house.until(lambda: house.scaler.standing("m")["replicas"] == 3)
        assert house.tried == [("m", 3)]

    asyncio.run(watched(story, House())())


def test_the_one_that_serves_is_not_ended_beside_one_that_was_given_up():
    async def story(house):
        house.said = IDLE
        house.members.append(member("m", state=State.FAILED))
        await house.until(lambda: house.looks > 20)  # longer than `down_after_s`
        assert not house.tried

    asyncio.run(watched(story, House())())


@pytest.mark.parametrize("fault", [IndexError("list index out of range"), OSError("no process to spare")])
def test_a_fault_of_ours_is_said_and_tried_again_later(fault):
    """It once ended the gateway and every answer with it."""

    async def story(house):
        house.fault = fault
        await house.until(lambda: house.scaler.standing("m")["why"])
        assert house.scaler.standing("m")["why"] == f"would be 2: unexpected {type(fault).__name__}: {fault}"
        house.fault = None
        await house.until(lambda: house.scaler.standing("m")["replicas"] == 2)
        await house.until(lambda: house.scaler.standing("m")["why"] is None)

    asyncio.run(watched(story, House())())


def test_a_look_that_fails_is_not_the_last_one():
    async def story(house):
        house.said = OSError("no link")
        await house.until(lambda: house.scaler.standing("m")["why"] == "unexpected OSError: no link")
        house.said = WAITING
        await house.until(lambda: house.scaler.standing("m")["replicas"] == 2)

    asyncio.run(watched(story, House())())


def test_what_a_model_would_have_been_is_forgotten_when_it_no_longer_scales():
    async def story(house):
        await house.until(lambda: house.scaler.standing("m")["why"] == "would be 2: 2 do not fit")
        house.bounds = {"m": Bounds(1, 1), "n": Bounds(1, 1)}
        await house.until(lambda: house.scaler.standing("m")["why"] is None)

    asyncio.run(watched(story, House(room=1))())
