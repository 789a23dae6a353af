"""Tokens of answers that still stream, by what answers that ended had in an event."""

from skep.stats.stream_tokens import TokensPerEvent


def test_an_event_is_taken_for_a_token_until_an_answer_has_ended():
    assert TokensPerEvent().value == 1.0
    assert not TokensPerEvent().is_known


def test_answers_that_ended_say_how_many_tokens_an_event_carries():
    ratio = TokensPerEvent()
    ratio.take(events=40, tokens=100)
    ratio.take(events=20, tokens=56)
    assert ratio.is_known
    assert ratio.value == 2.6


def test_an_answer_without_events_or_without_tokens_teaches_nothing():
    ratio = TokensPerEvent()
    ratio.take(events=0, tokens=100)
    ratio.take(events=5, tokens=0)
    assert not ratio.is_known
