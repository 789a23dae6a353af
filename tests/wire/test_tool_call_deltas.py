"""Tool calls put together from the parts of a stream, whatever a server sends."""

import json

from skep.wire.tool_calls import LONGEST_ARGUMENTS, MOST_CALLS, ToolCallReader


def reader():
    return ToolCallReader(None)  # nobody waits for its end


def part(index, *, name=None, arguments=None, call_id=None):
    call = {"index": index, "function": {"name": name, "arguments": arguments}}
    if call_id is not None:
        call["id"] = call_id
    return call


def test_parts_of_a_call_become_one_by_their_index():
    reading = reader()
    first = part(0, name="a", arguments="", call_id="id1")
    text = json.dumps([first])
    reading.take_calls(text.encode())
    reading.take_calls([part(1, name="b", arguments="{}")])
    reading.take_calls([part(0, arguments='{"x":')])
    reading.take_calls([part(0, arguments=" 1}")])
    call, other = reading.calls
    assert call.id == "id1"
    assert call.name == "a"
    assert call.arguments == '{"x": 1}'
    assert other.name == "b"


def test_arguments_that_come_parsed_are_text_again():
    reading = reader()
    reading.take_calls([part(0, name="a", arguments={"x": 1})])
    assert reading.calls[0].arguments == '{"x": 1}'


def test_huge_arguments_are_cut_and_say_so():
    reading = reader()
    for _ in range(50):
        reading.take_calls([part(0, name="a", arguments="x" * 10_000)])
    (call,) = reading.calls
    assert len(call.arguments) == LONGEST_ARGUMENTS
    assert call.is_cut


def test_thousands_of_calls_are_counted_and_not_kept():
    reading = reader()
    for number in range(5_000):
        reading.take_calls([part(number, name="a", arguments="{}")])
    assert len(reading.calls) == MOST_CALLS
    assert reading.calls_left_out == 5_000 - MOST_CALLS


def test_what_is_no_list_of_calls_is_ignored():
    reading = reader()
    reading.take_calls(b"null")
    reading.take_calls(b"{}")
    reading.take_calls(b"[1, null]")
    reading.take_calls(b"[" * 100_000)
    assert reading.calls == ()


def test_a_call_without_a_function_has_no_name():
    reading = reader()
    reading.take_calls(b'[{"function": 3}]')
    assert reading.calls[0].name == ""
