"""The gateway as a process of its own: `python -m skep.gateway.process --listen-fd N --link-fd M`.

The listening socket belongs to the supervisor and outlives this process, so that a crash or an upgrade refuses no
connection. The link brings the replica table and takes questions; when it ends, the supervisor is gone, and so is
this process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from typing import Any

from skep.gateway.admission import Admission, AdmissionLimits, ReplicaSpec
from skep.gateway.proxy import Proxy
from skep.wire.link import Link, Message
from skep.wire.server import HttpServer

DRAIN_POLL_S = 0.02


async def serve(listener: socket.socket, link: Link) -> None:
    setup = await link.receive()
    if setup is None:
        return
    proxy = Proxy(Admission(AdmissionLimits(**setup.get("limits", {}))), api_key=setup.get("api_key"))
    server = HttpServer(proxy.handle)
    await server.listen(listener)
    link.send({"event": "listening"})
    clock = asyncio.create_task(proxy.run_clock())
    messages = asyncio.create_task(_follow(link, proxy, server))
    try:
        await asyncio.wait({clock, messages}, return_when=asyncio.FIRST_COMPLETED)
        for task in (clock, messages):
            if task.done():
                task.result()
    finally:
        clock.cancel()
        messages.cancel()
        proxy.cut_all()
        await server.close()
        await proxy.close()


async def _follow(link: Link, proxy: Proxy, server: HttpServer) -> None:
    """Carry out the supervisor's messages until it says `exit` or is gone."""
    async with asyncio.TaskGroup() as tasks:
        drains = []
        while (message := await link.receive()) is not None and message.get("op") != "exit":
            match message.get("op"):
                case "replicas":
                    specs = tuple(ReplicaSpec(**spec) for spec in message["replicas"])
                    proxy.set_replicas(specs, tuple(message["models"]))
                case "status":
                    link.send({"id": message.get("id"), **_status(proxy)})
                case "drain":
                    drains.append(tasks.create_task(_drain(link, proxy, server, message)))
        for drain in drains:
            drain.cancel()


async def _drain(link: Link, proxy: Proxy, server: HttpServer, message: Message) -> None:
    """`hand_over`: a new gateway takes the connections from now on; else new requests are told to come back later."""
    if message.get("hand_over"):
        server.stop_accepting()
    else:
        proxy.carry_out(proxy.admission.close())
    try:
        async with asyncio.timeout(message["timeout_s"]):
            while server.active or not proxy.drained.is_set():
                await asyncio.sleep(DRAIN_POLL_S)
    except TimeoutError:
        proxy.carry_out(proxy.admission.close())
    link.send({"id": message.get("id"), "event": "drained", "left": proxy.admission.in_flight})


def _status(proxy: Proxy) -> dict[str, Any]:
    admission = proxy.admission
    busy = {name: admission.busy(name) for name in admission.names()}
    return {"queued": admission.queued, "in_flight": admission.in_flight, "busy": busy}


def main() -> int:
    parser = argparse.ArgumentParser(prog="skep-gateway")
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--link-fd", type=int, required=True)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor says when to end

    async def run() -> None:
        link = await Link.over(socket.socket(fileno=args.link_fd))
        await serve(socket.socket(fileno=args.listen_fd), link)

    if sys.platform == "win32":
        asyncio.run(run())
    else:
        import uvloop

        uvloop.run(run())
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # nothing here needs an orderly interpreter shutdown, and a stop should be instant
