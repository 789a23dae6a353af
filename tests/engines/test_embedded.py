"""The embedded engine: its options as words and refusals, and for real, llama.cpp serving
SmolLM2-135M.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import embedded_process
from api_clients import openai
from embedded_process import MODEL
from skep.catalog.presets import Draft, EngineOptions
from skep.deploy.launches import KV_BYTES
from skep.engines.base import EXIT_FINAL, Launch
from skep.engines.diagnosis import diagnose
from skep.engines.embedded_server import http_threads
from skep.engines.llamacpp import KV_TYPES, Embedded, batch_of
from skep.errors import UserError
from skep.host.processes import REPORT_FD
from skep.paths import user_paths
from skep.supervisor.control import replica_key


@pytest.fixture(scope="module")
def weights():
    return embedded_process.weights()


def launch_of(weights=Path("/models/m.gguf"), slots=2, context_tokens=256, port=0, **options):
    fields = {"slots": slots, "context_tokens": context_tokens, "threads": 1, "port": port}
    return Launch("e-0", "embedded", MODEL, weights, **fields, options=EngineOptions(**options))


# Words


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"batch": 2048, "kv_layout": "unified", "prefix_cache": True}, []),
        ({"batched_tokens": 128}, ["--micro-batch", "128"]),
        ({"batched_tokens": 4096}, ["--micro-batch", "4096", "--batch", "4096"]),
        ({"batch": 256, "threads_batch": 4}, ["--threads-batch", "4", "--batch", "256"]),
        ({"kv": "q8_0"}, ["--kv", "q8_0", "--flash-attention", "on"]),
        ({"kv": "bf16"}, ["--kv", "bf16"]),
        ({"flash_attention": False}, ["--flash-attention", "off"]),
        ({"kv_layout": "split", "prefix_cache": False}, ["--split", "--no-prefix-cache"]),
        ({"draft": Draft("ngram", 8)}, ["--ngram", "8"]),
        ({"kv_ram": 0}, []),
        ({"kv_ram": 2}, ["--cache-ram", "2048"]),
    ],
)
def test_only_what_differs_from_its_own_way_is_told(options, expected):
    argv = Embedded().argv(launch_of(**options))
    assert argv[argv.index(REPORT_FD) + 1 :] == expected


def test_a_batch_that_nobody_names_holds_every_slot_and_its_drafts():
    """llama.cpp ends itself under load where they overflow it."""
    assert batch_of(launch_of(slots=64, draft=Draft("ngram", 48))) == 64 * 49
    assert batch_of(launch_of(slots=4, draft=Draft("ngram", 8))) == 2048


# Refusals


@pytest.mark.parametrize(
    ("options", "message", "instead"),
    [
        ({"kv": "fp8"}, 'kv = "fp8" is not known', ", ".join(KV_TYPES)),
        (
            {"kv": "q4_0", "flash_attention": False},
            'kv = "q4_0" needs flash attention',
            "leave flash_attention out",
        ),
        (
            {"batch": 256, "batched_tokens": 512},
            "batched_tokens = 512 is more than batch = 256",
            "raise `batch`",
        ),
        ({"batch": 1}, "batch = 1 is too small for 2 slots", "2 or more"),
        (
            {"batch": 16, "draft": Draft("ngram", 8)},
            "batch = 16 is too small for 2 slots with 8 drafted tokens each",
            "18 or more",
        ),
        ({"draft": Draft("mtp", 3)}, "it has no speculation by `mtp`", "use ngram"),
        ({"tp": 2}, "tp = 2 cannot be", "llamacpp"),
        ({"chunked_prefill": False}, "chunked_prefill = false", "leave it out"),
    ],
)
def test_what_it_does_not_take_is_one_line_before_the_start(options, message, instead):
    pytest.importorskip("xllamacpp")
    with pytest.raises(UserError, match="embedded: ") as caught:
        Embedded().check(launch_of(**options))
    assert message in caught.value.message
    assert instead in caught.value.hint


def test_every_type_of_cache_has_its_size():
    """A replica's room is worked out with it; a type without one counts as 16 bits."""
    assert set(KV_TYPES) == {*KV_BYTES, "f16", "bf16"}


# As `skep up` runs it


@pytest.fixture(scope="module")
def hive(weights, tmp_path_factory):
    """One hive for the whole module: two replicas with two slots of 256 tokens."""
    folder = tmp_path_factory.mktemp("hive")
    env = {
        **os.environ,
        **{f"XDG_{name}_HOME": str(folder / name) for name in ("CONFIG", "DATA", "STATE")},
    }
    env.pop("XDG_RUNTIME_DIR", None)
    command = [sys.executable, "-m", "skep"]
    sizes = [
        "--replicas",
        "2",
        "--slots",
        "2",
        "--context",
        "256",
        "--threads",
        "1",
        "--port",
        "0",
    ]
    done = subprocess.run(
        [*command, "up", "--embedded", *sizes, "-d", "--json"],
        env=env,
        cwd=folder,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    ready = json.loads(done.stdout)
    yield {**ready, "env": env, "folder": folder}
    subprocess.run([*command, "down"], env=env, check=True, capture_output=True)


def client_of(hive):
    return openai.OpenAI(base_url=hive["openai_base_url"], api_key="none", max_retries=0)


@pytest.mark.engine
def test_the_openai_client_gets_words_streamed_and_whole(hive):
    with client_of(hive) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 8,
            "temperature": 0,
        }
        whole = client.chat.completions.create(**body)
        assert whole.usage.completion_tokens <= 8
        chunks = list(client.chat.completions.create(**body, stream=True))
        words = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert words == whole.choices[0].message.content
        assert words.strip()


@pytest.mark.engine
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


@pytest.mark.engine
def test_a_hang_up_in_mid_answer_frees_the_slot(hive):
    port = int(hive["url"].rpartition(":")[2])
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell a long story."}],
        "max_tokens": 200,
    }
    data = json.dumps(body).encode()
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
                % len(data)
                + data
            )
    with client_of(hive) as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=body["messages"], max_tokens=2
        )
    assert answer.usage.completion_tokens == 2
    assert len(hive["replicas"]) == 2
    for replica in hive["replicas"]:
        key = replica_key(replica["url"], user_paths(hive["env"]))
        request = urllib.request.Request(
            f"{replica['url']}/slots", headers={"authorization": f"Bearer {key}"}
        )
        with urllib.request.urlopen(request) as slots:
            assert len(json.load(slots)) == 2


@pytest.mark.slow
@pytest.mark.engine
def test_a_sweep_on_the_real_engine_has_both_clocks(hive):
    command = [sys.executable, "-m", "skep", "bench", "sweep", "--url", hive["url"], "--json"]
    sizes = [
        "--concurrency",
        "1,2",
        "--tasks",
        "2",
        "--runs",
        "1",
        "--max-tokens",
        "6",
        "--fixed-output",
    ]
    done = subprocess.run(
        [*command, *sizes], env=hive["env"], cwd=hive["folder"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [level["concurrency"] for level in document["levels"]] == [1, 2]
    for level in document["levels"]:
        assert (level["requests"], level["failed"], level["output_tokens"]) == (2, 0, 12)
        assert level["effective_tok_s"] == pytest.approx(12 / level["wall_s"])
        assert level["engine_tok_s"] == pytest.approx(1000 / level["tpot_ms"]["p50"], rel=0.3)
        assert level["cached_prompt_share"] < 0.3
    if (speedups := document["speedups"]) is not None:  # on a busy machine nothing is claimed
        assert speedups["by_wall"] == pytest.approx(
            speedups["serial_wall_s"] / speedups["swarm_wall_s"]
        )


def start_server(launch):
    return subprocess.run(
        embedded_process.argv_of(launch, 1), capture_output=True, text=True, timeout=60
    )


@pytest.mark.engine
def test_an_occupied_port_is_not_mistaken_for_a_damaged_file(weights):
    """llama.cpp gives the same error for both."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = start_server(launch_of(weights, port=port))
    assert done.returncode == EXIT_FINAL
    diagnosis = diagnose(launch_of(weights), done.returncode, done.stderr.splitlines())
    assert f"port {port} is in use" in str(diagnosis)


@pytest.mark.engine
def test_a_file_that_vanished_is_named(tmp_path):
    done = start_server(launch_of(tmp_path / "gone.gguf"))
    assert done.returncode == EXIT_FINAL
    assert "gone.gguf` does not exist" in done.stderr


@pytest.mark.engine
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
@pytest.mark.engine
def test_a_gguf_file_can_be_served_by_its_path(weights, skep, tmp_path):
    named = tmp_path / "Tiny-Model.gguf"
    named.symlink_to(weights)
    ready = json.loads(
        skep(
            "up", named, "--slots", "1", "--context", "128", "--port", "0", "-d", "--json", check=0
        ).stdout
    )
    assert ready["models"] == ["tiny-model"]


def test_there_are_http_threads_for_slots_pool_and_health():
    """16 idle keep-alive connections delayed /health by 10 s when each held one of 16 threads."""
    assert all(http_threads(slots) >= slots + slots + 8 for slots in (1, 4, 64))


def asked(url, text, tokens=16):
    body = {"prompt": text, "max_tokens": tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


LIST = "one, two, three, four, five, six, one, two, three, four, five, six, one, two, three"


@pytest.mark.engine
def test_all_of_them_at_once_serve_and_do_what_they_say(weights):
    launch = launch_of(
        weights,
        kv="q8_0",
        batch=64,
        batched_tokens=32,
        threads_batch=1,
        kv_layout="split",
        prefix_cache=False,
        draft=Draft("ngram", 4),
    )
    Embedded().check(launch)
    with embedded_process.serving(launch) as url:
        first = asked(url, LIST)
        second = asked(url, LIST)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            asked(url, "word " * 900)
        with urllib.request.urlopen(f"{url}/slots") as slots:
            assert [slot["n_ctx"] for slot in json.load(slots)] == [256, 256]
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    assert second["choices"][0]["text"].startswith(", four, five, six")
    assert second["timings"]["cache_n"] == 0
    assert 0 < second["timings"]["draft_n_accepted"] <= second["timings"]["draft_n"]


CAT = "Repeat after me: the cat sat on the mat. the cat sat on the mat. the cat"
SAME = {
    "split": {"kv_layout": "split"},
    "ngram": {"draft": Draft("ngram", 4)},
    "small batches": {"batch": 32, "batched_tokens": 8},
    "threads for prompts": {"threads_batch": 2},
    "no prefix cache": {"prefix_cache": False},
}


@pytest.mark.slow
@pytest.mark.engine
def test_what_only_costs_or_saves_time_leaves_the_answers_as_they_are(weights):
    """Drafts are checked by the model, and a cache cut apart is the same cache.

    A quantized one may round otherwise.
    """

    def answers(**options):
        launch = launch_of(weights, **options)
        Embedded().check(launch)
        with embedded_process.serving(launch) as url, ThreadPoolExecutor(2) as agents:
            answers = list(agents.map(lambda text: asked(url, text), (LIST, CAT)))
            # By itself, and where there is a cache, with what is in it.
            answers += [asked(url, CAT)]
        return [answer["choices"][0]["text"] for answer in answers], [
            answer["timings"] for answer in answers
        ]

    plain, _ = answers()
    assert plain[1] == plain[2]
    for name, options in SAME.items():
        texts, timings = answers(**options)
        assert texts == plain, name
        drafted = sum(timing.get("draft_n_accepted", 0) for timing in timings)
        assert (drafted > 0) == (name == "ngram")
    rounded, _ = answers(kv="q8_0")
    assert rounded[0].startswith(", four, five, six")


@pytest.mark.engine
@pytest.mark.parametrize(
    ("options", "cause", "text", "changed"),
    [
        (
            {"kv": "q8_0", "flash_attention": False},
            "a quantized KV cache (q8_0) needs flash attention",
            "quantized V cache requires flash_attn",
            "flash_attention off -> unset",
        ),
        (
            {"batch": 1},
            "a batch of 1 tokens is too small for 2 slots",
            "n_outputs_max",
            "batch 1 -> unset",
        ),
    ],
)
def test_a_wrong_combination_dies_with_its_cause_its_line_and_its_remedy(
    weights, options, cause, text, changed
):
    launch = launch_of(weights, **options)
    done = start_server(launch)
    assert done.returncode in (EXIT_FINAL, -6)
    diagnosis = diagnose(launch, done.returncode, done.stderr.splitlines())
    assert (diagnosis.cause, diagnosis.changed, diagnosis.final) == (cause, changed, True)
    assert text in diagnosis.evidence
    assert diagnosis.remedy
