"""The simulated engine as clients see it: a real process, real sockets,
the real `openai` client.
"""

import json
import socket
import subprocess
import sys
import threading

import pytest
from simulated_process import MODEL, MTP, Simulated, small_plan

from api_clients import openai
from commands import eventually
from skep.bench.tasks import TaskMaker, Workload
from skep.engines.simulated import plan_from_json

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def engine():
    with Simulated(small_plan()) as running:
        yield running


@pytest.fixture(scope="module")
def client(engine):
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as open_ai:
        yield open_ai


def streaming(engine, **fields):
    """A plain socket with an answer under way, its first bytes read."""
    body = json.dumps({"messages": HELLO, "stream": True, **fields}).encode()
    sock = socket.create_connection(("127.0.0.1", int(engine.url.rpartition(":")[2])), timeout=20)
    sock.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        + body
    )
    return sock


def test_a_chat_is_answered_and_marked(client):
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, max_tokens=12
    )
    answer = raw.parse()
    assert raw.headers["x-skep-simulated"] == "1"
    assert answer.model_extra["simulated"] is True
    assert answer.choices[0].message.content.startswith("[simulated] ")
    assert answer.choices[0].finish_reason == "length"
    assert (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
        answer.usage.total_tokens,
    ) == (8, 12, 20)


def test_a_stream_brings_every_token_and_its_last_chunk_the_usage_and_the_mark(client):
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=20, stream=True, stream_options=options
    )
    chunks = list(stream)
    texts = [
        chunk.choices[0].delta.content
        for chunk in chunks
        if chunk.choices and chunk.choices[0].delta.content
    ]
    assert (len(texts), texts[0]) == (20, "[simulated]")
    assert (chunks[-2].choices[0].finish_reason, chunks[-1].usage.completion_tokens) == (
        "length",
        20,
    )
    assert all(chunk.model_extra["simulated"] is True for chunk in chunks)
    whole = client.chat.completions.create(model=MODEL, messages=HELLO).choices[0]
    assert whole.message.content.startswith("".join(texts))  # the same words, streamed or whole
    assert whole.finish_reason == "stop"


def test_the_same_task_has_the_same_length_alone_and_in_a_swarm(client):
    """Another random length each time made a speedup of 1.29x by wall time out of 1.87x by
    tokens.
    """
    maker = TaskMaker(Workload(seed=4))
    lengths = {}
    for agents in (1, 3):
        answers = [
            client.chat.completions.create(model=MODEL, messages=task.messages, max_tokens=60)
            for task in maker.tasks(agents, 0, 4, same=True)
        ]
        lengths[agents] = [
            (answer.usage.completion_tokens, answer.choices[0].message.content)
            for answer in answers
        ]
    assert lengths[1] == lengths[3]
    assert len({text for _, text in lengths[1]}) == 4  # another task, another answer


def test_beyond_the_context_vllms_own_error_is_given(client):
    with pytest.raises(
        openai.BadRequestError, match="This model's maximum context length is 4096 tokens"
    ) as caught:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "word " * 4000}]
        )
    assert caught.value.body["type"] == "BadRequestError"
    with pytest.raises(
        openai.BadRequestError, match=r"you requested 4104 tokens \(8 in the messages, 4096 in"
    ):
        client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4096)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "truncated"),
        (b"[]", 400, "Expected `object`"),
        ({"messages": []}, 400, "$.messages"),
        ({"messages": ["hi"]}, 400, "$.messages[0]"),
        ({"messages": HELLO, "max_tokens": 0}, 400, "$.max_tokens"),
        ({"messages": HELLO, "n": 2}, 400, "$.n"),
        ({"messages": HELLO, "model": "other"}, 404, "`other` does not exist"),
    ],
    ids=str,
)
def test_what_it_cannot_do_is_refused_in_one_line(engine, body, status, message):
    got, headers, answer = engine.post("/v1/chat/completions", body)
    document = json.loads(answer)
    assert (got, document["error"]["code"], document["simulated"]) == (status, status, True)
    assert headers["x-skep-simulated"] == "1"
    assert message in document["error"]["message"]


def test_the_model_list_says_what_it_is(engine, client):
    model = client.models.list().data[0]
    assert (model.id, model.owned_by, model.model_extra["max_model_len"]) == (
        MODEL,
        "skep-simulated",
        4096,
    )
    assert model.model_extra["simulated"] is True
    assert model.model_extra["skep"] == {
        "simulated": True,
        "engine": "simulated: a small rig",
        "slots": 4,
    }
    assert plan_from_json(engine.get("/simulated")[2].decode()) == small_plan()
    assert engine.get("/v1/nothing")[0] == 404


def test_skeps_own_reader_finds_the_engines_figures(engine, client):
    from skep.bench.summary import counted

    before = engine.figures()
    body = {"max_tokens": 300, "extra_body": {"ignore_eos": True}}
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, **body)
    # As long as asked.
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (
        300,
        "length",
    )
    figures = counted(before, engine.figures())
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (8, 300)
    assert 0 < figures["tpot_s"] < figures["total_s"]
    assert figures["ttft_s"] == pytest.approx(figures["queue_s"] + figures["prefill_s"])
    assert figures["total_s"] == pytest.approx(figures["ttft_s"] + figures["decode_s"])


def test_more_than_the_slots_wait_and_a_client_that_leaves_makes_room():
    """A hang-up frees its slot for the one that waits, without an answer being finished."""
    long = {"max_tokens": 4000, "ignore_eos": True}
    with Simulated(small_plan(slots=2, card="rtx-3090")) as engine:
        first = streaming(engine, **long)
        second = streaming(engine, **long)
        assert b"[simulated]" in first.recv(65536) + first.recv(65536)
        third = streaming(engine, max_tokens=5)
        eventually(lambda: engine.figures()["vllm:num_requests_waiting"] == 1)
        assert engine.figures()["vllm:num_requests_running"] == 2
        assert engine.figures()["vllm:kv_cache_usage_perc"] > 0
        first.close()
        received = b""
        while b"[DONE]" not in received:
            received += third.recv(65536)
        second.close()
        third.close()
        eventually(lambda: engine.figures()["vllm:num_requests_running"] == 0)
        assert engine.figures()["vllm:request_success_total"] == 3  # two of them left


def test_it_loads_before_it_serves_and_speculation_brings_several_tokens_a_chunk():
    with Simulated(small_plan(spec=MTP, load_s=0.4)) as engine:
        assert [engine.get(path)[0] for path in ("/health", "/v1/models")] == [503, 503]
        eventually(lambda: engine.get("/health")[0] == 200)
        with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="x") as client:
            body = {"max_tokens": 120, "stream": True, "extra_body": {"ignore_eos": True}}
            stream = client.chat.completions.create(model=MODEL, messages=HELLO, **body)
            texts = [text for chunk in stream if (text := chunk.choices[0].delta.content)]
        assert len("".join(texts).split()) == 120
        assert 30 < len(texts) < 80
        figures = engine.figures()
        drafts = figures["vllm:spec_decode_num_drafts_total"]
        assert figures["vllm:spec_decode_num_draft_tokens_total"] == 3 * drafts
        assert drafts < figures["vllm:spec_decode_num_accepted_tokens_total"] < 3 * drafts


def test_clients_at_once_share_the_passes(engine, client):
    """Four at once take little longer than one alone: they are decoded in one batch."""
    fixed = {"max_tokens": 200, "extra_body": {"ignore_eos": True}}

    def work():
        client.chat.completions.create(model=MODEL, messages=HELLO, **fixed)

    before = engine.figures()["skep_simulated_passes_total"]
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # One after the other: 800.
    assert engine.figures()["skep_simulated_passes_total"] - before < 500


def test_a_start_that_cannot_work_ends_at_once_with_one_line():
    argv = [sys.executable, "-m", "skep.engines.simulated_server", "--model", "x"]
    broken = subprocess.run([*argv, "--plan", "{}"], capture_output=True, text=True, timeout=20)
    assert (broken.returncode, broken.stderr.count("\n")) == (78, 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        held = [*argv, "--port", port, "--plan", small_plan().to_json()]
        busy = subprocess.run(held, capture_output=True, text=True, timeout=20)
    assert (busy.returncode, busy.stderr) == (
        78,
        f"error: port {port} is in use: choose another one, or 0 for any\n",
    )
