"""From settings to what is started on this machine: cards, ports and room, in the cases that went
wrong.
"""

import os
import struct

import pytest
from msgspec.structs import replace

from skep.catalog.presets import EngineOptions, Need, RunEnvironment, missing_needs
from skep.config.load import parse_settings
from skep.config.presets import preset, serve_of
from skep.config.settings import Serve, Settings
from skep.deploy.gpu_assignment import LocalMachine, read_machine
from skep.deploy.launches import plan_launches
from skep.errors import DoesNotFit, UserError
from skep.host.facts import GpuCard
from skep.paths import user_paths
from skep.units import GIB


def paths_of(tmp_path):
    return user_paths({"HOME": str(tmp_path)})


def test_two_models_with_the_same_engine_port_are_refused(tmp_path):
    serve = tuple(
        Serve(model, engine="fake", engine_port=9100, replicas=2) for model in ("a", "b")
    )
    with pytest.raises(UserError, match="9100"):
        plan_launches(Settings(serve=serve), paths_of(tmp_path), machine=LocalMachine(4))


@pytest.mark.parametrize(
    ("engine", "busy", "replicas", "threads"),
    [
        ("embedded", 0, 1, 8),
        ("embedded", 3, 1, 5),
        ("embedded", 3, 2, 2),
        ("embedded", 8, 1, 1),
        ("fake", 3, 1, 8),
    ],
)
def test_the_embedded_engine_leaves_busy_cores_to_others(
    tmp_path, engine, busy, replicas, threads
):
    file = tmp_path / "m.gguf"
    gguf_of(file)
    settings = Settings(serve=(Serve(str(file), engine=engine, replicas=replicas),))
    launches = plan_launches(settings, paths_of(tmp_path), machine=LocalMachine(8, busy=busy))
    assert [launch.threads for launch in launches] == [threads] * replicas
    with_threads = replace(settings, serve=(replace(settings.serve[0], threads=7),))
    assert (
        plan_launches(with_threads, paths_of(tmp_path), machine=LocalMachine(8, busy=busy))[
            0
        ].threads
        == 7
    )


def program(folder, name="llama-server", says="echo 'version: 2222 (abc)'"):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return str(path)


def gguf_of(path):
    """A header alone: 32 layers of 32 heads, so that a long context costs far more than the
    weights.
    """
    sizes = {
        "context_length": 131072, "block_count": 32, "embedding_length": 4096,
        "feed_forward_length": 11008, "attention.head_count": 32, "attention.head_count_kv": 32,
        "vocab_size": 32000,
    }  # fmt: skip

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    pairs += b"".join(
        text(f"llama.{key}") + struct.pack("<II", 4, value) for key, value in sizes.items()
    )
    tensor = text("w") + struct.pack("<I2QIQ", 2, 32, 2, 2, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1 + len(sizes)) + pairs + tensor
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(36))
    return path


def planned(tmp_path, path, gib=12, **fields):
    serve = Serve(str(path), engine="llamacpp", slots=4, context_tokens=8192, **fields)
    serve = replace(serve, binary=program(tmp_path / "bin"))
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


HEAD = "echo 'index, memory.total [MiB], memory.used [MiB]'"
TWO_CARDS = f"{HEAD}; echo '0, 24576 MiB, 1 MiB'; echo '1, 24576 MiB, 1 MiB'"
UNKNOWN_CARD = f"""case "$*" in
*memory.used*) {HEAD}; echo '0, 11441 MiB, 1 MiB' ;;
*query-gpu*)
  echo 'index, name, memory.total [MiB], compute_cap, driver_version'
  echo '0, Tesla K80, 11441 MiB, 3.7, 470.1' ;;
esac"""


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return lambda says: program(tmp_path, "nvidia-smi", says)


def test_cards_that_the_user_has_hidden_are_not_given_out(nvidia_smi, monkeypatch):
    nvidia_smi(TWO_CARDS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [card.index for card in read_machine().cards] == [1]


def test_a_card_that_nobody_knows_keeps_nothing_from_starting(nvidia_smi):
    """Not even the embedded engine, which runs on the CPU,
    nor a gateway before servers of others.
    """
    nvidia_smi(UNKNOWN_CARD)
    assert read_machine().devices == ()


def test_the_version_that_a_preset_was_measured_with_meets_its_image(tmp_path):
    need = Need("image", "image", "vllm/vllm-openai:v0.19.1", "it was measured with it")
    named = replace(preset("gemma-4-31b-4x3090", tmp_path), needs=(need,))
    assert missing_needs(named, RunEnvironment(engine_version="vllm 0.19.1")) == []


def test_the_ollama_recipe_for_four_cards_gets_four_cards(tmp_path, monkeypatch):
    named = preset("gemma-4-31b-4x3090-ollama", tmp_path)
    manifest = (
        tmp_path
        / "manifests"
        / "registry.ollama.ai"
        / "library"
        / named.checkpoint.replace(":", "/")
    )
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    serve = replace(serve_of(named), binary=program(tmp_path / "bin"))
    cards = tuple(GpuCard(number, 24 * GIB, 0) for number in range(4))
    launch = plan_launches(
        Settings(serve=(serve,)), paths_of(tmp_path), machine=LocalMachine(4, cards)
    )[0]
    assert len(launch.gpus) in (0, 4)


@pytest.mark.parametrize("name", ["A=B", "", "A\0B"])
def test_a_name_that_is_none_of_a_variable_is_one_clear_line(name):
    with pytest.raises(UserError):
        parse_settings(
            {"serve": [{"engine": "vllm", "model": "o/m", "env": {name: "1"}}]}, "skep.toml", {}
        )
