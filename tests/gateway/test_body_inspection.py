"""What the gateway reads of a request's body, from small and large ones, honest and not."""

import json
import time

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from skep.gateway import body_inspection
from skep.gateway.body_inspection import (
    DECODE_BYTES,
    LONG_BYTES,
    LONGEST_NAME,
    BodySummary,
    NotAnObject,
    inspect_body,
    model_of_form,
    wants_stream,
    with_model,
)

LARGE = 2 * DECODE_BYTES
SYSTEM = {"role": "system", "content": 'You are "careful".\n' * 20}
PROPERTIES = {
    "model": {"type": "string"},
    "prompt": {"type": "string"},
    "input": {"default": {"model": "no"}},
    "messages": {"enum": ["[", '{"role":"user"']},
}
TOOLS = [
    {"type": "function", "function": {"name": "ask", "parameters": {"properties": PROPERTIES}}}
]

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
known_keys = [
    "model",
    "messages",
    "role",
    "user",
    "content",
    "text",
    "input",
    "system",
    "\\",
    '"',
    "{",
]
keys = st.sampled_from(known_keys) | st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def compact(document):
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def spaced(document):
    return json.dumps(document, indent=2).encode()


def turns(first, count, size=900, parts=False, content_first=False):
    """The messages of a conversation after so many turns."""
    messages = [SYSTEM]
    for turn in range(count):
        if turn == 0:
            text = first
        else:
            text = f"and then, {turn}? " + "x" * size
        messages.append(
            {"role": "user", "content": [{"type": "text", "text": text}] if parts else text}
        )
        messages.append({"role": "assistant", "content": f'reply {turn}: "{"y" * size}"'})
    messages.pop()
    if content_first:
        messages = [
            {"content": message["content"], "role": message["role"]} for message in messages
        ]
    return messages


# Streams


stream_values = st.booleans() | st.sampled_from([None, 1, "true", {"stream": True}, [True]])
other_keys = keys | st.just("stream_options")
nested = st.fixed_dictionaries(
    {}, optional={"stream": stream_values, "x": st.just([{"stream": True}])}
)


@given(
    st.dictionaries(other_keys, values | nested, max_size=5),
    st.none() | st.tuples(stream_values),
    st.dictionaries(other_keys, values | nested, max_size=5),
    st.sampled_from([compact, spaced]),
)
@settings(deadline=None)
def test_whether_an_answer_is_streamed_is_what_a_json_parser_finds(before, stream, after, written):
    """Wherever the key stands, and never that of a nested object."""
    document = before | ({"stream": stream[0]} if stream else {}) | after
    if "\\ud" not in json.dumps(document):  # a string that is none is no reason to stream
        assert wants_stream(written(document)) == (document.get("stream") is True)


@pytest.mark.parametrize("text", ["x", '"stream": false', "\\"])
def test_whether_a_long_body_is_streamed_is_told_by_either_end(text):
    chat = {"model": "m", "messages": [text * LONG_BYTES]}
    assert wants_stream(compact(chat | {"stream": True, "tools": TOOLS}))
    assert wants_stream(compact({"stream": True} | chat))
    assert not wants_stream(compact(chat))
    assert not wants_stream(compact({"stream": False} | chat))


# The model


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: b'{"model":"a"' + tail))
@example(b"")
@example(b"null")
@example(b"[]")
@example(b'"model"')
@example(b'{"model":"\xff"}')
@example(b'{"model":' + b"9" * 5000 + b"}")
@example(b'{"model":-1e999}')
@example(b'{"model":"\\ud800"}')
@settings(deadline=None)
def test_whatever_bytes_come_there_is_a_look_or_a_refusal(body):
    for text in (body, body + b" " * LARGE, b" " * 600 + body + b" " * LARGE):
        model_of_form(b'name="model"\r\n' + text)
        wants_stream(text)
        try:
            summary = inspect_body(text)
        except NotAnObject:
            continue
        assert summary.model is None or isinstance(summary.model, str)
        assert summary.conversation is None or 0 <= summary.conversation < 1 << 32


@given(
    st.dictionaries(keys, values, max_size=6),
    st.sampled_from([compact, spaced]),
    st.sampled_from([0, LARGE]),
)
@settings(deadline=None)
def test_the_model_of_any_document_is_the_one_that_a_json_parser_finds(document, written, filler):
    """Whatever the order, the spacing and the escapes, and never that of a nested object."""
    body = written(document | {"pad": "x" * filler} if filler else document)
    model = document.get("model")
    try:
        summary = inspect_body(body)
    except NotAnObject:
        assert not (model is None or isinstance(model, str)) or "\\ud" in json.dumps(document)
    else:
        assert summary.model == model


@given(
    names,
    st.permutations(["model", "messages", "tools", "stream", "pad"]),
    st.sampled_from([compact, spaced]),
)
@settings(max_examples=60, deadline=None)
def test_the_model_of_a_large_chat_is_found_wherever_it_stands(name, order, written):
    chat = {
        "model": name,
        "messages": turns("hello", 3),
        "tools": TOOLS,
        "stream": True,
        "pad": "x" * LARGE,
    }
    summary = inspect_body(written({key: chat[key] for key in order}))
    assert summary.model == name
    assert (
        summary.conversation == inspect_body(written({"messages": chat["messages"]})).conversation
    )


@pytest.mark.parametrize("filler", [0, LARGE])
@pytest.mark.parametrize(
    ("text", "model"),
    [
        (b'"model":null', None),
        (b'"model":""', ""),
        (b'"mod\\u0065l":"a"', "a"),
        (b'"model" : "a"', "a"),
        (b'"model":"\\u0061\\/\\""', 'a/"'),
        ('"model":"größe/模型"'.encode(), "größe/模型"),
        (b'"a":{"model":"b"}', None),
        (b'"a":[{"model":"b"}]', None),
        (b'"a":"\\"model\\":\\"b\\""', None),
        (b'"a":"x\\\\","model":"b"', "b"),
        (b'"x\\"model":"b"', None),
    ],
)
def test_names_that_are_written_in_unusual_ways(text, model, filler):
    chat = compact(turns("hi", 1))
    for body in (
        b"{" + text + b',"messages":' + chat + b',"pad":"' + b"x" * filler + b'"}',
        b'{"messages":' + chat + b"," + text + b',"pad":"' + b"x" * filler + b'"}',
        b'{"messages":' + chat + b',"pad":"' + b"x" * filler + b'",' + text + b"}",
    ):
        assert inspect_body(body).model == model


@pytest.mark.parametrize("filler", [b"", b" " * LARGE])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"5",
        b'"a"',
        b"[]",
        b'[{"model":"a"}]',
        b'{"model":5}',
        b'{"model":["a"]}',
        b'{"model":{}}',
        b'{"model":"a"',
        b'{"model":"a"}}',
        b'{"model":"a"}{"model":"b"}',
        b"{'model':'a'}",
        b'{"model":"a","x":NaN}',
        b'{"model":"a\nb"}',
        b'{"model":"\xff"}',
        b'{"model":"\xed\xa0\x80"}',
        b'{"model":"\\ud800"}',
        '{"model":"a"}'.encode("utf-16"),
    ],
)
def test_what_is_no_json_object_with_a_name_is_refused(body, filler):
    with pytest.raises(NotAnObject):
        inspect_body(body + filler)


def test_a_byte_order_mark_is_read_over_as_engines_do():
    assert inspect_body(b'\xef\xbb\xbf{"model":"a"}') == BodySummary("a")
    assert inspect_body(b'\xef\xbb\xbf{"pad":"' + b"x" * LARGE + b'","model":"a"}') == BodySummary(
        "a"
    )
    with pytest.raises(NotAnObject):
        inspect_body(b"\xef\xbb\xbf\xef\xbb\xbf")


def test_a_name_longer_than_any_model_has_is_refused():
    """It would be repeated in the answer, the log and the store."""
    assert inspect_body(compact({"model": "m" * LONGEST_NAME})).model == "m" * LONGEST_NAME
    chat = {"messages": turns("hi", 1), "pad": "x" * LARGE}
    name = "m" * (LONGEST_NAME + 1)
    for body in ({"model": name}, {"model": name, **chat}, {**chat, "model": name}):
        with pytest.raises(NotAnObject, match=r"longer than|length <="):
            inspect_body(compact(body))


@pytest.mark.parametrize("second", [b'"model":"b"', b'"mod\\u0065l":"b"', b' "model" : "b" '])
def test_of_two_models_the_last_one_counts_as_it_does_for_engines(second):
    chat = b'"messages":' + compact(turns("hi", 1))
    assert inspect_body(b'{"model":"a",' + second + b"}").model == "b"
    assert inspect_body(b'{"model":"a",' + chat + b"," + second + b"}").model == "b"
    pad = b',"pad":"' + b"x" * LARGE + b'"'
    assert inspect_body(b"{" + chat + pad + b',"model":"a",' + second + b"}").model == "b"
    # The one case that is not searched: the body is large and begins with a model.
    assert inspect_body(b'{"model":"a",' + chat + pad + b"," + second + b"}").model == "a"


# The conversation

SIZES = (1, 2, 3, 10, 40, 120)  # turns: 1 KB to over 200 KB


def digests(bodies):
    conversations = [inspect_body(body).conversation for body in bodies]
    assert None not in conversations
    return set(conversations)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), st.data())
@settings(max_examples=60, deadline=None)
def test_the_digest_is_that_of_the_first_user_message_whatever_it_says(first, data):
    """Also where it says brackets, quotes and JSON, and where bodies are too large to be decoded:
    nothing behind it may have a part in it."""
    parts = data.draw(st.booleans())
    content_first = data.draw(st.booleans())
    written = data.draw(st.sampled_from([compact, spaced]))
    order = data.draw(st.permutations(["model", "messages", "stream"]))

    def body(count, size, first=first):
        chat = {
            "model": "m",
            "stream": True,
            "messages": turns(first, count, size, parts, content_first),
        }
        return written({key: chat[key] for key in order} | {"tools": TOOLS})

    sizes = [(1, 10), (2, 10), (2, LARGE), (5, 6000), (60, 900)]
    conversations = digests(body(*size) for size in sizes)
    assert len(conversations) == 1
    assert conversations.isdisjoint(digests(body(*size, first=first + "!") for size in sizes))


def test_first_messages_that_differ_late_are_told_apart_but_not_too_late():
    """Tasks often begin with the same page of instructions."""

    def digest(first, count=1):
        return inspect_body(compact({"model": "m", "messages": turns(first, count)})).conversation

    same = "s" * (body_inspection.BEGINNING - 10)
    assert digest(same + "1") != digest(same + "2")
    assert digest(same + "1") == digest(same + "1", 40)
    assert digest(same + 20 * "s" + "1") == digest(same + 20 * "s" + "2", 40)


def test_the_same_question_under_another_system_prompt_is_another_conversation():
    ask = [{"role": "user", "content": "go"}]
    bodies = [
        {"messages": [{"role": "system", "content": "a"}, *ask]},
        {"messages": [{"role": "system", "content": "b"}, *ask]},
        {"system": "a", "messages": ask},
        {"system": [{"type": "text", "text": "b"}], "messages": ask},
        {"messages": ask},
        {"instructions": "c", "input": ask},
    ]
    assert len(digests(map(compact, bodies))) == len(bodies)


@pytest.mark.parametrize(
    "system", ["Be kind. " * 50, [{"type": "text", "text": "Be kind.", "cache_control": {}}]]
)
@pytest.mark.parametrize(
    "order", [("model", "messages", "system"), ("system", "messages", "model")]
)
def test_an_anthropic_conversation_keeps_its_digest_while_its_cache_marks_move(system, order):
    """Claude Code marks the newest messages, so the first one is marked in the first turns
    only.
    """

    def body(count):
        messages = turns("read README", count, parts=True)[1:]
        messages[-1] = {"role": "user", "content": [*messages[-1]["content"]]}
        messages[-1]["content"][-1] = {
            **messages[-1]["content"][-1],
            "cache_control": {"type": "ephemeral"},
        }
        chat = {"model": "claude-x", "system": system, "messages": messages}
        return compact({"max_tokens": 5} | {key: chat[key] for key in order} | {"tools": TOOLS})

    assert len(digests(body(count) for count in SIZES)) == 1


def test_a_first_message_without_text_is_told_by_what_comes_before_it():
    """A picture alone: the reply to it must not become a part of the digest."""
    picture = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "data:" + "A" * 100_000}}],
    }
    reply = {"role": "assistant", "content": [{"type": "text", "text": "a cat"}]}
    bodies = [
        {"model": "m", "messages": [SYSTEM, picture, *[reply, picture][: 2 * turn]]}
        for turn in range(3)
    ]
    assert len(digests(map(compact, bodies))) == 1


def test_a_responses_conversation_keeps_its_digest_as_it_grows():
    def items(count):
        return [
            {
                "type": "message",
                "role": message["role"],
                "content": [{"type": "input_text", "text": message["content"]}],
            }
            for message in turns("hello", count)[1:]
        ]

    for listed in (items, lambda count: turns("hello", count)[1:]):
        bodies = [
            {"model": "m", "instructions": "Be brief.", "input": listed(count)} for count in SIZES
        ]
        assert len(digests(map(compact, bodies))) == 1
        assert len(digests(spaced(dict(sorted(body.items()))) for body in bodies)) == 1
    alphabetical = [[dict(sorted(item.items())) for item in items(count)] for count in SIZES]
    assert len(digests(compact({"input": listed, "model": "m"}) for listed in alphabetical)) == 1


@pytest.mark.parametrize("field", ["prompt", "input"])
def test_a_bare_prompt_is_told_by_its_beginning(field):
    def body(text):
        return compact({"model": "m", field: text, "stream": True})

    long = "Once upon a time " * 60
    assert len(digests([body(long), body(long + "there was"), body(long * 200)])) == 1
    assert len(digests([body("a"), body("b"), body(long)])) == 3


@pytest.mark.parametrize("fields", [{}, {"messages": None}, {"messages": []}, {"prompt": None}])
def test_a_body_that_says_nothing_has_no_conversation_nor_one_nobody_asks_for(
    fields,
):
    assert inspect_body(compact({"model": "m", **fields})) == BodySummary("m")
    text = compact({**fields, "model": "m", "messages": turns("hi", 1)})
    assert inspect_body(text, conversation=False) == BodySummary("m")


@given(values, st.sampled_from(["messages", "input", "prompt", "system"]))
@settings(deadline=None)
def test_a_conversation_of_any_shape_is_no_reason_to_refuse_a_body(value, field):
    """What is right in a conversation the engine decides."""
    body = json.dumps({"model": "m", field: value})
    if "\\ud" not in body:
        assert inspect_body(body.encode()).model == "m"


# Forms


def form(*fields, boundary=b"x1"):
    parts = b"".join(
        b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (boundary, *field)
        for field in fields
    )
    return parts + b"--%b--\r\n" % boundary


AUDIO = (b'name="file"; filename="model"\r\nContent-Type: audio/wav', b"\x00\xff\r\n" * 60_000)


def test_the_model_of_a_form_stands_before_or_behind_its_file():
    """curl sends the fields as they were written,
    and OpenAI's own example writes the file first.
    """
    assert model_of_form(form((b'name="model"', b"whisper-1"), AUDIO)) == "whisper-1"
    assert model_of_form(form(AUDIO, (b'name="model"', b"whisper-1"))) == "whisper-1"
    assert (
        model_of_form(form((b'name="model"\r\nContent-Type: text/plain', b"whisper-1")))
        == "whisper-1"
    )
    assert model_of_form(form((b'name="model"', b"\xff"))) == "\ufffd"
    assert model_of_form(form(AUDIO)) is None
    assert model_of_form(form((b'name="file"; filename="model"', b"not-a-model"))) is None


# The replacement of an alias


@given(
    st.dictionaries(keys, values, max_size=5),
    names,
    names,
    st.integers(0, 7),
    st.sampled_from([compact, spaced]),
    st.sampled_from([0, LARGE]),
)
@settings(deadline=None)
def test_a_replaced_model_changes_no_other_byte(document, old, new, place, written, filler):
    others = {**document, "pad": "x" * filler, "tools": TOOLS}
    pairs = [
        written(key) + b" : " + written(value) for key, value in others.items() if key != "model"
    ]

    def body(name):
        return (
            b"{\n" + b" ,".join([*pairs[:place], b'"model" :' + name, *pairs[place:]]) + b"}\r\n"
        )

    changed = with_model(body(written(old)), old, new)
    assert changed == body(json.dumps(new).encode()) or (changed is None and b"\\ud" in body(b""))


@given(st.binary(max_size=200), names, names)
@example(b'{"model":"a"', "a", "b")
@example(b'{"model":"a","model":"c"}', "a", "b")
@example(b'{"x":{"model":"a"}}', "a", "b")
@example(b'{"x":"\\"model\\":\\"a\\""}', "a", "b")
@example(b'{"model":"c","x":{"model":"a"}}', "a", "b")
@settings(deadline=None)
def test_a_model_that_is_not_the_documents_own_is_not_replaced(body, old, new):
    assert with_model(body, old, new) is None


def test_a_name_written_with_escapes_is_replaced_and_a_key_written_so_is_left():
    assert with_model(b'{"model":"\\u0061"}', "a", "b") == b'{"model":"b"}'
    assert with_model(b'\xef\xbb\xbf{"model":"a"}', "a", "b") == b'\xef\xbb\xbf{"model":"b"}'
    assert with_model(b'{"mod\\u0065l":"a"}', "a", "b") is None
    assert with_model(b'{"model":"a","mod\\u0065l":"c"}', "a", "b") is None
    assert with_model(b'{"model":"a","mod\\u0065l":"c"}', "c", "b") is None
    assert with_model(b'{"model":"a","model":"a"}', "a", "b") == b'{"model":"a","model":"b"}'
    nested = compact({"stream": True, "model": "a", "x": [{"model": "a"}] * 5000})
    assert with_model(nested, "a", "b") == nested.replace(b'"a"', b'"b"', 1), "however many follow"


ASK = b'{"messages":[{"role":"system"},{"role":"user","content":'
HOSTILE = {
    "deep list": b'{"x":' + b"[" * 1_000_000,
    "deep objects": b'{"a":' * 200_000,
    "deep messages": b'{"messages":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
    "unfinished messages": b'{"messages":[' + b'{"role":"user"' * 70_000,
    "deep parts": ASK + b"[" * 1_000_000,
    "many parts": ASK + b"[" + b'{"text":""},' * 80_000 + b"{}]}]}",
    "escaped quotes": ASK + b'"' + b'\\"' * 500_000,
    # Each of its quotes was tried as the beginning of a string, up to the end of the window: 20 s
    # for 100 KB.
    "escaped quotes in a part": ASK
    + b'[{"type":"text","x":"'
    + b'\\"' * 450_000
    + b'"}]}],"model":"a"}',
    "odd escaped quotes in a part": ASK
    + b'[{"type":"text","x":"a'
    + b'\\"' * 450_000
    + b'"}]}],"model":"a"}',
    "backslashes": ASK + b'"' + b"\\" * 1_000_000 + b'"}],"model":"a"}',
    "nested models": b'{"x":[' + b'{"model":"a"},' * 70_000 + b'{}],"model":"a"}',
    "open models": ASK + b'"x"}],' + b'"model":"a",' * 80_000,
    "users": b'{"model":"a","messages":[' + b'{"name":"user"},' * 60_000 + b"{}]}",
    "roles": b'{"messages":[{"role":"system"},' + b'{"role":"user",' * 60_000,
    "spaces": b'{"model"' + b" " * 1_000_000 + b':"a"}',
    "head": b'{"model":"a",' + b'"a":"b",' * 120_000 + b'"messages":[]}',
    "quotes": b'{"model":"' + b'"' * 1_000_000,
    "forms": b'name="model"\r\n' * 70_000,
    "form lines": b'name="model"\r\n' + b"a\r\n" * 300_000,
}


@given(
    st.dictionaries(keys, values, max_size=6), st.sampled_from([compact, spaced]), st.booleans()
)
@example({"model": "a", "x": {"model": "b"}, "y": 'model": "c'}, compact, True)
@example({"x": "y" * 50, "model": "a", "z": ["}", '"', "\\"]}, compact, False)
@settings(deadline=None, max_examples=50)
def test_the_model_at_an_end_of_a_long_body_is_the_one_that_a_json_parser_finds(
    document, written, first
):
    pad = {"pad": ["x" * LONG_BYTES]}
    body = written(document | pad if first else pad | document)
    if b"\\ud" not in body:
        model = document.get("model")
        assert inspect_body(body).model == (model if isinstance(model, str) else None)


def long_parts(first):
    """A conversation with a picture, longer than what is decoded."""
    picture = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + "A" * LONG_BYTES},
    }
    return [{"role": "user", "content": [{"type": "text", "text": first}, picture]}]


@pytest.mark.parametrize(
    "order", [("model", "messages"), ("messages", "model"), ("pad", "model", "tools", "messages")]
)
def test_a_long_body_is_known_by_its_model_and_its_conversation_wherever_these_stand(order):
    def body(first, later_parts=()):
        fields = {
            "model": "a",
            "messages": [*long_parts(first), *later_parts],
            "tools": TOOLS * 3,
            "pad": [{"x": 1}],
        }
        return compact({name: fields[name] for name in order})

    summary = inspect_body(body("hello"))
    later = inspect_body(body("hello", [{"role": "assistant", "content": "yes"}]))
    assert len(body("hello")) > LONG_BYTES
    assert summary.model == later.model == "a"
    assert summary.conversation == later.conversation
    if order[-1] != "messages" or order[0] == "model":
        assert summary.conversation not in (None, inspect_body(body("good bye")).conversation)
    assert with_model(body("hello"), "a", "b", summary.name_at) == body("hello").replace(
        b'"model":"a"', b'"model":"b"'
    )


def test_a_conversation_keeps_its_digest_when_it_grows_long():
    turns_so_far = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
    short, long = (
        compact({"model": "a", "messages": [*turns_so_far, *later_parts]})
        for later_parts in ((), long_parts("look"))
    )
    assert inspect_body(short).conversation == inspect_body(long).conversation


def test_a_long_body_that_is_no_object_is_refused_and_one_without_a_model_names_none():
    with pytest.raises(NotAnObject):
        inspect_body(b"[" + b" " * LONG_BYTES + b"]")
    assert inspect_body(b'{"x":{"model":"a"},"y":"' + b" " * LONG_BYTES + b'"}').model is None
    assert inspect_body(b'{"x":"' + b" " * LONG_BYTES).model is None
    with pytest.raises(NotAnObject):
        inspect_body(
            b'{"model":"' + b"a" * (LONGEST_NAME + 1) + b'","x":"' + b"a" * LONG_BYTES + b'"}'
        )


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_a_megabyte_made_to_be_slow_takes_no_longer_than_any_other(body):
    """One client must not hold up the others: the gateway has one thread.

    An honest megabyte takes 1 ms to decode.
    """
    assert len(body) > 900_000
    began = time.process_time()
    for reads in (
        inspect_body,
        model_of_form,
        wants_stream,
        lambda text: with_model(text, "a", "b"),
    ):
        try:
            reads(body)
        except NotAnObject:
            continue
    assert time.process_time() - began < 0.25
