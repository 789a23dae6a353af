"""Engines, presets and exports, in the order that hurts: each test names what goes wrong."""

import asyncio
import http.server
import json
import os
import socket
import struct
import sys
import threading
import time
from contextlib import asynccontextmanager, closing
from dataclasses import replace

import pytest

from skep.catalog.needs import RunEnvironment, missing_needs
from skep.catalog.options import EngineOptions
from skep.catalog.presets import Need
from skep.config.load import parse_settings
from skep.config.presets import preset, serve_of
from skep.config.settings import Serve, Settings
from skep.deploy.export_container import docker as export_docker
from skep.deploy.export_recipe import recipe_of
from skep.deploy.gpus import GpuCard
from skep.deploy.launches import LocalMachine, plan_launches, read_machine
from skep.engines.base import Diagnosis, Launch
from skep.engines.diagnosis import RULES, diagnose
from skep.engines.diagnosis_rule import match, plain_lines
from skep.engines.fake import Fake
from skep.errors import DoesNotFit, UserError
from skep.paths import user_paths
from skep.supervisor.eviction import Eviction, LoadModel, MemoryBudget, ModelSpec, ModelUsage, Residency, model_specs
from skep.supervisor.lifecycle import ReplicaState, RestartPolicy
from skep.supervisor.replica import Replica
from skep.supervisor.replica_set import ReplicaChanges, ReplicaSet, changes
from skep.supervisor.supervisor import Hive, Supervisor
from skep.units import GIB

POLICY = RestartPolicy(first_delay_s=0.05, grace_s=0.3, fallbacks=5)
ONE = Launch("m-0", "fake", "m", None, slots=1, context_tokens=100, threads=1, gpus=(0,))
VLLM = replace(ONE, engine="vllm", checkpoint="org/m", slots=8, context_tokens=8192)
IDLE = ModelUsage(busy=0, queued=0, idle_s=100.0)


@asynccontextmanager
async def crew_of(tmp_path, *launches):
    moved, history = asyncio.Event(), []

    def changed():
        history.append({member.launch.name: member.life.state for member in crew.members})
        moved.set()

    async def nobody(_name):
        return 0

    async def until(condition):
        async with asyncio.timeout(20):
            while not condition():
                moved.clear()
                await moved.wait()

    crew = ReplicaSet(tmp_path, POLICY, changed, nobody)
    async with asyncio.TaskGroup() as tasks:
        crew.add_replicas(launches, tasks)
        yield crew, until, tasks, history
        crew._dormant.clear()  # whatever a test found: nothing is left running
        await crew.end_all()


def test_a_reload_in_the_middle_of_an_unload_leaves_no_process_that_counts_as_unloaded(tmp_path):
    async def run():
        first = replace(ONE, on_demand=True)
        async with crew_of(tmp_path, first) as (crew, until, tasks, _):
            crew.wake("m", tasks)
            await until(lambda: crew.find("m-0").settled)
            going = tasks.create_task(crew.unload_model("m"))
            while "m-0" in crew._lives:  # its process is being ended
                await asyncio.sleep(0)
            await crew.become(ReplicaChanges(changed=("m-0",)), [replace(first, slots=2)], 0.0, tasks)
            await going
            member = crew.find("m-0")
            assert crew.is_dormant(member) == (member.life.state is ReplicaState.STOPPED), (crew.state(member), member)

    asyncio.run(run())


def test_a_replica_that_restarts_by_itself_waits_for_one_that_starts_on_its_card(tmp_path):
    async def run():
        other = replace(ONE, name="n-0", model="n", on_demand=True, extra=("--load-s=0.5",))
        async with crew_of(tmp_path, ONE, other) as (crew, until, tasks, history):
            await until(lambda: crew.find("m-0").settled)
            crew.wake("n", tasks)
            await until(lambda: crew.find("n-0").pid is not None)
            history.clear()
            os.kill(crew.find("m-0").pid, 9)
            await until(lambda: crew.find("n-0").settled)
            both = [
                states for states in history if set(states.values()) <= {ReplicaState.STARTING, ReplicaState.WARMING}
            ]
            assert both == []

    asyncio.run(run())


def test_an_unload_after_a_load_that_only_stopped_a_drain():
    lodging = Eviction([ModelSpec("a", idle_unload_s=1.0)], MemoryBudget())
    lodging.wanted("a", 0.0)
    lodging.loaded("a", 0.0)
    lodging.told({"a": IDLE}, 10.0, 10.0)
    assert lodging.residency("a") is Residency.DRAINING
    lodging.wanted("a", 10.1, asked=True)  # skep load, while it drains
    assert lodging.residency("a") is Residency.IN
    lodging.told({"a": IDLE}, 20.0, 20.0)
    lodging.told({"a": IDLE}, 21.0, 21.0)
    lodging.gone("a", 22.0)
    assert lodging.residency("a") is Residency.OUT
    assert lodging.unload("a", 23.0) == []


def test_a_model_of_unknown_size_does_not_share_a_card_with_one_that_fills_it():
    house = MemoryBudget({"gpu0": 24})
    lodging = Eviction([ModelSpec("vllm", {"gpu0": 22}), ModelSpec("ollama", unknown=frozenset({"gpu0"}))], house)
    lodging.wanted("vllm", 0.0)
    lodging.loaded("vllm", 0.0)
    lodging.wanted("ollama", 1.0)
    assert lodging.residency("ollama") is Residency.OUT


class Script(Fake):
    """A process that is a few lines of Python, at a port it is given."""

    reports_address = False

    def __init__(self, script):
        self.script = script

    def argv(self, launch):
        return [sys.executable, "-S", "-c", self.script, str(launch.port)]


async def until_true(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.02)


def test_an_engine_does_not_get_the_keys_of_the_gateway(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEP_API_KEY", "secret")
    told = tmp_path / "env.json"
    script = f"import json, os, time; open({str(told)!r}, 'w').write(json.dumps(dict(os.environ))); time.sleep(60)"

    async def run():
        replica = Replica(ONE, Script(script), tmp_path / "m-0.log", lambda: None, POLICY)
        life = asyncio.get_running_loop().create_task(replica.run())
        await until_true(lambda: told.exists() and told.read_text().endswith("}"))
        replica.stop()
        await life

    asyncio.run(run())
    assert "SKEP_API_KEY" not in json.loads(told.read_text())


class Stranger(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET  # noqa: N815 - the name is http.server's

    def log_message(self, *_):
        pass


def test_a_server_of_others_on_the_engines_port_is_not_the_engine(tmp_path):
    async def run(port):
        states = []
        launch = replace(ONE, port=port)
        engine = Script("import time; time.sleep(60)")  # ours is still loading
        replica = Replica(launch, engine, tmp_path / "m-0.log", lambda: states.append(replica.life.state), POLICY)
        life = asyncio.get_running_loop().create_task(replica.run())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.8):
                await until_true(lambda: ReplicaState.READY in states)
        replica.stop()
        await life

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            asyncio.run(run(server.server_port))
        finally:
            server.shutdown()
            thread.join()


def test_a_reload_leaves_a_replica_that_fell_back_alone(tmp_path):
    async def run():
        replica = Replica(VLLM, Fake(), tmp_path / "m-0.log", lambda: None, POLICY)
        change = replace(VLLM, options=replace(VLLM.options, memory_share=0.85))
        assert replica._fall_back(Diagnosis("out of memory", change=change, changed="memory_share 0.9 -> 0.85"))
        assert changes([replica.launch], [VLLM]).changed == ()

    asyncio.run(run())


def test_a_diagnosis_survives_odd_numbers():
    said = "CUDA out of memory. Tried to allocate 1.2.3 GiB. GPU 0 has a total capacity of 4 GiB of which 1 MiB is free"
    assert "out of GPU memory" in diagnose(VLLM, 1, [f"torch.OutOfMemoryError: {said}"]).cause


def test_a_diagnosis_of_long_words_takes_no_longer_than_of_short_ones():
    rule = next(rule for rule in RULES if rule.id == "architecture")

    def seconds(line):
        began = time.process_time()
        match(rule, VLLM, 1, plain_lines([line] * 40))
        return time.process_time() - began

    assert seconds("a" * 990) < 0.01 + 8 * seconds("ab " * 330)


def paths_of(tmp_path):
    return user_paths({"HOME": str(tmp_path)})


def test_two_models_with_the_same_engine_port_are_refused(tmp_path):
    serve = tuple(Serve(model, engine="fake", engine_port=9100, replicas=2) for model in ("a", "b"))
    with pytest.raises(UserError, match="9100"):
        plan_launches(Settings(serve=serve), paths_of(tmp_path), machine=LocalMachine(4))


@pytest.mark.parametrize("name", ["A=B", "", "A\0B"])
def test_a_name_that_is_none_of_a_variable_is_one_clear_line(name):
    with pytest.raises(UserError):
        parse_settings({"serve": [{"engine": "vllm", "model": "o/m", "env": {name: "1"}}]}, "skep.toml", {})


def program(folder, build):
    folder.mkdir()
    path = folder / "llama-server"
    path.write_text(f"#!/bin/sh\necho 'version: {build} (abc)'\n")
    path.chmod(0o755)
    return path


def test_a_dormant_replica_is_shown_with_the_version_of_its_own_program(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{program(tmp_path / 'other', 1111).parent}:{os.environ['PATH']}")
    own = program(tmp_path / "own", 2222)
    launch = replace(ONE, engine="llamacpp", on_demand=True, binary=str(own), checkpoint="/m.gguf")

    async def run():
        with closing(socket.socket()) as listener:
            hive = Hive((launch,), ("true",), {}, "http://x", tmp_path / "s", tmp_path)
            supervisor = Supervisor(hive, listener, lambda _s: None)
            supervisor.replica_set.add_replicas([launch], asyncio.TaskGroup())
            return supervisor.rows({})[0]["engine"]

    assert "1111" not in asyncio.run(run())


def gguf_of(path):
    """A header alone: 32 layers of 32 heads, so that a long context costs far more than the weights."""
    sizes = {
        "context_length": 131072, "block_count": 32, "embedding_length": 4096, "feed_forward_length": 11008,
        "attention.head_count": 32, "attention.head_count_kv": 32, "vocab_size": 32000,
    }  # fmt: skip

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    pairs += b"".join(text(f"llama.{key}") + struct.pack("<II", 4, value) for key, value in sizes.items())
    tensor = text("w") + struct.pack("<I2QIQ", 2, 32, 2, 2, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1 + len(sizes)) + pairs + tensor
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(36))
    return path


def planned(tmp_path, path, gib=12, **fields):
    serve = Serve(str(path), engine="llamacpp", slots=4, context_tokens=8192, **fields)
    serve = replace(serve, binary=str(program(tmp_path / "bin", 2222)))
    machine = LocalMachine(4, (GpuCard(0, gib * GIB, 0),), (("gpu0", gib * GIB),))
    return plan_launches(Settings(serve=(serve,)), paths_of(tmp_path), machine=machine)


def test_a_quantized_cache_takes_less_room(tmp_path):
    """16 GiB in 16 bit, 4.5 GiB in q4_0."""
    assert planned(tmp_path, gguf_of(tmp_path / "m.gguf"), options=EngineOptions(kv="q4_0"))


@pytest.mark.parametrize("extra", [("-ngl", "0"), ("--no-kv-offload",)])
def test_what_is_not_put_on_the_card_takes_no_room_there(tmp_path, extra):
    assert planned(tmp_path, gguf_of(tmp_path / "m.gguf"), extra=extra)


def test_all_parts_of_the_weights_take_room(tmp_path):
    first = gguf_of(tmp_path / "m-00001-of-00002.gguf")
    with (tmp_path / "m-00002-of-00002.gguf").open("wb") as second:
        second.truncate(20 * GIB)
    with pytest.raises(DoesNotFit):
        planned(tmp_path, first, gib=24)


def test_a_variable_of_a_preset_comes_out_of_an_export_as_it_went_in(tmp_path):
    own = (("HTTP_PROXY", "http://127.0.0.1:3128"),)
    wanted = replace(preset("qwen3-coder-30b-a3b-3090", tmp_path), env=own)
    said = export_docker(recipe_of(wanted, context_tokens=8192, port=8400, engine_port=8001))
    assert "HTTP_PROXY=http://127.0.0.1:3128" in said


def test_what_the_user_unloaded_is_in_nobodys_way():
    lodging = Eviction([ModelSpec("a", {"gpu0": 6}, on_demand=False, pinned=True), ModelSpec("b", {"gpu0": 6})],
                      MemoryBudget({"gpu0": 10}))  # fmt: skip
    lodging.begin(0.0)
    lodging.loaded("a", 0.0)
    lodging.unload("a", 1.0)
    lodging.told({"a": IDLE}, 2.0, 2.0)
    lodging.gone("a", 3.0)
    assert lodging.residency("a") is Residency.OUT
    assert lodging.wanted("b", 4.0, asked=True) == [LoadModel("b")]


def test_two_models_of_unknown_size_do_not_share_cards_that_nobody_lists():
    """Intel, AMD, Apple: the machine's cards are not known, and so is what the engines take of them."""
    launches = [replace(VLLM, name=f"{model}-0", model=model, gpus=(), on_demand=True) for model in ("a", "b")]
    house = MemoryBudget({"ram": 64 * GIB})
    lodging = Eviction(model_specs(launches, house.room), house)
    assert lodging.wanted("a", 0.0) == [LoadModel("a")]
    assert lodging.wanted("b", 0.1) == []


def test_cards_that_the_user_has_hidden_are_not_given_out(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, 24576, 1'\necho '1, 24576, 1'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [card.index for card in read_machine().cards] == [1]


SMI = """#!/bin/sh
case "$*" in
*memory.used*) echo '0, 11441, 1' ;;
*query-gpu*)
  echo 'index, name, memory.total [MiB], compute_cap, driver_version'
  echo '0, Tesla K80, 11441 MiB, 3.7, 470.1' ;;
esac
"""


def test_a_card_that_nobody_knows_keeps_nothing_from_starting(tmp_path, monkeypatch):
    """Not even the embedded engine, which runs on the CPU, nor a gateway before servers of others."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert read_machine().devices == ()


def test_the_version_that_a_preset_was_measured_with_meets_its_image(tmp_path):
    need = Need("image", "image", "vllm/vllm-openai:v0.19.1", "it was measured with it")
    wanted = replace(preset("gemma-4-31b-4x3090", tmp_path), needs=(need,))
    assert missing_needs(wanted, RunEnvironment(engine_version="vllm 0.19.1")) == []


def test_the_ollama_recipe_for_four_cards_gets_four_cards(tmp_path, monkeypatch):
    wanted = preset("gemma-4-31b-4x3090-ollama", tmp_path)
    manifest = tmp_path / "manifests" / "registry.ollama.ai" / "library" / wanted.checkpoint.replace(":", "/")
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    serve = replace(serve_of(wanted), binary=str(program(tmp_path / "bin", 1)))
    cards = tuple(GpuCard(number, 24 * GIB, 0) for number in range(4))
    launch = plan_launches(Settings(serve=(serve,)), paths_of(tmp_path), machine=LocalMachine(4, cards))[0]
    assert len(launch.gpus) in (0, 4)
