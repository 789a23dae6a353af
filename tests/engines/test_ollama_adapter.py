"""Ollama: a launch as variables, and what is refused before a start; and the native protocol of its stand-in."""

import asyncio
import json
import subprocess
import urllib.request

import pytest

from skep.catalog.options import Draft, EngineOptions
from skep.engines.base import Launch
from skep.engines.ollama import Ollama, manifest_of
from skep.errors import UserError
from skep.testing.speaker import write_program
from skep.wire.listen import free_port
from skep.wire.stream_reader import StreamReader


def launch(slots=4, model="gemma3:27b", **fields):
    options = {name: fields.pop(name) for name in tuple(fields) if name in EngineOptions.__slots__}
    fields = {"context_tokens": 8192, "port": 9001, **fields}
    return Launch("m-0", "ollama", model, None, slots=slots, threads=0, options=EngineOptions(**options), **fields)


def test_everything_is_told_by_variables():
    assert Ollama().environment(launch(kv="q8_0", pp=2, gpus=(0, 1))) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,1", "OLLAMA_HOST": "127.0.0.1:9001",
        "OLLAMA_NUM_PARALLEL": "4", "OLLAMA_CONTEXT_LENGTH": "8192", "OLLAMA_KV_CACHE_TYPE": "q8_0",
        "OLLAMA_FLASH_ATTENTION": "1", "OLLAMA_SCHED_SPREAD": "1", "OLLAMA_MAX_LOADED_MODELS": "1",
        "OLLAMA_KEEP_ALIVE": "-1", "OLLAMA_NOPRUNE": "1", "OLLAMA_NO_CLOUD": "1",
    }  # fmt: skip
    assert "OLLAMA_CONTEXT_LENGTH" not in Ollama().environment(launch(context_tokens=0))
    assert Ollama().argv(launch(binary="/gone/ollama")) == ["/gone/ollama", "serve"]


@pytest.mark.parametrize(
    ("tag", "path"),
    [
        ("gemma3", "registry.ollama.ai/library/gemma3/latest"),
        ("gemma3:27b", "registry.ollama.ai/library/gemma3/27b"),
        ("someone/model:q4", "registry.ollama.ai/someone/model/q4"),
        ("hf.co/someone/model:Q4_K_M", "hf.co/someone/model/Q4_K_M"),
    ],
)
def test_a_tag_is_looked_for_in_the_store_where_ollama_keeps_it(tag, path):
    assert manifest_of(tag).as_posix() == path


def test_a_model_that_was_not_pulled_is_said_before_the_start(tmp_path):
    with pytest.raises(UserError, match="`gemma3:27b` is not in Ollama's store") as caught:
        Ollama().check(launch(env=(("OLLAMA_MODELS", str(tmp_path)),)))
    assert "ollama pull gemma3:27b" in caught.value.hint


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"quant": "q4_0"}, "comes with the tag"), ({"tp": 2}, "tp = 2"), ({"draft": Draft("mtp", 2)}, "draft = mtp:2"),
        ({"kv": "fp8"}, 'kv = "fp8"'), ({"extra": ("--verbose",)}, "has no flags"), ({"p2p": "off"}, "p2p"),
        ({"checkpoint": "gemma3:27b", "model": "gemma"}, "cannot be served as `gemma`"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line_with_what_to_do(fields, said):
    with pytest.raises(UserError, match="ollama: ") as caught:
        Ollama().check(launch(**fields))
    assert said in caught.value.message
    assert caught.value.hint


def test_ollamas_own_protocol_is_read_with_its_durations(tmp_path):
    """Lines of JSON, the last with nanoseconds: what a benchmark reads is what the docs describe."""
    manifest = tmp_path / "manifests" / manifest_of("gemma3:27b")
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    program = str(tmp_path / "ollama")
    write_program(program, "skep.testing.ollama_speaker")
    asked = launch(port=free_port(), binary=program, env=(("OLLAMA_MODELS", str(tmp_path)), ("PYTHONPATH", "src")))
    engine = Ollama()
    engine.check(asked)
    assert engine.version() == "ollama 0.24.3"
    with subprocess.Popen(engine.argv(asked), env=engine.environment(asked), stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        url = f"http://127.0.0.1:{asked.port}"
        with urllib.request.urlopen(f"{url}/api/tags", timeout=5) as answer:
            assert [model["name"] for model in json.load(answer)["models"]] == ["gemma3:27b"]
        body = {"model": "gemma3:27b", "messages": [{"role": "user", "content": "hello you"}],
                "options": {"num_predict": 3}}  # fmt: skip
        with urllib.request.urlopen(f"{url}/api/chat", json.dumps(body).encode(), timeout=5) as answer:
            assert answer.headers["content-type"] == "application/x-ndjson"
            lines = answer.read()
        process.terminate()
    reading = asyncio.run(read(lines))
    assert "".join(reading.text) == "word0 word1 word2 "
    assert (reading.timings["eval_count"], reading.timings["prompt_eval_count"]) == (3, 2)
    assert reading.finish_reason == "length"


async def read(lines):
    reading = StreamReader(asyncio.get_running_loop().create_future())
    reading._stream = "ndjson"
    reading.on_body(lines, 1.0)
    reading.on_end(2.0)
    reading.digest()
    return reading
