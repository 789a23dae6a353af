"""Live figures: one reader for all browsers, only what changed is sent, a browser that leaves ends
its stream.
"""

import asyncio
import contextlib
import json
from functools import partial

import pytest
from running_site import running
from running_site import status as status_of
from stored_runs import gateway_request

from skep.errors import EngineError
from skep.paths import user_paths
from skep.store.database import open_store
from skep.supervisor.control import NotRunning
from skep.web import live as live_module
from skep.web.context import Site
from skep.web.live import Live, Stream, read_ttft

status = partial(status_of, {"name": "m-0", "slots": 4})


class Readings:
    """Answers one after another, the last for ever; counts how often it was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.calls = 0

    def __call__(self, _site):
        self.calls += 1
        if len(self.answers) > 1:
            answer = self.answers.pop(0)
        else:
            answer = self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Browser:
    """One end of `Stream`, without a socket."""

    def __init__(self):
        self.events = asyncio.Queue()
        self.status = None
        self.ended = False
        self._left_page = asyncio.Event()

    def leave(self):
        self._left_page.set()

    async def receive(self):
        await self._left_page.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.ended = not message.get("more_body", False)
        for event in message["body"].decode().split("\n\n"):
            if event.startswith("data: "):
                self.events.put_nowait(json.loads(event.removeprefix("data: ")))


def render(document, _watched):
    return {"state": document["state"], "speed": str((document["hive"] or {}).get("tok_s"))}


@contextlib.asynccontextmanager
async def going(env, readings, browsers=1, **options):
    live = Live(Site(user_paths(env)), read=readings, every_s=0.01, **options)
    stream = Stream(live, render)
    guests = [Browser() for _ in range(browsers)]
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        reader = tasks.create_task(live.run())
        for guest in guests:
            tasks.create_task(stream({"type": "http", "method": "GET"}, guest.receive, guest.send))
        yield live, guests
        for guest in guests:
            guest.leave()
        reader.cancel()


async def test_one_reader_serves_all_browsers(env):
    readings = Readings(status())
    async with going(env, readings, browsers=5) as (_, guests):
        for _ in range(3):
            for guest in guests:
                assert (await guest.events.get())["state"] == "up"
        assert readings.calls <= 10


async def test_only_what_changed_is_sent_again(env):
    async with going(env, Readings(status())) as (_, (guest,)):
        first, second, third = [await guest.events.get() for _ in range(3)]
    assert first["parts"] == {"state": "up", "speed": "None"}
    assert "state" not in second["parts"]
    assert third["parts"] == {}
    assert third["hive"]["slots"]["active"] == 3


async def test_a_hive_is_found_when_it_comes_and_missed_when_it_goes(env):
    down = NotRunning()
    hung = EngineError("it does not answer")
    async with going(env, Readings(down, status(), hung, status(), down)) as (_, (guest,)):
        events = [await guest.events.get() for _ in range(5)]
    assert [event["state"] for event in events] == ["down", "up", "silent", "up", "down"]
    assert "skep up -d" in events[0]["hint"]
    assert events[2]["hive"]["pid"] == 1  # shown as it was
    assert events[4]["hive"] is None


async def test_another_hive_begins_its_rates_anew(env):
    readings = ((1, 1e6), (1, 2e6), (2, 5.0), (2, 5.0))
    async with going(
        env, Readings(*(status(pid=pid, tokens=tokens) for pid, tokens in readings))
    ) as (
        _,
        (guest,),
    ):
        events = [await guest.events.get() for _ in range(4)]
    assert events[1]["hive"]["tok_s"] > 0
    assert len(events[2]["hive"]["history"]["tok_s"]) == 1
    assert events[3]["hive"]["tok_s"] is None  # slots are busy and nothing has passed


async def test_a_browser_that_goes_away_ends_its_stream_and_the_reader_rests(env):
    readings = Readings(status())
    now = [0.0]
    async with going(env, readings, clock=lambda: now[0]) as (live, (guest,)):
        await guest.events.get()
        guest.leave()
        while live._streams:
            await asyncio.sleep(0)
        now[0] += live_module.LINGER_S + 1
        while live._demand.is_set():
            await asyncio.sleep(0)
        calls = readings.calls
        await asyncio.sleep(0.05)
        assert readings.calls == calls
        assert (await live.fresh())["state"] == "up"


async def test_closing_ends_every_stream(env):
    async with going(env, Readings(status()), browsers=3) as (live, guests):
        await guests[0].events.get()
        live.close()
        while not all(guest.ended for guest in guests):
            await asyncio.sleep(0)


async def test_a_silent_stream_has_a_heartbeat(env, monkeypatch):
    """Proxies and phones close a connection on which nothing comes."""
    monkeypatch.setattr(live_module, "HEARTBEAT_S", 0.01)
    live = Live(Site(user_paths(env)))
    heard = asyncio.Event()

    async def send(message):
        if b": still here" in message.get("body", b""):
            heard.set()

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        guest = Browser()
        tasks.create_task(
            Stream(live, render)({"type": "http", "method": "GET"}, guest.receive, send)
        )
        await heard.wait()
        guest.leave()


def test_first_tokens_are_told_of_streamed_answers_of_late(env):
    paths = user_paths(env)
    now = 5000.0

    assert read_ttft(Site(paths), now) is None
    with open_store(paths.store) as store:
        store.append_gateway_requests(
            [
                *(gateway_request(now - 2, first_byte_s=first) for first in (0.1, 0.3, 0.2, None)),
                gateway_request(now - 1, first_byte_s=9.0, streamed=False),
                gateway_request(now - 1, first_byte_s=9.0, outcome="broken"),
                gateway_request(now - 4000, first_byte_s=9.0),
            ]
        )
    ttft = read_ttft(Site(paths), now)
    assert ttft is not None
    assert ttft["count"] == 3
    assert ttft["median_ms"] == pytest.approx(200)


@pytest.mark.parametrize(
    "answer", [{"pid": "of another version"}, {**status(), "gateway": {"tokens": [1]}}, None]
)
def test_a_hive_that_answers_nonsense_does_not_end_the_dashboard(env, answer):
    """The reader is one task for all browsers: were it to end, so would every page."""

    def read(_site):
        if answer is None:
            raise ValueError("not a status")
        return answer

    with running(Site(user_paths(env)), read=read) as ask:
        for _ in range(2):
            response, body = ask("/api/now.json")
            assert response.status == 200
            assert json.loads(body)["state"] == "silent"
