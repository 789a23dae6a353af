"""The envoy: the one process beside a gateway that speaks with Ray. `python -m skep.cluster.ray_driver --link-fd N`.

Ray ends a driver whose cluster is lost. So that this costs nobody an answer, neither the supervisor nor the gateway is
one. The envoy carries out what the supervisor says (wanted, place, end, avoid) and tells what the ledger tells. It has
no state of its own: a new envoy is told everything again, and ends what stands and is not wanted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, NoReturn

from skep.cluster.actor_manager import ActorManager, Say
from skep.cluster.connect import join
from skep.cluster.node_file import connection_to
from skep.cluster.ray_subprocess import words_of
from skep.cluster.registry_actor import find_registry, make_registry
from skep.cluster.replica_registry import OWNED_S
from skep.cluster.values import in_chunks, launch_of
from skep.engines.base import Launch
from skep.errors import EngineError, SkepError
from skep.wire.json_pipe import JsonPipe, Message

HEAD_EVERY_S = 1.0
HEAD_S = 2.0
MISSES = 2  # in a row: the head is lost


class NewHead(Exception):
    """Another cluster has taken the address of ours, or our machine has joined one. Only a new driver can join it."""


class HeadWatch:
    """`asked_for`: the address as the user gave it; `auto` may come to mean another cluster."""

    def __init__(self, asked_for: str, told: Callable[[], None]) -> None:
        self.lost = False
        self._asked_for = asked_for
        self._told = told  # after each change
        self._asking = ThreadPoolExecutor(1, "head")

    async def run(self) -> None:
        import ray

        loop, misses = asyncio.get_running_loop(), 0
        address = ray.get_runtime_context().gcs_address
        client = import_module("ray._raylet").GcsClient(address=address)
        while True:
            await asyncio.sleep(HEAD_EVERY_S)
            misses = 0 if await loop.run_in_executor(self._asking, _answers, client) else misses + 1
            if self.lost and self._asked_for == "auto" and await asyncio.to_thread(_is_elsewhere, address):
                raise NewHead
            if (misses >= MISSES) != self.lost:
                self.lost = misses >= MISSES
                self._told()


def _is_elsewhere(head: str) -> bool:
    """Whether this machine is a node of another cluster by now, which `auto` means from then on."""
    return connection_to("auto", os.environ).head not in ("auto", head)


def _answers(client: Any) -> bool:
    """Whether the head does, in time. Ray's public calls wait for it as long as it takes, and so does a new client."""
    try:
        client.internal_kv_exists(b"skep", namespace=b"skep", timeout=HEAD_S)
    except (AttributeError, TypeError):
        return True  # this Ray has another way to ask: it says nothing of the head
    except Exception as error:
        if "WrongClusterID" in str(error):
            raise NewHead from None
        return False
    return True


TABLE_S = 2.0
ASK_S = 1.8
CLAIM_S = 60.0
MEND_EVERY_S = 5.0
LATE_S = 1.0


class TakenOver(EngineError):
    """Another gateway has the hive: what stands is left alone."""


class RayDriver:
    """`setup`: address, hive, gateway, key, policy, abandoned_after_s. `gateway`: the name of this one."""

    def __init__(self, link: JsonPipe, setup: Message) -> None:
        self._link = link
        self._setup = setup
        self._hive: str = setup["hive"]
        self._gateway: str = setup["gateway"]
        self._policy: Message = setup["policy"]
        self._ledger: Any = None
        self._actors: ActorManager | None = None
        self._wanted: dict[str, Launch] | None = None  # None: not told yet
        self._rows: dict[str, Message] = {}
        self._said: dict[str, Message] = {}  # of replicas that have no post to speak for them
        self._told: dict[str, Message] = {}  # what the supervisor knows of each
        self._coming: dict[str, Launch] = {}  # of what is wanted, the parts that have come
        self._turns: dict[str, asyncio.Lock] = {}  # a replica is never placed while it is ended
        self._placing: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._orders: set[asyncio.Task[None]] = set()
        self._head = HeadWatch(setup["address"], self._tell_head)
        self._lookup = ThreadPoolExecutor(1, "ledger")  # without a head a lookup takes a minute: never two at once

    async def run(self) -> None:
        await asyncio.to_thread(join, self._setup["address"])
        await self._enter()
        works = (self._follow_link(), self._follow_table(), self._head.run(), self._repair_loop())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, *self._orders):
                task.cancel()

    async def _enter(self) -> None:
        """Find the ledger, or make it; and be the only one that places replicas."""
        import ray

        self._ledger = await asyncio.to_thread(self._make_registry)
        await self._claim(CLAIM_S)
        self._actors = ActorManager(self._hive, self._setup["key"], self._policy)
        address = ray.get_runtime_context().gcs_address
        self._link.send({"event": "joined", "address": address, "ray": ray.__version__})

    def _make_registry(self) -> Any:
        return make_registry(self._hive, abandoned_after_s=self._setup["abandoned_after_s"])

    async def _claim(self, timeout_s: float = ASK_S) -> None:
        """With the policy for the posts. Raises TakenOver where another gateway has the hive."""
        self._check(await asyncio.wait_for(self._ledger.claim.remote(self._gateway, self._policy), timeout_s))

    def _check(self, owner: str) -> None:
        if owner != self._gateway:
            where = owner.rpartition(":")[0]  # its machine and process
            hint = f"`--hive NAME` starts another one beside it; if its skep was killed, try again in {OWNED_S:g} s"
            raise TakenOver(f"a hive `{self._hive}` runs in this cluster already (from {where})", hint=hint)

    # What the supervisor says

    async def _follow_link(self) -> None:
        while (message := await self._link.receive()) is not None and message.get("op") != "exit":
            order = asyncio.create_task(self._safely(message.get("id"), self._carry_out(message)))
            self._orders.add(order)
            order.add_done_callback(self._orders.discard)

    async def _safely(self, number: Any, work: Coroutine[Any, Any, Message | None]) -> None:
        """Whatever one order comes to, the others are carried out."""
        try:
            answer = await work
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        if number is not None:
            self._link.send({**(answer or {}), "id": number})

    async def _carry_out(self, message: Message) -> Message | None:
        assert self._actors is not None
        name = str(message.get("name"))
        match message["op"]:
            case "wanted":
                self._want(message)
            case "place":
                launch = launch_of(message["launch"])
                if self._wanted is not None:
                    self._wanted[launch.name] = launch
                self._place(launch)
                self._told.pop(launch.name, None)  # who asks for it knows nothing of it
                self._tell()
            case "policy":
                self._policy = self._actors.policy = message["policy"]
                await self._claim()
            case "avoid":
                self._actors.avoid = tuple(message["nodes"])
            case "end":
                (self._wanted or {}).pop(name, None)
                if await self._is_ours():
                    await self._end(name)
            case "restart":
                await self._actors.ask(name, "restart")
            case "log":
                return await self._actors.ask(name, "log_since", message["offset"], message["lines"]) or {}
            case "leave":
                await self._leave()
        return {}

    def _want(self, message: Message) -> None:
        if message["first"]:
            self._coming = {}
        self._coming |= {launch.name: launch for launch in map(launch_of, message["launches"])}
        if message["last"]:
            self._wanted = self._coming
            for launch in self._wanted.values():
                self._place(launch)

    async def _is_ours(self) -> bool:
        """Asked before anything is placed or ended: who was not heard for a while does not know yet that it is not.

        A ledger that does not answer has given it to nobody.
        """
        try:
            if not self._head.lost:
                await self._claim()
        except TakenOver:
            return False
        except Exception:  # noqa: S110
            pass
        return True

    def _place(self, launch: Launch) -> None:
        assert self._actors is not None
        if launch.name in self._placing:
            return

        def say(state: str, why: str | None) -> None:
            self._said[launch.name] = {"state": state, "why": why}
            self._tell()

        standing = {name: row["node_id"] for name, row in self._rows.items() if row.get("node_id")}
        task = asyncio.create_task(self._ensure(launch, standing, say))
        self._placing[launch.name] = task

        def done(finished: asyncio.Task[None]) -> None:
            self._placing.pop(launch.name, None)
            if not finished.cancelled() and (error := finished.exception()) is not None:
                say("waiting", f"it cannot be placed: {str(error)[:200]}")

        task.add_done_callback(done)

    async def _ensure(self, launch: Launch, standing: dict[str, str], say: Say) -> None:
        assert self._actors is not None
        async with self._turn(launch.name):
            if await self._is_ours():
                await self._actors.ensure(launch, standing, say)

    def _turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())

    async def _end(self, name: str) -> None:
        """Where the head is lost only the engine ends; `_mend` ends the rest when the head is back."""
        assert self._actors is not None
        self._ending.add(name)
        try:
            if (placing := self._placing.get(name)) is not None:
                placing.cancel()
                await asyncio.wait({placing})
            async with self._turn(name):
                await self._actors.end(name, headless=self._head.lost)
                with contextlib.suppress(Exception):  # a ledger that is away: it is told again by `_mend`
                    await asyncio.wait_for(self._ledger.forget.remote(name), ASK_S)
                self._rows.pop(name, None)
                self._said.pop(name, None)
        finally:
            self._ending.discard(name)

    async def _leave(self) -> None:
        """With all posts and the ledger, if they are ours; until they have ended nobody else can have the hive."""
        assert self._actors is not None
        self._wanted = {}
        if not await self._is_ours():
            return
        names = {*self._rows, *self._placing}
        if not self._head.lost:
            names |= set(await asyncio.to_thread(self._actors.all_names))
        await asyncio.gather(*(self._end(name) for name in names), return_exceptions=True)
        if not self._head.lost:
            import ray

            await asyncio.to_thread(ray.kill, self._ledger, no_restart=True)

    # What the cluster says

    async def _follow_table(self) -> None:
        version = 0
        while True:
            try:
                asked = self._ledger.table.remote(self._gateway, version, TABLE_S)
                told = await asyncio.wait_for(asked, TABLE_S + ASK_S)
                if told["owner"] is None:  # a ledger that was started anew
                    await self._claim()
                else:
                    self._check(told["owner"])
            except TakenOver:
                raise
            except Exception:  # it starts anew, or its node is gone: the newest table stands meanwhile
                await asyncio.sleep(LATE_S)
                await self._find_registry_again()
                continue
            if told["version"] != version:
                version = told["version"]
                known = self._rows if told["settling"] else {}  # not all have announced themselves yet
                self._rows = {**known, **told["rows"]}
                self._said = {name: said for name, said in self._said.items() if name not in told["rows"]}
                self._tell()

    async def _find_registry_again(self) -> None:
        """Under the same name: Ray has started it anew, or it is gone for good and is made again."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(Exception):  # there is no head: again after LATE_S
            found: Any = await loop.run_in_executor(self._lookup, find_registry, self._hive)
            if found is not None:
                self._ledger = found
            else:
                self._ledger = await loop.run_in_executor(self._lookup, self._make_registry)

    def _tell_head(self) -> None:
        self._link.send({"event": "head", "lost": self._head.lost})

    def _tell(self) -> None:
        """What has changed, and with the last part which there are."""
        rows = {**self._said_rows(), **self._rows}
        news = [row for name, row in rows.items() if self._told.get(name) != row]
        if not news and rows.keys() == self._told.keys():
            return
        self._told = rows
        for part in in_chunks(news):
            names = {"names": list(rows)} if part.last else {}
            self._link.send({"event": "replicas", "rows": part.rows, **names})

    def _said_rows(self) -> dict[str, Message]:
        return {
            name: {"name": name, "node": None, "url": None, "pid": None, "restarts": 0, "engine": None, **said}
            for name, said in self._said.items()
        }

    async def _repair_loop(self) -> None:
        """A post that Ray gave up is made again, one that nobody wants is ended; one that is only away Ray moves."""
        while True:
            await asyncio.sleep(MEND_EVERY_S)
            if self._wanted is None or self._head.lost or not await self._is_ours():
                continue
            try:
                await self._repair(self._wanted)
            except Exception:  # the head went meanwhile, or a post: looked at again
                traceback.print_exc()

    async def _repair(self, wanted: dict[str, Launch]) -> None:
        assert self._actors is not None
        for name, launch in list(wanted.items()):
            row = self._rows.get(name)
            if (row is None or row["state"] == "away") and name not in self._placing:
                self._place(launch)
        stands = await asyncio.to_thread(self._actors.all_names)
        for name in {*stands, *self._rows} - (self._wanted or {}).keys() - self._ending:
            if not await self._is_ours():
                return
            if name not in (self._wanted or ()) and name not in self._ending:  # as it is when its turn comes
                await self._end(name)


async def serve(link_fd: int) -> NoReturn:
    """Ends the process: Ray's own farewell takes seconds, and threads that wait for a lost head would not let go."""
    code, link = 0, await JsonPipe.over(socket.socket(fileno=link_fd))
    try:
        setup = await link.receive()
        if setup is not None:
            await RayDriver(link, setup).run()
    except SkepError as error:
        link.send({"event": "failed", **words_of(error), "taken_over": isinstance(error, TakenOver)})
        code = error.exit_code
    except NewHead:
        print("there is a new head; this envoy ends", file=sys.stderr)  # noqa: T201 - its log
        code = 1
    except Exception:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(Exception):
        await asyncio.wait_for(link.close(), 1.0)
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(prog="skep-envoy")
    parser.add_argument("--link-fd", type=int, required=True)
    asyncio.run(serve(parser.parse_args().link_fd))


if __name__ == "__main__":
    main()
