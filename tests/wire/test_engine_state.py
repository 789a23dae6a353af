"""What engines say of themselves at `/metrics` and `/slots`: bounded, and long answers read in a
thread.
"""

import threading

import pytest

from recorded_server import recorded
from skep.wire.client import Pool, WireFailure
from skep.wire.engine_state import LARGEST_STATE_BYTES, LONG_STATE_BYTES, fetch_state
from skep.wire.heads import parse_url
from skep.wire.prometheus import MOST_LINES, MOST_NAMES, count_busy, label_samples, parse_metrics


async def state_of(page, parse):
    with recorded(page=lambda _path: page) as server:
        pool = Pool(parse_url(server.url)[0])
        try:
            return await fetch_state(pool, "/metrics", parse, headers={}, timeout_s=10.0)
        finally:
            await pool.close()


@pytest.mark.parametrize(
    ("size", "in_loop"), [(LONG_STATE_BYTES, True), (LONG_STATE_BYTES + 1, False)]
)
async def test_a_long_answer_is_read_in_a_thread_a_short_one_at_once(size, in_loop):
    """The loop that asked carries streams of other servers meanwhile."""
    thread = await state_of(b"x" * size, lambda _text: threading.current_thread())
    assert (thread is threading.main_thread()) is in_loop


async def test_an_answer_above_the_bound_is_one_clear_failure():
    with pytest.raises(WireFailure, match="an answer of more than 4,194,304 bytes") as caught:
        await state_of(b"x" * (LARGEST_STATE_BYTES + 1), parse_metrics)
    assert caught.value.kind == "protocol"


async def test_an_error_page_is_nobodys_state():
    assert await state_of((404, b"vllm:num_requests_running 3\n"), parse_metrics) is None


def test_labels_hold_any_character_but_a_line_end():
    text = 'a{x="}{ \\" \\\\",y="1"} 1\na{x="2"} 2 1700000000\nb{x="\n3"} 4\n'
    assert parse_metrics(text) == {"a": 3}


def test_names_and_lines_of_one_text_have_a_bound():
    """The text may be 4 MiB of names; what is kept of it may not."""
    many = "".join(f"a{n} 1\n" for n in range(MOST_NAMES + 10))
    assert len(parse_metrics(many)) == MOST_NAMES
    assert parse_metrics("\n" * MOST_LINES + "a 1\n") == {}
    assert label_samples("\n" * MOST_LINES + "a 1\n", "r") == ""


@pytest.mark.parametrize(
    ("text", "busy"),
    [
        ('[{"id": 0, "is_processing": true, "prompt": "{}"}, {"is_processing": false}, {}]', 1),
        ('{"error": "no"}', None),
        ("[" * 100_000, None),
        ("[" + "{}," * 200_000 + "{}]", None),
        ('[{"is_processing": 1e999}]', None),
    ],
)
def test_busy_slots_are_counted_where_the_answer_is_a_list_of_slots(text, busy):
    assert count_busy(text) == busy
