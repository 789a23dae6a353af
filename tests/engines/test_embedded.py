"""The embedded engine for real: llama.cpp serving SmolLM2-135M, behind the gateway, as `skep up` runs it."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import openai
import pytest

from skep.engines.base import EXIT_FINAL, REPORT_FD, Launch
from skep.engines.embedded import Embedded
from skep.engines.embedded_server import http_threads
from skep.paths import user_paths
from skep.supervisor.control import replica_key
from skep.weights.pull import installed, pull

pytestmark = pytest.mark.engine
MODEL = "smollm2-135m"


@pytest.fixture(scope="module")
def weights():
    cache = user_paths(os.environ).cache
    return installed(MODEL, cache) or pull(MODEL, cache_dir=cache).path


@pytest.fixture(scope="module")
def hive(weights, tmp_path_factory):
    """One hive for the whole module: two replicas with two slots of 256 tokens."""
    folder = tmp_path_factory.mktemp("hive")
    env = {**os.environ, **{f"XDG_{name}_HOME": str(folder / name) for name in ("CONFIG", "DATA", "STATE")}}
    env.pop("XDG_RUNTIME_DIR", None)
    command = [sys.executable, "-m", "skep"]
    sizes = ["--replicas", "2", "--slots", "2", "--context", "256", "--port", "0"]
    done = subprocess.run(
        [*command, "up", "--embedded", *sizes, "-d", "--json"], env=env, cwd=folder, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    ready = json.loads(done.stdout)
    yield {**ready, "env": env, "folder": folder}
    subprocess.run([*command, "down"], env=env, check=True, capture_output=True)


def client_of(hive):
    return openai.OpenAI(base_url=hive["openai_base_url"], api_key="none", max_retries=0)


def test_the_openai_client_gets_words_streamed_and_whole(hive):
    with client_of(hive) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        asked = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 8,
            "temperature": 0,
        }
        whole = client.chat.completions.create(**asked)
        assert whole.usage.completion_tokens <= 8
        chunks = list(client.chat.completions.create(**asked, stream=True))
        words = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert words == whole.choices[0].message.content
        assert words.strip()


def test_a_prompt_beyond_the_slots_context_gets_a_clean_400_and_disturbs_nobody(hive):
    """A unified cache without a bound per slot lets one long prompt kill its neighbours."""
    with client_of(hive) as client:
        neighbour = {}

        def talk():
            message = [{"role": "user", "content": "Count to one hundred."}]
            answer = client.chat.completions.create(
                model=MODEL, messages=message, max_tokens=60, extra_body={"ignore_eos": True}
            )
            neighbour["tokens"] = answer.usage.completion_tokens

        thread = threading.Thread(target=talk)
        thread.start()
        long = [{"role": "user", "content": "word " * 900}]
        with pytest.raises(openai.BadRequestError, match="context"):
            client.chat.completions.create(model=MODEL, messages=long, max_tokens=4)
        thread.join()
        assert neighbour["tokens"] == 60


def test_a_hang_up_in_mid_answer_frees_the_slot(hive):
    port = int(hive["url"].rpartition(":")[2])
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 200}
    data = json.dumps(body).encode()
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data
            )
    with client_of(hive) as client:
        answer = client.chat.completions.create(model=MODEL, messages=body["messages"], max_tokens=2)
    assert answer.usage.completion_tokens == 2
    assert len(hive["replicas"]) == 2
    for replica in hive["replicas"]:
        key = replica_key(replica["url"], user_paths(hive["env"]))
        asked = urllib.request.Request(f"{replica['url']}/slots", headers={"authorization": f"Bearer {key}"})
        with urllib.request.urlopen(asked) as slots:
            assert len(json.load(slots)) == 2


@pytest.mark.slow
def test_a_sweep_on_the_real_engine_has_both_clocks(hive):
    command = [sys.executable, "-m", "skep", "bench", "sweep", "--url", hive["url"], "--json"]
    sizes = ["--concurrency", "1,2", "--tasks", "2", "--runs", "1", "--max-tokens", "6", "--fixed-output"]
    done = subprocess.run([*command, *sizes], env=hive["env"], cwd=hive["folder"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [level["concurrency"] for level in document["levels"]] == [1, 2]
    for level in document["levels"]:
        assert (level["requests"], level["failed"], level["output_tokens"]) == (2, 0, 12)
        assert level["effective_tok_s"] == pytest.approx(12 / level["wall_s"])
        assert level["engine_tok_s"] == pytest.approx(1000 / level["tpot_ms"]["p50"], rel=0.3)
        assert level["cached_prompt_share"] < 0.3
    assert document["speedup"] == pytest.approx(document["serial_wall_s"] / document["swarm_wall_s"])


def launch_of(weights, *extra, **options):
    return Launch("e", "embedded", MODEL, weights, slots=1, context_tokens=64, threads=1, extra=extra, **options)


def start_server(weights, *extra, **options):
    argv = [part if part != REPORT_FD else "1" for part in Embedded().argv(launch_of(weights, *extra, **options))]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def test_an_occupied_port_is_not_mistaken_for_a_damaged_file(weights):
    """llama.cpp gives the same error for both."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = start_server(weights, port=port)
    assert done.returncode == EXIT_FINAL
    found = Embedded().explain(launch_of(weights), done.returncode, done.stderr.splitlines())
    assert f"port {port} is in use" in str(found)


def test_a_file_that_vanished_is_named(tmp_path):
    done = start_server(tmp_path / "gone.gguf")
    assert done.returncode == EXIT_FINAL
    assert "gone.gguf` does not exist" in done.stderr


def test_a_truncated_file_is_found_before_an_engine_is_started(weights, skep, tmp_path):
    short = tmp_path / "short.gguf"
    with weights.open("rb") as whole, short.open("wb") as part:
        shutil.copyfileobj(whole, part, 1 << 20)
        part.truncate(50_000_000)
    done = skep("up", short, "-d", "--port", "0", check=1)
    assert done.stderr.count("error:") == 1
    assert "short.gguf" in done.stderr
    assert "hint:" in done.stderr


@pytest.mark.slow
def test_a_gguf_file_can_be_served_by_its_path(weights, skep, tmp_path):
    named = tmp_path / "Tiny-Model.gguf"
    named.symlink_to(weights)
    ready = json.loads(
        skep("up", named, "--slots", "1", "--context", "128", "--port", "0", "-d", "--json", check=0).stdout
    )
    assert ready["models"] == ["tiny-model"]


def test_there_are_http_threads_for_slots_pool_and_health():
    """16 idle keep-alive connections delayed /health by 10 s when each held one of 16 threads."""
    assert all(http_threads(slots) >= slots + slots + 8 for slots in (1, 4, 64))


def test_the_reported_address_is_the_engines_own(weights):
    read_fd, write_fd = os.pipe()
    launch = Launch("e", "embedded", MODEL, weights, slots=1, context_tokens=64, threads=1)
    argv = [part if part != REPORT_FD else str(write_fd) for part in Embedded().argv(launch)]
    with subprocess.Popen(argv, pass_fds=[write_fd], stderr=subprocess.DEVNULL) as process:
        os.close(write_fd)
        try:
            with os.fdopen(read_fd) as pipe:
                url = json.loads(pipe.readline())["url"]
            with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
                assert answer.status == 200
        finally:
            process.terminate()  # else a failed assertion would wait for it for ever
        assert process.wait(20) == 0


def test_weights_come_from_the_users_cache(weights):
    assert Path(weights).is_relative_to(user_paths(os.environ).cache)
