"""What agents need, as the command line says it: plans, `skep ps` and `skep doctor --url`."""

import json

import pytest
from in_process import call, refused

from recorded_server import recorded
from skep.report.hive_text import check_lines

MODELS = json.dumps({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}).encode()
CALL = {"function": {"name": "read_file", "arguments": '{"path": "notes.txt"}'}}
NO_PARSER = 400, b'{"error": {"message": "tool_choice=required requires --tool-call-parser"}}'


def server(tools, models=MODELS):
    """A server that answers calls so, and has half of a prompt in its cache when it comes
    again.
    """
    prompts = []

    def answer(_path, _headers, body):
        if b'"tools"' in body:
            return tools
        prompts.append(body)
        cached = 300 * (len(prompts) > 1)
        usage = {"prompt_tokens": 600, "prompt_tokens_details": {"cached_tokens": cached}}
        return json.dumps({"choices": [{"message": {"content": "yes"}}], "usage": usage}).encode()

    def page(path):
        if path == "/v1/models":
            return models
        return (404, b"{}")

    return recorded(answer, page)


CALLED = json.dumps({"choices": [{"message": {"tool_calls": [CALL]}}]}).encode()


def test_doctor_says_of_a_server_that_agents_can_work_with_it():
    with server(CALLED) as running:
        done = call("doctor", "--url", running.url, "--json")
        assert done.code == 0
        findings = {
            finding["check"]: (finding["verdict"], finding["detail"])
            for finding in done.json["findings"]
        }
        assert findings == {"tool calls": ("ok", "ok"), "prefix cache": ("ok", "50 % hit")}
        assert done.json["model"] == "m"


def test_doctor_says_of_a_server_what_agents_miss_and_ends_with_1():
    with server(NO_PARSER) as running:
        done = call("doctor", "--url", f"{running.url}/v1", "--model", "m")
    assert done.code == 1
    assert (
        "refused, vLLM was started without --tool-call-parser: agents cannot call tools"
        in done.out
    )
    assert "1 thing to do: tool calls" in done.out


def test_doctor_ends_with_1_where_a_server_answers_no_question_and_says_what_to_do():
    with server((401, b'{"error": {"message": "no key"}}')) as running:
        done = call("doctor", "--url", running.url)
    assert done.code == 1
    assert "not checked, HTTP 401 (no key)" in done.out
    assert "→ name the variable of its key with --key-env" in done.out


def test_what_a_server_says_of_its_context_may_be_anything():
    named = {"id": "m", "skep": {"engine": ["x"], "context": "many"}}
    with server(CALLED, json.dumps({"data": [named]}).encode()) as running:
        assert call("doctor", "--url", running.url).code == 0


def test_doctor_asks_for_no_more_than_a_server_says_that_it_reads():
    small = json.dumps({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 100}]}).encode()
    with server(CALLED, small) as running:
        assert (
            "not checked, 100 tokens of context are too few"
            in call("doctor", "--url", running.url).out
        )


def test_doctor_asks_no_server_without_its_address():
    assert "--url" in refused("doctor", "--model", "m")
    assert "cannot be reached" in refused("doctor", "--url", "http://127.0.0.1:9", code=1)


def checked(state, text, hint=None):
    return {"state": state, "text": text, **({"hint": hint} if hint else {})}


def test_replicas_that_do_alike_share_a_line_and_a_warning_has_its_own():
    good = {
        "tool_calls": checked("ok", "tool calls: ok"),
        "prefix_cache": checked("ok", "prefix cache: 94 % hit"),
    }
    bad = {**good, "tool_calls": checked("warning", "tool calls: none", "use another model")}
    rows = [
        {"model": "a", "checks": good},
        {"model": "a", "checks": good},
        {"model": "b", "checks": bad},
    ]
    assert check_lines([*rows, {"name": "gateway"}, {"model": "c", "checks": None}]) == [
        "a: tool calls: ok; prefix cache: 94 % hit",
        "b: prefix cache: 94 % hit",
        "warning: b: tool calls: none; use another model",
    ]


PLANS = [
    (
        "phi-4",
        "vllm",
        "agents cannot call tools with it on vllm: its chat template knows no tools",
    ),
    (
        "gemma-3-27b",
        "sglang",
        "agents cannot call tools with it on sglang: no parser of sglang reads its calls",
    ),
    (
        "gemma-3-27b",
        "vllm",
        "agents cannot call tools with it on vllm: it needs the chat template",
    ),
    (
        "qwen2.5-coder-32b",
        "vllm",
        "agents' tool calls are unreliable with it: it often answers with JSON",
    ),
]


@pytest.mark.parametrize(("model", "engine", "message"), PLANS)
def test_a_plan_says_where_agents_cannot_call_tools(model, engine, message):
    words = ("plan", model, "--gpu", "2x rtx-3090", "--engine", engine)
    best = call(*words, "--json").json["plans"][0]
    assert any(line.startswith(message) for line in best["caveats"])
    assert message in call(*words).out.replace("\n    ", " ")


CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024,
    "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8,
    "intermediate_size": 4096, "vocab_size": 32000, "max_position_embeddings": 131072,
}  # fmt: skip


NO_TOOLS = "agents cannot call tools with it on vllm: its chat template knows no tools"
NO_PARSER_KNOWN = (
    "agents cannot call tools with it on vllm: no parser of vllm is known for its calls, name "
    "yours with tool_parser"
)


@pytest.mark.parametrize(
    ("folder", "template", "caveat"),
    [
        ("qwen3-8b", "{{ messages }}", NO_TOOLS),
        ("phi-4", "{% if tools %}", NO_PARSER_KNOWN),
        ("qwen3-8b", "{% if tools %}", None),
        ("mine", "{{ messages }}", NO_TOOLS),
        (
            "mine",
            "{% if tools %}",
            "no tool parser of vllm is known for mine: name one with tool_parser",
        ),
    ],
)
def test_a_plan_of_a_folder_goes_by_the_chat_template_in_it(tmp_path, folder, template, caveat):
    path = tmp_path / folder
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    best = call("plan", str(path), "--gpu", "rtx-3090", "--engine", "vllm", "--json").json[
        "plans"
    ][0]
    assert [line for line in best["caveats"] if "tool" in line] == ([caveat] if caveat else [])


def test_a_plan_says_nothing_about_tools_where_they_work():
    json = call("plan", "qwen3.6-27b", "--gpu", "2x rtx-3090", "--json").json
    assert not [line for plan in json["plans"] for line in plan["caveats"] if "tool" in line]
