"""Traces: lines as they were published, and what is wrong with those that are not."""

import json

import pytest

from skep.errors import UserError
from skep.workload.filling import CHARS_PER_PIECE, pieces
from skep.workload.traffic import read_trace, trace_messages

# In the form of the traces published with the FAST '25 paper.
MOONCAKE = """\
{"timestamp": 27000, "input_length": 2290, "output_length": 316, "hash_ids": [0, 42, 43, 44, 45]}
{"timestamp": 27000, "input_length": 915, "output_length": 355, "hash_ids": [0, 462]}

{"timestamp": 30052, "input_length": 2293, "output_length": 31, "hash_ids": [0, 42, 43, 44, 962]}
{"timestamp": 30529, "input_length": 28, "output_length": 445, "hash_ids": [298]}
""".splitlines()

BATCH = [
    json.dumps({
        "custom_id": f"request-{i}", "method": "POST", "url": "/v1/chat/completions",
        "body": {
            "model": "some-model", "stream": True, "temperature": 0.2, "tools": [{"type": "function"}],
            "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": f"Hello {i}"}],
            "max_tokens": 100 + i,
        },
    }) for i in range(3)
]  # fmt: skip


def said(item, **options):
    (message,) = trace_messages(item, chars_per_token=CHARS_PER_PIECE, **options)
    assert message["role"] == "user"
    return message["content"]


def line(**changes):
    values = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]} | changes
    return json.dumps({name: value for name, value in values.items() if value is not None})


def test_mooncake_lines_become_items():
    """Times count from the first request; blank lines are nothing. Twice as fast is half the time."""
    items = read_trace(MOONCAKE)
    assert [item.at_s for item in items] == pytest.approx([0, 0, 3.052, 3.529])
    assert [item.prompt_tokens for item in items] == [2290, 915, 2293, 28]
    assert [item.max_tokens for item in items] == [316, 355, 31, 445]
    assert [item.line for item in items] == [1, 2, 4, 5]
    assert items[1].blocks == (0, 462)
    assert [item.at_s for item in read_trace(MOONCAKE, speed=2, limit=3)] == pytest.approx([0, 0, 1.526])


def test_lines_out_of_order_are_replayed_in_order():
    """Logs of several servers are often merged badly."""
    items = read_trace([line(timestamp=2000), line(timestamp=500), line(timestamp=1000.5)])
    assert [item.line for item in items] == [2, 3, 1]
    assert [item.at_s for item in items] == pytest.approx([0, 0.5005, 1.5])


def test_prompts_have_the_length_of_the_trace():
    """The overhead of the chat template is taken from the last block."""
    for item in read_trace(MOONCAKE):
        assert pieces(said(item)) == pytest.approx(item.prompt_tokens, abs=1)
        assert pieces(said(item, overhead_tokens=12)) == pytest.approx(item.prompt_tokens - 12, abs=1)


def test_equal_ids_are_an_equal_prefix_and_no_more():
    """Where two lists of ids part ways, the texts do; in another replay all of it is new."""
    first, second, third, fourth = (said(item) for item in read_trace(MOONCAKE))

    def common(a, b):
        return pieces(a[: next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)])

    assert 4 * 512 <= common(first, third) < 4 * 512 + 6
    assert 512 <= common(first, second) < 512 + 6
    assert common(first, fourth) < 6
    assert common(first, said(read_trace(MOONCAKE)[0], seed=1)) < 6
    assert first == said(read_trace(MOONCAKE)[0])


@pytest.mark.parametrize("chars_per_token", [2.5, 3.4, 4.5])
def test_a_part_of_a_block_is_its_beginning(chars_per_token):
    """The same id at the end of one prompt and in the middle of another."""
    whole, part = read_trace([line(input_length=1100, hash_ids=[1, 2, 3]), line(input_length=612, hash_ids=[1, 2])])
    texts = [trace_messages(item, chars_per_token=chars_per_token)[0]["content"] for item in (whole, part)]
    assert texts[0].startswith(texts[1])


def test_batch_lines_become_items():
    """Messages as they are, the rest of the body passed on but for what the bench itself says.

    `max_completion_tokens` is what OpenAI calls the limit now; there may be none.
    """
    items = read_trace(BATCH)
    assert [item.custom_id for item in items] == ["request-0", "request-1", "request-2"]
    assert items[2].max_tokens == 102
    assert (items[0].at_s, items[0].prompt_tokens, items[0].blocks) == (None, None, ())
    assert trace_messages(items[1])[1] == {"role": "user", "content": "Hello 1"}
    assert items[0].extras == {"temperature": 0.2, "tools": [{"type": "function"}]}
    for limit, tokens in (({"max_completion_tokens": 9}, 9), ({}, None)):
        body = {"messages": [{"role": "user", "content": "Hi"}], **limit}
        (item,) = read_trace([json.dumps({"custom_id": "a", "body": body})])
        assert item.max_tokens == tokens


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("{", "line 2 .* not JSON"),
        ("[1]", "line 2 .* not a JSON object"),
        ('{"prompt": "x"}', "line 2 .*`timestamp` is missing"),
        (BATCH[0], "line 2 .* a batch line among mooncake lines"),
        (line(timestamp=None), "line 2 .*`timestamp` is missing"),
        (line(timestamp="soon"), "line 2 .*`timestamp` must be a number .*, not `soon`"),
        (line(timestamp=-1), "line 2 .*`timestamp`"),
        (line(timestamp=True), "line 2 .*`timestamp`"),
        (line(input_length=0), "line 2 .*`input_length` must be a whole number from 1 up, not `0`"),
        (line(output_length=2.5), "line 2 .*`output_length`"),
        (line(hash_ids=None), "line 2 .*`hash_ids`"),
        (line(hash_ids=["a", "b"]), "line 2 .*`hash_ids`"),
        (line(hash_ids=[1]), "600 tokens are 2 blocks of 512, not 1"),
    ],
)
def test_wrong_lines_are_named(bad, problem):
    """The number of the line and what is wrong with it."""
    with pytest.raises(UserError, match=problem):
        read_trace([line(), bad])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"custom_id": "request-0"}, "has the custom_id `request-0` of line 1"),
        ({"custom_id": None}, "no `custom_id`"),
        ({"method": "GET"}, "not a POST"),
        ({"url": "/v1/embeddings"}, "not a POST to /v1/chat/completions"),
        ({"body": "text"}, "no `body`"),
        ({"body": {"messages": []}}, "`body.messages`"),
        ({"body": {"messages": ["hello"]}}, "`body.messages`"),
        ({"body": {"messages": [{"role": "user"}], "max_tokens": 0}}, "`body.max_tokens` must be .*, not `0`"),
    ],
)
def test_wrong_batch_lines_are_named(changes, problem):
    """Likewise."""
    with pytest.raises(UserError, match=problem):
        read_trace([BATCH[0], json.dumps(json.loads(BATCH[1]) | changes)])


@pytest.mark.parametrize(
    ("lines", "options", "problem"),
    [([], {}, "no requests"), (["", "  "], {}, "no requests"), (MOONCAKE, {"speed": 0}, "speed `0`")],
)  # fmt: skip
def test_nothing_to_replay_is_an_error(lines, options, problem):
    """An empty run would look like a quick one."""
    with pytest.raises(UserError, match=problem):
        read_trace(lines, **options)
