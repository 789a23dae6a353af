"""A replica actor keeps reporting to its registry, whatever becomes of the head and of the registry. Without Ray."""

import asyncio
import threading
from types import SimpleNamespace

from skep.cluster.replica_actor import HeartbeatSender, own_cards


class Heard:
    """A registry: what it heard; `away` for so many announcements; then it says `end`."""

    def __init__(self, *, away=0, ends_after=None, holds=False):
        self.rows, self.away, self.ends_after, self.holds = [], away, ends_after, holds
        self.announce = SimpleNamespace(remote=self._announce)

    async def _announce(self, name, row, me):
        if self.away:
            self.away -= 1
            raise ConnectionError
        self.rows.append((name, row, me))
        told = {"end": self.ends_after is not None and len(self.rows) >= self.ends_after}
        return told | ({"held": True} if self.holds else {})


def announced(find, timeout_s=5.0):
    """Runs until a registry says that it is over."""

    async def play():
        async with asyncio.timeout(timeout_s):
            await HeartbeatSender("m-0", lambda: {"state": "ready"}, "me", find, every_s=0.01).run()

    asyncio.run(play())


def test_it_announces_itself_with_its_own_handle_until_it_is_told_to_end():
    registry = Heard(ends_after=3)
    announced(lambda: registry)
    assert registry.rows == [("m-0", {"state": "ready"}, "me")] * 3


async def test_its_handle_is_sent_until_the_registry_has_it_and_again_after_a_word_was_lost():
    """The registry may have been started anew by then."""
    registry = Heard(ends_after=5, holds=True)

    def row():
        registry.away = int(len(registry.rows) == 3 and not lost)
        lost.extend("x" * registry.away)
        return {}

    lost = []
    async with asyncio.timeout(5.0):
        await HeartbeatSender("m-0", row, "me", lambda: registry, every_s=0.01).run()
    assert [me for _, _, me in registry.rows] == ["me", None, None, "me", None]


def test_a_registry_that_missed_a_word_is_tried_again_while_nobody_can_be_looked_up():
    """Without a head a lookup takes a minute. The handle that is known needs no head."""
    registry, head, looks = Heard(away=0, ends_after=3), threading.Event(), []

    def find():
        looks.append(threading.current_thread())
        if len(looks) > 1:
            head.wait(30.0)
            raise TimeoutError
        registry.away = 4  # from now on it misses some
        return registry

    try:
        announced(find)
        assert len(registry.rows) == 3
        assert len(looks) == 2, "never more than one at a time"
    finally:
        head.set()


def test_a_registry_made_anew_is_found_beside_the_one_that_is_gone():
    gone, new = Heard(away=10**9), Heard(ends_after=1)
    found = iter([gone, gone, None, new])

    def find():
        registry = next(found)
        if registry is None:
            raise ValueError("no such actor")
        return registry

    announced(find)
    assert (len(gone.rows), len(new.rows)) == (0, 1)


async def test_a_change_is_told_at_once():
    registry, state = Heard(ends_after=2), {"state": "starting"}
    announcer = HeartbeatSender("m-0", lambda: dict(state), "me", lambda: registry)
    running = asyncio.ensure_future(announcer.run())
    while not registry.rows:
        await asyncio.sleep(0.001)
    state["state"] = "ready"
    announcer.wake()
    async with asyncio.timeout(1.0):  # well before the next one is due
        await running
    assert [row["state"] for _, row, _ in registry.rows] == ["starting", "ready"]


async def test_what_the_registry_answers_is_heard():
    heard = []
    await HeartbeatSender("m-0", dict, "me", lambda: Heard(ends_after=1), heard=heard.append).run()
    assert heard == [{"end": True}]


def test_cards_that_have_no_number_are_left_as_ray_shows_them():
    assert own_cards(["0", 3]) == (0, 3)
    assert own_cards(["GPU-8c1f", "1"]) == own_cards(["MIG-GPU-8c1f/1/0"]) == own_cards([]) == ()
