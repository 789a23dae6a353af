"""A hive whose replicas stand on other nodes: replicas like others, with a node and a log of their
own.
"""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace
from supervised import FAR, GATEWAY_ARGV, LAUNCH, FarReplica, Service, hive_of, replicas_of

from skep.config.gateway_messages import GatewaySetup, GatewayStatus, ReplicaFigures
from skep.config.settings import Serve, Settings
from skep.errors import EngineError, UserError
from skep.supervisor.control import ask_down
from skep.supervisor.control_commands import answer as ask
from skep.supervisor.hive_status import NO_ANSWER
from skep.supervisor.lifecycle import ReplicaState
from skep.supervisor.main import description
from skep.supervisor.supervisor import Hive, Supervisor, rescaled

SECOND = replace(FAR, name="m-1")


def told(replicas, *keys):
    """These fields of each replica, as the gateway has them."""
    return [tuple(getattr(row, key) for key in keys) for row in replicas.table({}).replicas]


def draining(supervisor):
    """Which replicas get nothing new, as the gateway has it."""
    return [replica.draining for replica in supervisor.replica_set.table({}).replicas]


async def test_the_gateway_is_told_the_slots_that_an_engine_was_started_with(tmp_path):
    keys = ("slots", "reserve", "soft_slots", "draining")
    async with replicas_of(tmp_path, replace(FAR, soft_slots=6), elsewhere=FarReplica) as setup:
        replicas = setup.replicas
        await setup.until(lambda: replicas.find("m-0").settled)
        assert told(replicas, *keys) == [(8, 2, 6, False)]
        replicas.find("m-0").slots = 2
        assert told(replicas, *keys) == [(2, 1, 2, False)], "after a fall-back"


async def test_a_hive_knows_its_replicas_elsewhere_by_their_nodes(tmp_path):
    async with hive_of(tmp_path, FAR, SECOND) as (supervisor, _):
        supervisor.replica_set.find("m-1").slots = 3
        first, second, gateway, cluster = supervisor.rows(None)
        replicas = description(supervisor)["replicas"]
    assert (first["name"], first["node"], first["slots"]) == ("m-0", "a", 8)
    assert (second["name"], second["node"], second["slots"]) == ("m-1", "b", 3)
    assert gateway["slots"] == 11
    assert (cluster["state"], cluster["pid"]) == ("ready", None)
    assert [row["name"] for row in replicas] == ["m-0", "m-1"]


async def test_a_replica_is_drained_by_its_name_and_undrained(tmp_path):
    service = Service()
    async with hive_of(tmp_path, FAR, SECOND, remote=service) as (supervisor, _):
        await ask(supervisor, {"op": "drain", "name": "m-1"})
        assert draining(supervisor) == [False, True]
        with pytest.raises(EngineError, match="there is no replica `z`") as caught:
            await ask(supervisor, {"op": "drain", "name": "z"})
        assert caught.value.hint == "known: m-0, m-1"
        await ask(supervisor, {"op": "undrain", "name": "m-1"})
        assert draining(supervisor) == [False, False]
    assert service.story == ["starts", "stop"]


async def test_a_log_elsewhere_comes_over_the_control_socket(tmp_path):
    async with hive_of(tmp_path, FAR) as (supervisor, _):
        tail = await ask(supervisor, {"op": "log", "name": "m-0", "lines": 2})
        assert tail == {"ok": True, "text": "two\nthree\n", "offset": 14}
        rest = await ask(supervisor, {"op": "log", "name": "m-0", "offset": 8})
        assert rest["text"] == "three\n"
        gateway = await ask(supervisor, {"op": "log", "name": "gateway"})
        assert gateway == {"ok": True}, "its log is a file of this machine"


async def test_a_replica_elsewhere_that_does_not_answer_the_gateway_is_not_called_ready(tmp_path):
    """Its node said so once, and nobody may be left to say more: the head is lost."""
    async with hive_of(tmp_path, FAR, SECOND) as (supervisor, _):
        lost = ReplicaFigures("m-0", 8, 0, 0, "half-open")
        served = ReplicaFigures("m-1", 8, 0, 0, "up")
        first, second, gateway, _ = supervisor.rows(GatewayStatus(replicas=[lost, served]))
    assert (first["state"], first["why"]) == ("backoff", NO_ANSWER)
    assert second["state"] == "ready"
    assert gateway["slots"] == 8


async def test_an_service_that_cannot_go_on_ends_the_hive_with_its_reason(tmp_path):
    with socket.socket() as listener:
        hive = Hive((), GATEWAY_ARGV, GatewaySetup(), "http://x", tmp_path)
        service = Service(UserError("no cluster at `x`", hint="start one"))
        with pytest.raises(UserError, match="no cluster at `x`"):
            await Supervisor(hive, listener, lambda _s: None, remote=service).run()
    assert service.story == ["starts", "stop"]


class Deaf(FarReplica):
    async def restart(self):
        raise EngineError("`m-0` cannot be started anew: the cluster does not answer")


async def test_one_that_cannot_be_told_to_restart_is_let_in_again(tmp_path):
    async with hive_of(tmp_path, FAR, remote=Service(member=Deaf)) as (supervisor, _):
        with pytest.raises(EngineError, match="cannot be started anew"):
            await ask(supervisor, {"op": "restart", "name": "m-0"})
        assert draining(supervisor) == [False]


async def test_one_that_was_restarted_in_a_moment_is_let_in_again(tmp_path):
    """What is told of a replica elsewhere may leave out that it did not serve for a while."""
    async with hive_of(tmp_path, FAR) as (supervisor, _):
        await ask(supervisor, {"op": "restart", "name": "m-0"})
        member = supervisor.replica_set.find("m-0")
        member._changed()
        assert member.restarted == 1
        assert draining(supervisor) == [True]
        member.life.restarts += 1
        member._changed()
        assert draining(supervisor) == [False]


LEFT = "the cluster does not answer: its replicas end by themselves within 60 s"


@pytest.mark.parametrize(("answer", "left_behind"), [(None, []), (LEFT, [LEFT])])
async def test_who_stops_it_hears_what_could_not_be_ended(tmp_path, answer, left_behind):
    path = tmp_path / "control"
    async with hive_of(tmp_path, FAR, remote=Service(not_ended=answer), control=path) as (
        supervisor,
        until,
    ):
        onlooker, looking = await asyncio.open_unix_connection(path)
        looking.write(b'{"op": "status"}\n')
        assert json.loads(await onlooker.readline())["phase"] == "ready"
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b'{"op": "down", "drain_s": 0}\n')
        await until(lambda: supervisor.phase == "stopping")
    text = await reader.read()
    first, last = (json.loads(line) for line in text.splitlines())
    assert first["ok"]
    assert last == {"left_behind": left_behind}
    assert await onlooker.read() == b"", "who asked for something else hears nothing"
    for end in (looking, writer):
        end.close()


@pytest.mark.parametrize(
    ("last", "left_behind"), [(b'{"left_behind": ["x"]}\n', ["x"]), (b"", []), (b'{"left', [])]
)
def test_the_last_words_may_come_with_the_answer_or_not_at_all(tmp_path, last, left_behind):
    document = {"ok": True, "pid": 2**30, "drain_s": 0.0, "stop_s": 5.0}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control"))
        listener.listen()

        def answer():
            with listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(json.dumps(document).encode() + b"\n" + last)

        with ThreadPoolExecutor() as beside:
            beside.submit(answer)
            assert ask_down(tmp_path / "control") == left_behind


async def test_ending_may_take_longer_where_replicas_stand_elsewhere(tmp_path):
    for launch, remote, stop_s in ((LAUNCH, None, 15.0), (FAR, Service(), 75.0)):
        async with hive_of(tmp_path, launch, remote=remote) as (supervisor, _):
            response = await ask(supervisor, {"op": "down", "drain_s": 0.0})
        assert response["drain_s"] == 0.0
        assert response["stop_s"] == stop_s


# Fewer replicas than there are: those with the last numbers go


async def test_a_hive_does_not_stop_when_what_is_left_is_given_up_while_another_one_goes(tmp_path):
    served = {"serve": [{"model": "m", "replicas": 2}], "cluster": {"address": "auto"}}

    def rebuilt(settings, hive, _running):
        return replace(hive, replicas=(FAR, SECOND)[: settings.serve[0].replicas])

    async with hive_of(tmp_path, FAR, SECOND, rebuild=rebuilt) as (hive, until):
        await ask(hive, {"op": "reload", "settings": served, "wait": True})
        replicas = hive.replica_set
        answered = asyncio.Event()

        async def under_way(_name):
            return 0 if answered.is_set() else 1

        replicas.busy = under_way
        going = asyncio.ensure_future(
            ask(hive, {"op": "scale", "model": "m", "replicas": 1, "wait": True})
        )
        await until(lambda: replicas.shown_state(replicas.find("m-1")) == "draining")
        replicas.find("m-0").become(ReplicaState.FAILED)
        answered.set()
        await going
        assert replicas.names == ["m-0"]
        assert hive.phase == "ready"
        assert not hive._stop_asked.is_set()


# Settings with another number of replicas


@pytest.mark.parametrize(
    ("have", "total", "want"),
    [
        ([2], 5, [5]),
        ([2, 1], 1, [1, 0]),
        ([2, 1], 5, [4, 1]),
        ([1, 0, 0], 2, [2, 0, 0]),
        ([2, 2, 1], 3, [2, 1, 0]),
    ],
)
def test_tables_of_one_model_share_a_number_the_first_ones_first(have, total, want):
    tables = [Serve(model="m", replicas=count) for count in have]
    settings = Settings(serve=(*tables, Serve(model="n")))
    after = rescaled(settings, "m", total)
    assert [serve.replicas for serve in after.serve] == [*want, 1]
