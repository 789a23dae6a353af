"""What people really point at the gateway: the openai and anthropic clients and curl, in front of
llama.cpp itself.
"""

import json
import subprocess

import pytest
from gateway_client import metrics

from api_clients import anthropic, openai
from embedded_process import MODEL, serving, weights
from skep.engines.base import Launch
from skep.testing.process import GatewayProcess

pytestmark = pytest.mark.engine
KEY = "a key of our own"
GREEDY = {"temperature": 0}
ASKED = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def engine():
    launch = Launch("e", "embedded", MODEL, weights(), slots=2, context_tokens=1024, threads=1)
    with serving(launch) as url:
        yield url


@pytest.fixture(scope="module")
def gateway(engine, tmp_path_factory):
    log = tmp_path_factory.mktemp("clients") / "gateway.log"
    aliases = {"claude-*": MODEL, "gpt-4o": MODEL}
    with GatewayProcess(log, api_key=KEY, aliases=aliases) as process:
        process.serve(
            [{"name": "r0", "model": MODEL, "url": engine, "slots": 2, "confirms": "slots"}]
        )
        yield process
    assert "Traceback" not in log.read_text()


@pytest.fixture
def gpt(gateway):
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def claude(gateway):
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        yield client


def test_openai_completions_embeddings_path_and_responses_pass(gpt):
    plain = gpt.completions.create(model=MODEL, prompt="One, two,", max_tokens=4, temperature=0)
    assert plain.usage.completion_tokens == 4
    answer = gpt.responses.create(
        model=MODEL, input="Say hello.", max_output_tokens=8, temperature=0
    )
    assert 0 < answer.usage.output_tokens <= 8  # a model may say its piece in fewer
    with pytest.raises(
        openai.APIStatusError
    ) as refused:  # this engine was not started for embeddings, and says so
        gpt.embeddings.create(model=MODEL, input="x")
    assert "source" not in refused.value.body


def test_anthropic_messages_streamed_and_whole_say_the_same(claude):
    ask = {
        "model": "claude-of-some-kind",
        "max_tokens": 8,
        "messages": ASKED,
        "extra_body": GREEDY,
    }
    whole = claude.messages.create(**ask)
    assert whole.usage.output_tokens == 8
    with claude.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == whole.content[0].text
    assert last.usage.output_tokens == 8


def test_tokens_of_every_dialect_are_counted(gpt, claude, gateway):
    before = metrics(gateway, x_api_key=KEY)
    text = [
        gpt.chat.completions.create(
            model=MODEL, messages=ASKED, max_tokens=5
        ).usage.completion_tokens
    ]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(
        gpt.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=6, **options)
    )
    text.append(chunks[-1].usage.completion_tokens)
    text.append(
        claude.messages.create(model=MODEL, messages=ASKED, max_tokens=7).usage.output_tokens
    )
    # Greedy: this engine leaves `message_start` out when its first token is half a character.
    with claude.messages.stream(
        model=MODEL, messages=ASKED, max_tokens=8, extra_body=GREEDY
    ) as stream:
        text.append(stream.get_final_message().usage.output_tokens)
    name = f'skep_output_tokens_total{{model="{MODEL}",class="normal",replica="r0"}}'
    assert metrics(gateway, x_api_key=KEY)[name] - before.get(name, 0) == sum(text) > 4


@pytest.mark.needs("curl")
def test_curl_streams_with_a_body_from_a_file_and_asks_for_http2(gateway, tmp_path):
    body = tmp_path / "body.json"
    body.write_text(
        json.dumps({"model": MODEL, "messages": ASKED, "max_tokens": 4, "stream": True})
    )
    sent = ["-H", f"x-api-key: {KEY}", "-d", f"@{body}", f"{gateway.url}/v1/chat/completions"]
    curl = ["curl", "-sS", "--max-time", "60", "-N", "--http2", *sent]
    stdout = subprocess.run(curl, capture_output=True, text=True, check=True).stdout
    events = [line for line in stdout.splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert (
        json.loads(events[-2][6:])["choices"] == []
        or json.loads(events[-2][6:])["choices"][0]["finish_reason"]
    )
