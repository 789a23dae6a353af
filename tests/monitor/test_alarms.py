"""When an alert begins and ends: once for an event, with its end, across restarts."""

from skep.monitor.evaluate import Alarms, AlertClosed, AlertOpened, RuleFinding
from skep.monitor.records import Alert, AlertRule


def found(wrong, rule=AlertRule.SLOWER, target="box", since=None):
    return RuleFinding(rule, target, wrong=wrong, message="m", value=1.0, limit=2.0, since=since)


def test_an_event_opens_one_alert_and_closes_it_once():
    alarms = Alarms()
    (opened,) = alarms.feed([found(True)], 10.0)
    assert opened == AlertOpened(Alert(AlertRule.SLOWER, "box", 10.0, "m", 1.0, 2.0))
    assert alarms.feed([found(True)], 20.0) == []
    (closed,) = alarms.feed([found(False)], 30.0)
    assert (closed.alert.opened_at, closed.alert.closed_at, closed.alert.closed_because) == (10.0, 30.0, "m")
    assert alarms.feed([found(False)], 40.0) == []
    assert repr(alarms) == "<Alarms 0 open>"


def test_between_wrong_and_right_nothing_opens_and_nothing_closes():
    alarms = Alarms()
    assert alarms.feed([found(None)], 1.0) == []
    alarms.feed([found(True)], 2.0)
    assert alarms.feed([found(None)], 3.0) == []
    assert len(alarms.open) == 1


def test_rules_and_targets_have_alerts_of_their_own():
    alarms = Alarms()
    findings = [
        found(True),
        found(True, AlertRule.TTFT),
        found(True, target="cloud"),
        found(True, AlertRule.DISK, None),
    ]
    assert len(alarms.feed(findings, 1.0)) == 4
    (closed,) = alarms.feed([found(False, target="cloud")], 2.0)
    assert isinstance(closed, AlertClosed)
    assert closed.alert.target == "cloud"


def test_a_restart_neither_forgets_nor_repeats():
    alarms = Alarms(
        [Alert(AlertRule.DOWN, "box", 5.0, "m", id=7), Alert(AlertRule.TTFT, "box", 1.0, "m", closed_at=2.0, id=3)]
    )
    assert alarms.feed([found(True, AlertRule.DOWN)], 10.0) == []
    (closed,) = alarms.feed([found(False, AlertRule.DOWN)], 11.0)
    assert closed.alert.id == 7
    (opened,) = alarms.feed([found(True, AlertRule.TTFT)], 12.0)
    assert isinstance(opened, AlertOpened)


def test_a_change_that_was_told_is_not_told_again_when_it_is_found_again():
    """Change points are derived anew after each probe; one may be lost and found again."""
    alarms = Alarms()
    alarms.feed([found(True, AlertRule.SHIFT, since=50.0)], 60.0)
    assert len(alarms.feed([found(False, AlertRule.SHIFT)], 70.0)) == 1
    assert alarms.feed([found(True, AlertRule.SHIFT, since=55.0)], 80.0) == []
    assert len(alarms.feed([found(True, AlertRule.SHIFT, since=75.0)], 90.0)) == 1


def test_a_later_change_is_an_event_of_its_own():
    alarms = Alarms()
    alarms.feed([found(True, AlertRule.SHIFT, since=50.0)], 60.0)
    ended, begun = alarms.feed([found(True, AlertRule.SHIFT, since=65.0)], 80.0)
    assert ended.alert.closed_because == "another one followed"
    assert begun.alert.opened_at == 80.0
    assert len(alarms.open) == 1


def test_what_is_no_longer_watched_has_no_open_alerts():
    alarms = Alarms()
    alarms.feed([found(True), found(True, target="cloud"), found(True, AlertRule.DISK, None)], 1.0)
    (closed,) = alarms.forget(["cloud"], 2.0)
    assert (closed.alert.target, closed.alert.closed_because) == ("box", "it is no longer watched")


def test_a_stored_alert_keeps_its_number_to_its_end():
    alarms = Alarms()
    (opened,) = alarms.feed([found(True)], 1.0)
    assert alarms.stored(opened.alert, 4).id == 4
    (closed,) = alarms.feed([found(False)], 2.0)
    assert closed.alert.id == 4
