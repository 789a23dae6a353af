"""The page and the picture of a swarm's run."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from msgspec.structs import replace
from reading import Outline

from sample_swarm import BEGAN, attempt, busy_story, made_story, result, run_of, session
from skep.report import swarm_gantt
from skep.report.swarm import swarm_page
from skep.report.swarm_gantt import gantt_element, working_time
from skep.swarm.records import AttemptOutcome, SwarmRunState
from skep.swarm.summary import SessionSpan


def story_of(run, attempts, results):
    return made_story(run, attempts, results, now=BEGAN + 5)


def one_attempt(**fields):
    return story_of(run_of(1, 1), [attempt(**fields)], [result()])


def test_a_path_of_the_machine_is_not_passed_on():
    assert "/home/somebody" not in swarm_page(busy_story())


def test_an_unfinished_run_says_what_is_left_and_why():
    run = run_of(3, 1, state=SwarmRunState.STOPPED, error="the endpoint went away")
    page = swarm_page(story_of(run, [attempt()], [result()]))
    assert "2 of 3 tasks have no result" in page
    assert "the endpoint went away" in page


def test_a_run_that_nobody_has_begun_has_a_page_without_a_picture():
    story = made_story(run_of(2, 0), [], [], sessions=[session(ended=BEGAN)], now=BEGAN)
    assert gantt_element(story) is None
    Outline(swarm_page(story))


@pytest.mark.parametrize("tasks", [1, 60, 500])
def test_the_picture_is_a_document_with_a_bar_for_every_attempt(tasks):
    story = busy_story(tasks, 64)
    root = ET.fromstring(gantt_element(story))
    titles = [element.text or "" for element in root.iter("title")]
    assert {title.partition(":")[0] for title in titles if "task-" in title} == {
        attempt.task for attempt in story.attempts
    }


def test_of_very_many_attempts_there_is_no_picture(monkeypatch):
    monkeypatch.setattr(swarm_gantt, "MOST_BARS", 250)
    assert "too many for a picture" in swarm_page(busy_story(500, 2))


def test_each_ending_has_a_shape_of_its_own_and_not_only_a_colour():
    drawn = [
        gantt_element(one_attempt(outcome=outcome)).partition(">")[2] for outcome in AttemptOutcome
    ]
    shapes = {re.sub(r"<(text|title)[^>]*>[^<]*</\1>|#[0-9a-f]{6}", "", svg) for svg in drawn}
    assert len(shapes) == len(AttemptOutcome)


LEGEND_WORDS = (
    "in the gateway's queue",
    "waiting for the first token",
    "streaming the answer",
    "answer rejected",
)
WIDEST_LETTER_PX = (
    8.0  # on average, of the fonts that browsers take for a system font of 13 pixels
)


def places_of_texts(node, x=0.0, y=0.0):
    """Each text of a picture with its place, the shifts of its groups added up."""
    shift = re.match(r"translate\(([-\d.]+),([-\d.]+)\)", node.get("transform", ""))
    if shift:
        x += float(shift[1])
        y += float(shift[2])
    if node.tag.endswith("text") and node.text:
        yield node.text, x, y
    for inner in node:
        yield from places_of_texts(inner, x, y)


def test_the_words_of_the_legend_have_room_in_wide_fonts():
    """The picture is laid out in one font and shown in another, in which words ran under the next
    square.
    """
    places = list(places_of_texts(ET.fromstring(gantt_element(busy_story(200, 12)))))
    legend = sorted(((y, x, text) for text, x, y in places if text in LEGEND_WORDS))
    assert len(legend) > 2
    for (y, x, text), (next_y, next_x, _) in pairwise(legend):
        assert next_y > y or next_x - x > WIDEST_LETTER_PX * len(text), text


def test_pauses_downtime_and_retries_are_in_the_picture():
    picture = gantt_element(busy_story(200, 12))
    for words in (
        "between session 1 (stopped) and 2, left out",
        "connection refused",
        "attempt 2, retry",
    ):
        assert words in picture


def test_sessions_lie_side_by_side_and_the_axis_counts_working_time():
    spans = [
        SessionSpan(1, 0.0, 30.0, "stopped"),
        SessionSpan(2, 30.0, 30.0, None),
        SessionSpan(3, 9000.0, 9030.0, "done"),
    ]
    time = working_time(spans)
    assert time.seconds == 60
    assert time.x(2, 30.0) is None
    assert time.x(1, 30.0) == time.x(3, 9000.0) == 30
    assert time.x(3, 9030.0) == 60


def test_a_run_of_no_length_is_drawn_without_a_division_by_nothing():
    still = replace(one_attempt(), spans=[SessionSpan(1, BEGAN, BEGAN, "done")])
    assert gantt_element(still) is None


def test_odd_clocks_do_no_harm():
    """A clock that was set back in the middle of a run: ends before beginnings."""
    odd = [
        attempt(started=5.0, ended=2.0, first_token_at=BEGAN - 50),
        attempt("b", 1, -10.0, 3.0, queued_ms=1e9),
    ]
    story = story_of(run_of(2, 2), odd, [result(), result("b", 5, 1)])
    ET.fromstring(gantt_element(story))
    Outline(swarm_page(story))
