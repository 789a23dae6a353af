"""Sessions on the simulated engine: their next turns find what the earlier ones left."""

import pytest
from msgspec.structs import replace
from simulated_process import MODEL, Simulated, small_plan

from api_clients import openai
from skep.engines.simulated_tokens import (
    Message,
    answer_stream,
    block_names,
    prompt_stream,
    word,
)

BLOCK = 16
SYSTEM = {"role": "system", "content": "You are an agent. " + "Tools: read, write, run. " * 60}


def answer_text(seed, tokens):
    return "".join(word(seed, place) for place in range(tokens))


@pytest.fixture(scope="module")
def engine():
    with Simulated(small_plan(context=16_384)) as running:
        yield running


@pytest.fixture(scope="module")
def client(engine):
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as open_ai:
        yield open_ai


def turn(client, messages, **fields):
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=40, extra_body={"ignore_eos": True}, **fields
    )
    messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    return answer.usage


def test_the_next_turn_finds_prompt_and_answer_of_the_one_before(client):
    messages = [SYSTEM, {"role": "user", "content": "Mend the parser. " * 40}]
    first = turn(client, messages)
    messages.append({"role": "user", "content": "The tests say: 3 failed."})
    second = turn(client, messages)
    held = first.prompt_tokens + first.completion_tokens
    assert second.prompt_tokens_details.cached_tokens >= held - BLOCK


def test_another_session_finds_the_beginning_that_both_share(client):
    turn(client, [SYSTEM, {"role": "user", "content": "one"}])
    usage = turn(client, [SYSTEM, {"role": "user", "content": "another one"}])
    shared = len(SYSTEM["content"]) / 4
    assert shared - BLOCK <= usage.prompt_tokens_details.cached_tokens <= shared + BLOCK


def test_a_prompt_that_changed_at_its_beginning_finds_nothing(client):
    question = {"role": "user", "content": "Mend the printer. " * 40}
    turn(client, [SYSTEM, question])
    changed = {"role": "system", "content": "cch=1 " + SYSTEM["content"]}
    usage = turn(client, [changed, question])
    assert usage.prompt_tokens_details.cached_tokens == 0


def test_a_tool_list_that_changed_costs_the_whole_prompt(client):
    tools = [{"type": "function", "function": {"name": "read", "parameters": {}}}]
    question = {"role": "user", "content": "Mend the lexer. " * 40}
    turn(client, [SYSTEM, question], tools=tools)
    tools[0]["function"]["name"] = "look"
    usage = turn(client, [SYSTEM, question], tools=tools)
    assert usage.prompt_tokens_details.cached_tokens == 0


def test_hits_are_counted_as_vllm_counts_them(engine, client):
    before = engine.figures()
    messages = [SYSTEM, {"role": "user", "content": "Count. " * 100}]
    first = turn(client, messages)
    messages.append({"role": "user", "content": "Again."})
    second = turn(client, messages)
    after = engine.figures()
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    asked, found = (after[name] - before[name] for name in names)
    assert asked == first.prompt_tokens + second.prompt_tokens
    assert found == sum(usage.prompt_tokens_details.cached_tokens for usage in (first, second))


def second_turns_of_two(**memory):
    """Return what the second turns of two sessions find that take turns on a pool for one."""
    plan = replace(small_plan(context=16_384), pool_tokens=700.0, **memory)
    sessions = [[{"role": "user", "content": f"{name}: mend it. " * 150}] for name in ("a", "b")]
    with (
        Simulated(plan) as engine,
        openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none") as client,
    ):
        for messages in sessions:
            turn(client, messages)
            messages.append({"role": "user", "content": "Go on."})
        usages = [turn(client, messages) for messages in sessions]
        figures = engine.figures()
    return [usage.prompt_tokens_details.cached_tokens for usage in usages], figures


def test_more_sessions_than_the_pool_holds_push_each_other_out():
    cached, _ = second_turns_of_two()
    assert max(cached) < 250


def test_kv_in_ram_holds_what_the_card_has_lost():
    cached, figures = second_turns_of_two(ram_tokens=20_000.0, ram_tokens_s=1e6)
    assert min(cached) > 400
    assert figures["vllm:external_prefix_cache_hits_total"] > 0


def test_an_answer_that_comes_back_has_the_tokens_it_had():
    question = Message("user", "Mend the parser.")
    seed = 7
    first = prompt_stream([question]) + answer_stream(seed, 30)
    following = [question, Message("assistant", answer_text(seed, 30)), Message("user", "Go on.")]
    assert prompt_stream(following).startswith(first)


@pytest.mark.parametrize("tokens", [1, 2, 70, 200])
@pytest.mark.parametrize("seed", [0, 7, 68, 4_000_000_000])
def test_the_tokens_of_an_answer_are_those_of_its_words(seed, tokens):
    message = Message("assistant", answer_text(seed, tokens))
    assert answer_stream(seed, tokens) in prompt_stream([message])


def test_texts_that_differ_in_their_last_letters_have_other_tokens():
    streams = [prompt_stream([Message("user", text)]) for text in ("mend itx", "mend ity", "m")]
    assert len(set(streams)) == 3


def test_a_block_is_named_by_all_that_stands_before_it():
    first = block_names(b"a" * 64 + b"c" * 64, BLOCK)
    second = block_names(b"b" * 64 + b"c" * 64, BLOCK)
    assert first[1] != second[1]


def test_the_last_block_has_no_name_until_it_is_full():
    assert len(block_names(b"a" * 127, BLOCK)) == 1
