"""Traces of Mooncake and AIPerf as sessions: who goes on with whom, what is new, what is refused."""

import json

import pytest

from skep.bench import trace_files
from skep.bench.trace_files import held_in, read_trace, repeated, trace_sessions
from skep.catalog.session_shapes import ScriptedTurn, SessionScript, prompt_totals
from skep.errors import UserError


@pytest.fixture
def trace(tmp_path):
    """Write lines as a trace and read it."""

    def read(*lines, end="\n"):
        path = tmp_path / "trace.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)) + end)
        return read_trace(path)

    return read


@pytest.fixture
def fault(tmp_path):
    """Return the line that says what is wrong with a file of these bytes."""

    def read(data):
        path = tmp_path / "trace.jsonl"
        path.write_bytes(data)
        with pytest.raises(UserError) as refused:
            read_trace(path)
        assert "\n" not in refused.value.message
        return refused.value

    return read


def request(at_s, blocks, *, tokens=None, output=100):
    """Return a request of Mooncake's whose prompt has these blocks."""
    return {
        "timestamp": 1000 * at_s,
        "input_length": tokens or 512 * len(blocks),
        "output_length": output,
        "hash_ids": blocks,
    }


def turns_of(script):
    return [turn.new_tokens for turn in script.turns]


def test_a_request_that_holds_an_earlier_prompt_is_the_next_turn_of_its_session(trace):
    (session,) = trace(request(0, [1, 2, 3]), request(9, [1, 2, 3, 4, 5]))
    assert turns_of(session) == [3 * 512, 2 * 512 - 100]
    assert session.prompts() == [3 * 512, 5 * 512]


def test_the_time_between_two_requests_of_a_session_is_its_pause(trace):
    (session,) = trace(request(3, [1, 2, 3]), request(9, [1, 2, 3, 4]))
    assert [turn.pause_s for turn in session.turns] == [0, 6]


def test_a_last_block_that_was_not_full_may_change_when_the_prompt_grows(trace):
    (session,) = trace(
        request(0, [1, 2, 3], tokens=1_100),
        request(9, [1, 2, 7, 8], tokens=2_000),
    )
    assert len(session.turns) == 2


def test_requests_that_only_begin_alike_are_sessions_with_a_shared_beginning(trace):
    first, second = trace(request(0, [1, 2, 3]), request(1, [1, 8, 9]))
    assert first.shared_name == second.shared_name
    assert first.shared_tokens == second.shared_tokens == 512
    assert turns_of(second) == [2 * 512]


def test_requests_with_nothing_in_common_share_nothing(trace):
    first, second = trace(request(0, [1, 2, 3]), request(1, [7, 8, 9]))
    assert first.shared_name != second.shared_name
    assert first.shared_tokens == 0


def test_the_same_prompt_again_is_a_session_of_its_own(trace):
    first, again = trace(request(0, [1, 2, 3]), request(5, [1, 2, 3]))
    assert len(first.turns) == len(again.turns) == 1
    assert again.shared_tokens > 1_000


def test_the_possible_hits_of_a_trace_are_those_of_its_blocks(trace):
    totals = prompt_totals(trace(request(0, [1, 2, 3]), request(9, [1, 2, 3, 4, 5])))
    assert totals.possible_tokens == 3 * 512 + 100


def test_turns_that_name_their_session_bring_what_is_new(trace):
    """AIPerf's form: delays in milliseconds, lengths of what is added."""
    first, second = trace(
        {"session_id": "a", "input_length": 900, "output_length": 50},
        {"session_id": "b", "input_length": 70, "output_length": 5},
        {"session_id": "a", "delay": 2500, "input_length": 300, "output_length": 60},
    )
    assert turns_of(first) == [900, 300]
    assert first.turns[1].pause_s == 2.5
    assert turns_of(second) == [70]


def test_a_text_counts_as_the_tokens_that_it_would_have(trace):
    (session,) = trace({"session_id": "a", "text_input": "word " * 340, "output_length": 5})
    assert 300 <= session.turns[0].new_tokens <= 400


def test_messages_that_repeat_the_history_bring_their_last_ones(trace):
    task = {"role": "user", "content": "word " * 100}
    answer = {"role": "assistant", "content": "word " * 900}
    result = {"role": "user", "content": "word " * 50}
    (session,) = trace(
        {"session_id": "a", "messages": [task], "output_length": 9},
        {"session_id": "a", "messages": [task, answer, result], "output_length": 9},
    )
    first, second = turns_of(session)
    assert second == pytest.approx(first / 2, rel=0.05)


def test_messages_that_are_marked_as_new_are_all_new(trace):
    message = {"role": "user", "content": "word " * 100}
    line = {"session_id": "a", "message_mode": "delta", "messages": [message]}
    (session,) = trace(line, line)
    first, second = turns_of(session)
    assert first == second


def test_a_line_may_be_a_whole_session(trace):
    turns = [
        {"text": "word " * 60, "output_length": 7},
        {"text": "word " * 30, "delay": 500},
    ]
    (session,) = trace({"session_id": "a", "turns": turns})
    first, second = session.turns
    assert first.output_tokens == 7
    assert second.output_tokens == trace_files.USUAL_OUTPUT_TOKENS
    assert second.pause_s == 0.5


def test_a_leading_turn_of_the_system_is_a_shared_beginning(trace):
    system = {"role": "system", "text": "rule " * 200}
    lines = [{"turns": [system, {"text": f"task {name}"}]} for name in "ab"]
    first, second = trace(*lines)
    assert first.shared_name == second.shared_name
    assert first.shared_tokens > 150
    assert len(first.turns) == 1


def test_an_empty_trace_is_refused(fault):
    assert fault(b"").message == "trace `trace.jsonl` is empty"
    assert fault(b"\n\n").message == "trace `trace.jsonl` is empty"


def test_a_trace_whose_last_line_is_cut_is_refused(fault):
    whole = json.dumps(request(0, [1, 2])).encode()
    refusal = fault(whole + b"\n" + whole[:-9])
    assert refusal.message == "line 2 of `trace.jsonl` is cut"
    assert "fetch it again" in refusal.hint


def test_a_file_of_another_format_is_refused(fault):
    assert fault(b"TIMESTAMP,ContextTokens\n1,2\n").message.startswith(
        "line 1 of `trace.jsonl` is not JSON"
    )
    assert fault(b'{"prompt": "hello"}\n').message == (
        "line 1 of `trace.jsonl` is no request of a trace"
    )
    assert "Mooncake's" in fault(b"[1, 2]\n").hint


def test_a_length_that_cannot_be_is_refused(fault):
    line = json.dumps(request(0, [1, 2], output=-5)).encode()
    assert "output_length" in fault(line + b"\n").message


def test_bytes_that_are_no_text_are_refused(fault):
    assert "is not JSON" in fault(b"\x1f\x8b\x08\x00\xff\xfe\n").message


def test_a_line_that_is_nested_too_deeply_is_refused(fault):
    """It ended in a traceback."""
    content = b"[" * 200_000 + b"]" * 200_000
    line = b'{"session_id": "a", "messages": [{"role": "user", "content": %b}]}\n' % content
    assert "is nested too deeply" in fault(line).message


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_trace(tmp_path / "none.jsonl")


def test_a_trace_with_too_many_turns_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_files, "MOST_TURNS", 3)
    path = tmp_path / "trace.jsonl"
    path.write_text('{"session_id": "a", "input_length": 9}\n' * 4)
    with pytest.raises(UserError, match="too large: more than 3 turns"):
        read_trace(path)


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_files, "LONGEST_LINE_BYTES", 1 << 20)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b'{"text_input": "' + b"x" * (2 << 20))
    with pytest.raises(UserError, match="is longer than 1 MiB"):
        read_trace(path)


def session(*lengths):
    return SessionScript("t", 0, tuple(ScriptedTurn(length, 10) for length in lengths))


def test_a_session_is_cut_where_it_would_leave_the_window():
    assert len(held_in(session(300, 300, 900), 1_000).turns) == 2


def test_sessions_that_a_window_does_not_hold_are_left_out():
    assert trace_sessions([session(300), session(3_000)], "t", 1_000) == [session(300)]


def test_a_window_that_holds_no_session_is_refused():
    with pytest.raises(UserError, match="the shortest begins with 3,000 tokens"):
        trace_sessions([session(3_000), session(4_000)], "t", 1_000)


def test_a_trace_begins_again_where_it_has_too_few_sessions():
    sessions = [session(300), session(400)]
    assert repeated(sessions, 3) == [*sessions, session(300)]
