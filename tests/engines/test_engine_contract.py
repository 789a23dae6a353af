"""What every adapter promises, kept by a real process behind the real process guard: one suite,
run on all of them.
"""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

import embedded_process
from skep.catalog.presets import Draft, EngineOptions
from skep.engines.base import Launch, engine_named, key_headers
from skep.engines.discovery import is_installed
from skep.errors import SkepError
from skep.gateway.health_loop import count_busy, count_running
from skep.host.processes import descendants
from skep.supervisor.lifecycle import ReplicaState, RestartPolicy
from skep.supervisor.replica import Replica
from skep.testing.speakers import write_program
from skep.wire.client import fetch_once
from skep.wire.heads import parse_url

POLICY = RestartPolicy(
    start_deadline_s=600.0,
    warm_deadline_s=300.0,
    first_delay_s=0.05,
    failures_before_ready=1,
    grace_s=2.0,
)
SLOTS = 2
HOST = "127.0.0.2"
KEY = "a-key-of-this-hive"
KEYLESS = ("ollama",)
PAGE = "http://evil.example"
# what they answer a web page cannot be told to them; stood for by speakers here
ANY_PAGE = ("ollama", "sglang")


def launch_of(engine, model="m", **fields):
    values = {"weights": None, "slots": SLOTS, "context_tokens": 128, "threads": 1}
    return Launch(f"{engine}-0", engine, model, **{**values, **fields})


def embedded(_):
    return launch_of("embedded", weights=embedded_process.weights())


def fake(_):
    return launch_of("fake")


def simulated(_):
    from simulated_process import small_plan

    return launch_of(
        "simulated", context_tokens=4096, extra=("--plan", small_plan(slots=SLOTS).to_json())
    )


def sglang(folder):
    """Against a process that speaks SGLang's documented protocol."""
    write_program(folder / "python-with-sglang", "sglang")
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.json").write_text("{}")
    return launch_of(
        "sglang", checkpoint=str(folder / "checkpoint"), binary=str(folder / "python-with-sglang")
    )


def ollama(folder):
    """Against a process that speaks Ollama's documented protocol."""
    write_program(folder / "ollama", "ollama")
    manifest = folder / "store" / "manifests" / "registry.ollama.ai" / "library" / "gemma3" / "4b"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    env = (("OLLAMA_MODELS", str(folder / "store")),)
    return launch_of("ollama", "gemma3:4b", binary=str(folder / "ollama"), env=env)


def llamacpp(_):
    if not is_installed("llamacpp"):
        pytest.skip(
            "no llama-server on PATH or in $SKEP_LLAMA_SERVER: `make test-llama-server` builds one"
        )
    return launch_of("llamacpp", weights=embedded_process.weights())


def vllm(_):
    checkpoint = os.environ.get("SKEP_VLLM_CHECKPOINT")
    if not is_installed("vllm") or not checkpoint:
        pytest.skip(
            "no vLLM on PATH or in $SKEP_VLLM, or no $SKEP_VLLM_CHECKPOINT: `make "
            "test-vllm` makes both"
        )
    env = (("VLLM_CPU_KVCACHE_SPACE", "1"),)
    options = EngineOptions(dtype="float32", graphs=False)  # what every processor does at once
    return launch_of("vllm", checkpoint=checkpoint, env=env, options=options)


CASES = [
    fake,
    simulated,
    sglang,
    ollama,
    pytest.param(embedded, marks=pytest.mark.engine),
    pytest.param(llamacpp, marks=pytest.mark.engine),
    pytest.param(vllm, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
]


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def launch(request, tmp_path, monkeypatch):
    launch = request.param(tmp_path)  # finds the user's weights
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return launch


def commands():
    """As `ps` shows them to everybody: the guard's, the engine's."""
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in descendants(os.getpid())]


class RunningEngine:
    """One launch behind a Replica, and waiting for what it becomes."""

    def __init__(self, launch, folder):
        self.engine = engine_named(launch.engine)
        self._changed = asyncio.Event()
        self.replica = Replica(
            launch, self.engine, folder / "engine.log", self._changed.set, POLICY
        )

    async def until(self, *states, other_than=None):
        while self.replica.life.state not in states or (
            other_than and self.replica.pid == other_than
        ):
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 600)
        return self.replica.pid

    async def ask(self, method, path, headers=None, **body):
        origin, _ = parse_url(self.replica.life.url)
        if headers is None:
            headers = key_headers(self.replica.launch)
        return await fetch_once(
            origin, method, path, body=body or None, headers=headers, timeout_s=60
        )

    async def chat(self, headers=None, **fields):
        message = [{"role": "user", "content": "Tell a long story about bees."}]
        body = {"model": self.replica.model, "messages": message, "temperature": 0, **fields}
        return await self.ask("POST", "/v1/chat/completions", headers, **body)

    async def busy(self):
        if self.engine.confirms == "slots":
            return count_busy((await self.ask("GET", "/slots")).text)
        return count_running((await self.ask("GET", "/metrics")).text)


async def test_an_engine_keeps_what_its_adapter_promises(launch, tmp_path):
    """It comes up on the address and with the key that it is given, answers, tells its slots,
    survives a kill and ends. One start serves all: an engine may take minutes.
    """
    launch = replace(launch, host=HOST, api_key=KEY)
    before = descendants(os.getpid())
    running = RunningEngine(launch, tmp_path)
    running.engine.check(launch)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(running.replica.run())
        first = await running.until(ReplicaState.READY, ReplicaState.FAILED)
        assert running.replica.life.why is None
        await check_address_and_key(running, launch)
        await check_web_pages(running, launch)
        await check_answers(running)
        await check_model_and_version(running, launch)
        if running.engine.confirms:
            await check_slots(running, tasks)
        second = await check_restart(running, first)
        begun = time.monotonic()
        running.replica.stop()
        await running.until(ReplicaState.STOPPED)
    assert time.monotonic() - begun < POLICY.grace_s + 20
    check_nothing_left((first, second), before)
    assert KEY not in (tmp_path / "engine.log").read_text() + repr(running.replica.launch)
    assert not [*tmp_path.glob("*.yaml")]  # in which an engine may have got it


async def check_address_and_key(running, launch):
    """It refuses requests without its key, which is nowhere to be read."""
    assert running.replica.life.url.startswith(f"http://{HOST}:")
    expected = 200 if launch.engine in KEYLESS else 401
    for headers in ({}, {"authorization": "Bearer another"}):
        assert (await running.ask("GET", "/v1/models", headers=headers)).status == expected
        assert (await running.chat(headers=headers, max_tokens=1)).status == expected
    assert (await running.ask("GET", running.engine.health_path, headers={})).status == 200
    assert not any(KEY in line for line in commands())


async def check_web_pages(running, launch):
    for headers in ({"origin": PAGE}, {"origin": PAGE, **key_headers(launch)}):
        answer = await running.ask("GET", running.engine.health_path, headers=headers)
        leave = answer.head.get(b"access-control-allow-origin")
        assert launch.engine in ANY_PAGE or leave not in (b"*", PAGE.encode())


async def check_answers(running):
    whole = (await running.chat(max_tokens=6)).json()
    assert whole["choices"][0]["message"]["content"].strip()
    assert 0 < whole["usage"]["completion_tokens"] <= 6
    options = {"include_usage": True}
    streamed = (await running.chat(max_tokens=6, stream=True, stream_options=options)).body
    events = [json.loads(e[6:]) for e in streamed.split(b"\n\n") if e.startswith(b"data: {")]
    assert any(c["delta"].get("content") for e in events for c in e.get("choices", ()))
    assert any(e.get("usage") for e in events)


async def check_model_and_version(running, launch):
    models = (await running.ask("GET", "/v1/models")).json()["data"]
    assert launch.model in [model["id"] for model in models]
    assert running.engine.version()


async def check_slots(running, tasks):
    """A request takes a slot, and a client that leaves gives it back."""
    long = tasks.create_task(running.chat(max_tokens=100, stream=True))
    while await running.busy() != 1:
        await asyncio.sleep(0.01)
    long.cancel()
    while await running.busy() != 0:
        await asyncio.sleep(0.01)


async def check_restart(running, first):
    """Return the process that came up after the first was killed."""
    os.kill(first, signal.SIGKILL)
    second = await running.until(ReplicaState.READY, ReplicaState.FAILED, other_than=first)
    life = running.replica.life
    assert (life.state, life.restarts) == (ReplicaState.READY, 1)
    assert (await running.chat(max_tokens=2)).status == 200
    return second


def check_nothing_left(processes, before):
    for pid in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert descendants(os.getpid()) == before


def test_a_model_that_is_not_there_is_refused_before_the_start_or_with_its_cause(launch, tmp_path):
    """And nothing is left running."""
    if launch.engine in ("fake", "simulated"):
        pytest.skip("it has no weights")
    missing = str(tmp_path / "gone")
    changes = {
        "ollama": {"model": "gone:1b"},
        "embedded": {"weights": Path(missing)},
        "llamacpp": {"weights": Path(missing)},
    }.get(launch.engine, {"checkpoint": missing})
    wrong = replace(launch, **changes)
    refused = None
    try:
        engine_named(launch.engine).check(wrong)
    except SkepError as error:
        refused = error
    if refused is not None:
        assert "gone" in str(refused)
        assert refused.hint
        return

    async def start():
        running = RunningEngine(wrong, tmp_path)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(running.replica.run())
            await running.until(ReplicaState.FAILED)
            running.replica.stop()
        return running.replica.life.why

    assert "gone" in asyncio.run(start())


def test_the_launchs_own_variables_win(launch):
    chosen = replace(launch, env=(*launch.env, ("CUDA_VISIBLE_DEVICES", "7")), gpus=(0,))
    assert engine_named(launch.engine).environment(chosen)["CUDA_VISIBLE_DEVICES"] == "7"


GIVEN = {
    "quant": "awq",
    "dtype": "float16",
    "kv": "q8_0",
    "tp": 2,
    "pp": 2,
    "dp": 2,
    "ep": True,
    "memory_share": 0.8,
    "graphs": False,
    "chunked_prefill": False,
    "batched_tokens": 1024,
    "prefix_cache": False,
    "draft": Draft("ngram", 3),
    "p2p": "off",
    "custom_all_reduce": False,
    "split": "layer",
    "card_shares": (1.0, 2.0),
    "trust_remote_code": True,
    "reasoning_parser": "deepseek",
    "tool_parser": "hermes",
    "chat_template": "a.jinja",
    "batch": 512,
    "threads_batch": 3,
    "flash_attention": False,
    "kv_layout": "split",
    "text_only": True,
    "cpu_moe": 4,
    "kv_ram": 16,
}


@pytest.mark.parametrize("engine", ["embedded", "vllm", "sglang", "llamacpp", "ollama"])
@pytest.mark.parametrize("field", EngineOptions.__struct_fields__)
def test_an_option_is_told_to_the_engine_or_refused_by_its_name(engine, field):
    """None is taken and forgotten."""
    adapter = engine_named(engine)
    plain = launch_of(
        engine, checkpoint="m", port=8001, options=EngineOptions(tp=2 if field == "ep" else 1)
    )
    given = replace(plain, options=replace(plain.options, **{field: GIVEN[field]}))
    refused = [refusal for refusal, _ in adapter.refusals(given)]
    if refused:
        assert any(field in refusal for refusal in refused) or engine == "ollama"
        return
    words = getattr(adapter, "arguments", adapter.argv)
    changed, before = (
        (words(option_launch), adapter.environment(option_launch))
        for option_launch in (given, plain)
    )
    assert changed != before
