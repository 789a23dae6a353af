"""The gateways of a hive as its supervisor sees them: what a new one is told, and several told as one."""

import asyncio
import socket
import sys

from supervised import until

from skep.config import gateway_messages as messages
from skep.supervisor.gateway_child import GatewayChild, merge_status
from skep.wire.json_pipe import JsonPipe

# A gateway as the supervisor sees it: keeps the last table it was told, listens when a file is there.
CHILD = """
import json, os, pathlib, socket, sys, time
sock = socket.socket(fileno=int(sys.argv[sys.argv.index("--link-fd") + 1]))
folder = pathlib.Path(sys.argv[1])
link = sock.makefile("rwb")
def say(**what):
    link.write(json.dumps(what).encode() + b"\\n"); link.flush()
ready = False
for line in link:
    message = json.loads(line)
    if message.get("op") == "replicas":
        (folder / str(os.getpid())).write_text(message["models"][0])
        if not ready:
            (folder / f"told-{os.getpid()}").touch()
            while not (folder / "go").exists():
                time.sleep(0.01)
            say(event="listening"); ready = True
    elif message.get("op") == "exit":
        break
    elif "id" in message:
        say(event={"drain": "drained"}.get(message["op"], "status"), id=message["id"], left=0, status={})
"""


async def test_a_new_gateway_has_the_newest_table(tmp_path):
    """A model was loaded or unloaded between its start and its listening: `skep replica restart gateway`."""
    listener = socket.socket()
    argv, told = (
        [sys.executable, "-S", "-c", CHILD, str(tmp_path)],
        {"setup": messages.GatewaySetup(), "log": tmp_path / "log"},
    )
    gateway = GatewayChild(argv, listener, **told, changed=lambda: None)
    gateway.publish(messages.ReplicaTable(models=("old",)))
    (tmp_path / "go").touch()
    running = asyncio.get_running_loop().create_task(gateway.run())
    await until(lambda: gateway.listening)
    (tmp_path / "go").unlink()
    replacing = asyncio.get_running_loop().create_task(gateway.replace(0.1))
    await until(lambda: len(list(tmp_path.glob("told-*"))) == 2)
    gateway.publish(messages.ReplicaTable(models=("new",)))
    (tmp_path / "go").touch()
    await replacing
    await gateway.status()  # it has read all that was sent before
    said = (tmp_path / str(gateway.pid)).read_text()
    await gateway.stop()
    await running
    listener.close()
    assert said == "new"


def status(active, queued, **models):
    return messages.GatewayStatus(queued=queued, in_flight=active, busy={"m-0": active + 1}, models=models)


def test_a_gateway_has_what_is_under_way_in_the_ones_it_replaces():
    """A model is not unloaded while one of them streams its answers."""
    mine, theirs = messages.ModelUsage(2, 1, 4.0), messages.ModelUsage(1, 0, None)
    told = merge_status([status(1, 2, m=mine), status(2, 0, m=theirs, n=theirs)])
    assert (told.queued, told.in_flight, told.busy) == (2, 3, {"m-0": 5})
    assert told.models == {"m": messages.ModelUsage(3, 1, 4.0), "n": messages.ModelUsage(busy=1)}


async def test_what_a_newer_gateway_says_is_taken_as_far_as_it_is_understood():
    """`skep replica restart gateway` after an upgrade: the supervisor is the older one. Nonsense is as silence."""
    ours, theirs = [await JsonPipe.over(end, messages.FromGateway) for end in socket.socketpair()]
    for message in ({"event": "sings"}, {"event": "wanted"}, {"event": "wanted", "model": "m", "since_s": 3}):
        theirs.send(message)
    assert await ours.receive() == messages.ModelWanted("m")
    await theirs.close()
    assert await ours.receive() is None
    await ours.close()
