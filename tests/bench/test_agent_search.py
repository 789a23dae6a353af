"""Which number of sessions is run next: all levels in turns, or doubling until past the cliff."""

from sample_sessions import level_rows, summary_of
from skep.bench.agent_search import SessionRounds, SessionSearch


def runs_of(course, summaries=None):
    """Run what is asked for until nothing is; `summaries`: by level, what had been measured."""
    done = []
    place = course.next_run()
    while place is not None:
        done.append(place)
        level, _ = place
        summary = summary_of()
        if summaries is not None:
            summary = summaries(level)
        course.add_run(level, summary, limited=False)
        place = course.next_run()
    return done


def with_cliff_at(cliff, highest):
    """Figures up to a level: beyond the cliff hits are lost; turns a minute grow throughout."""
    measured = []
    for level in doubled_up_to(highest):
        hit = 1.0
        if level > cliff:
            hit = 0.4
        rows = level_rows(
            level,
            sessions=2 * level,
            pause_s=1.0,
            hit=hit,
        )
        measured.append(rows)
    return summary_of(*measured)


def doubled_up_to(highest):
    """Yield 1, 2, 4 and so on."""
    level = 1
    while level <= highest:
        yield level
        level *= 2


def test_levels_are_run_in_turns():
    done = runs_of(SessionRounds((1, 4), 2))
    assert done == [
        (1, 0),
        (4, 0),
        (1, 1),
        (4, 1),
    ]


def test_a_search_doubles_until_two_levels_lie_past_the_cliff():
    search = SessionSearch(1, most_sessions=512)
    done = runs_of(search, lambda level: with_cliff_at(4, level))
    levels = [level for level, _ in done]
    assert levels == [1, 2, 4, 8, 16]
    assert search.end.reason == "past the cliff"
    assert search.end.at == 16
    assert search.end.beyond == 4


def test_a_search_ends_past_the_level_from_which_on_nothing_is_gained():
    """Sessions that are held back in front of the engine lose no hits: turns stay as they are."""

    def flat(highest):
        measured = (level_rows(level, sessions=4) for level in doubled_up_to(highest))
        return summary_of(*measured)

    search = SessionSearch(1, most_sessions=512)
    done = runs_of(search, flat)
    levels = [level for level, _ in done]
    assert levels == [1, 2, 4]
    assert search.end.beyond == 1


def test_a_search_ends_where_one_client_holds_no_more():
    search = SessionSearch(1, most_sessions=5)
    runs_of(search, lambda level: with_cliff_at(64, level))
    assert search.end.reason == "most"
    assert search.end.at == 4


def test_a_search_runs_all_levels_again_where_several_runs_are_asked_for():
    search = SessionSearch(2, most_sessions=512)
    done = runs_of(search, lambda level: with_cliff_at(1, level))
    assert done[:3] == [
        (1, 0),
        (2, 0),
        (4, 0),
    ]
    assert done[3:] == [
        (1, 1),
        (2, 1),
        (4, 1),
    ]


def test_a_search_ends_at_a_level_that_the_client_limited_twice():
    search = SessionSearch(1, most_sessions=512)
    search.add_run(1, summary_of(level_rows(1)), limited=False)
    for _ in range(2):
        level, _ = search.next_run()
        search.add_run(level, summary_of(level_rows(1)), limited=True)
    assert search.next_run() is None
    assert search.end.reason == "client"
    assert search.end.at == 2


def test_a_level_that_was_limited_once_gets_runs_of_other_numbers():
    search = SessionSearch(2, most_sessions=1)
    search.add_run(1, summary_of(level_rows(1)), limited=True)
    search.add_run(1, summary_of(level_rows(1)), limited=False)
    assert search.next_run() == (1, 2)
