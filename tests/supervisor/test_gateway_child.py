"""The gateway of a hive as its supervisor sees it: what a new one is told."""

import asyncio
import socket
import sys

from supervised import until

from skep.config import gateway_messages as messages
from skep.supervisor.gateway_child import GatewayChild
from skep.wire.json_pipe import JsonPipe

# A gateway as the supervisor sees it: writes down the last table it was sent, and listens when a
# file is there.
CHILD = """
import json, os, pathlib, socket, sys, time
sock = socket.socket(fileno=int(sys.argv[sys.argv.index("--link-fd") + 1]))
folder = pathlib.Path(sys.argv[1])
link = sock.makefile("rwb")
def say(**message):
    link.write(json.dumps(message).encode() + b"\\n"); link.flush()
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
        event = {"drain": "drained"}.get(message["op"], "status")
        say(event=event, id=message["id"], left=0, status={})
"""


async def test_a_new_gateway_has_the_newest_table(tmp_path):
    """A model was loaded or unloaded between its start and its listening: `skep replica restart
    gateway`.
    """
    argv = [sys.executable, "-S", "-c", CHILD, str(tmp_path)]
    settings = {"setup": messages.GatewaySetup(), "log": tmp_path / "log"}
    with socket.socket() as listener:
        gateway = GatewayChild(argv, listener, **settings, changed=lambda: None)
        gateway.publish(messages.ReplicaTable(models=("old",)))
        (tmp_path / "go").touch()
        running = asyncio.get_running_loop().create_task(gateway.run())
        await until(lambda: gateway.listening)
        (tmp_path / "go").unlink()
        restarting = asyncio.get_running_loop().create_task(gateway.restart(0.1))
        await until(lambda: len(list(tmp_path.glob("told-*"))) == 2)
        gateway.publish(messages.ReplicaTable(models=("new",)))
        (tmp_path / "go").touch()
        await restarting
        await gateway.status()  # it has read all that was sent before
        text = (tmp_path / str(gateway.pid)).read_text()
        await gateway.stop()
        await running
    assert text == "new"
    assert (gateway.restarts, gateway.why) == (1, None)


async def test_what_a_newer_gateway_says_is_taken_as_far_as_it_is_understood():
    """`skep replica restart gateway` after an upgrade: the supervisor is the older one.

    Nonsense is as silence.
    """
    ours, theirs = [await JsonPipe.over(end, messages.FromGateway) for end in socket.socketpair()]
    for message in (
        {"event": "sings"},
        {"event": "wanted"},
        {"event": "wanted", "model": "m", "since_s": 3},
    ):
        theirs.send(message)
    assert await ours.receive() == messages.ModelWanted("m")
    await theirs.close()
    assert await ours.receive() is None
    await ours.close()
