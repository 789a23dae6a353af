"""What somebody is told, in which form, and what nobody is."""

from datetime import UTC

import pytest

from skep.config.monitor import check_webhook
from skep.errors import UserError
from skep.monitor.notify import MAX_TEXT, Secrets, argv_of, body_of, log_line, make_notice, variables_of
from skep.monitor.quiet_hours import Notification
from skep.monitor.records import Alert, AlertRule

DOWN = Alert(AlertRule.DOWN, "box", 3600.0, "box is down: <refused> & gone", 2.0, 2.0, id=1)
OVER = Alert(AlertRule.DOWN, "box", 3600.0, "box is down", 2.0, 2.0, 5400.0, "it answers again", id=1)
NTFY = check_webhook("https://ntfy.sh/my-topic", "ntfy", name="x")
PLAIN = check_webhook("https://example.org/hook?x=1", "json", name="x")


def notice(what="opened", *alerts):
    return make_notice(Notification(what, alerts or (DOWN,)), 7200.0, "attic", UTC)


def test_json_has_the_alert_and_the_event():
    body = body_of(notice(), "json", PLAIN)
    assert (body["event"], body["rule"], body["target"], body["host"]) == ("opened", "down", "box", "attic")
    assert body["message"] == DOWN.message
    assert body["alerts"][0]["opened_at"] == 3600.0


def test_ntfy_gets_its_topic_a_title_and_a_priority_at_the_root():
    """A JSON message goes to the server's root, as its documentation wants it."""
    body = body_of(notice(), "ntfy", NTFY)
    assert NTFY.path == "/"
    assert body == {
        "topic": "my-topic",
        "title": "box: down (attic)",
        "message": DOWN.message,
        "priority": 4,
        "tags": ["warning"],
    }
    over = body_of(notice("closed", OVER), "ntfy", NTFY)
    assert (over["priority"], over["tags"]) == (3, ["white_check_mark"])


def test_slack_gets_text_whose_markup_is_taken_away():
    assert body_of(notice(), "slack", PLAIN) == {"text": ":warning: box is down: &lt;refused&gt; &amp; gone (attic)"}


def test_the_end_says_how_long_it_was_and_why_it_is_over():
    assert notice("closed", OVER).text == "box: no longer down after 30 min 00 s: it answers again"


def test_what_came_and_went_is_one_line():
    slow = Alert(AlertRule.SLOWER, "cloud", 4000.0, "m", closed_at=5000.0, closed_because="x")
    disk = Alert(AlertRule.DISK, None, 4000.0, "m", closed_at=5000.0, closed_because="x")
    told = notice("passed", OVER, slow, disk)
    assert told.text == (
        "came and went in quiet hours: box down 01:00 to 01:30; cloud slower than usual 01:06 to 01:23; "
        "the machine short of disk 01:06 to 01:23"
    )
    assert told.title == "3 alerts came and went on attic"
    assert body_of(told, "json", PLAIN)["event"] == "passed"
    assert variables_of(told)["SKEP_ALERT_RULE"] == ""


def test_a_command_gets_words_and_variables():
    variables = variables_of(notice())
    assert variables["SKEP_ALERT_EVENT"] == "opened"
    assert variables["SKEP_ALERT_VALUE"] == "2"
    assert variables["SKEP_ALERT_CLOSED_AT"] == ""
    argv = argv_of(["notify-send", "{title}", "{message}", "{other} {}", "$(id)"], variables)
    assert argv == ["notify-send", "box: down", DOWN.message, "{other} {}", "$(id)"]


def test_what_a_message_brings_in_is_not_filled_in_again():
    evil = Alert(AlertRule.DOWN, "box", 1.0, "{host} {message}")
    assert argv_of(["{message}"], variables_of(notice("opened", evil))) == ["{host} {message}"]


def test_secrets_are_taken_out_and_a_line_stays_a_line():
    secrets = Secrets(["sk-12345", None, "", "abc"])
    text = "401 for sk-12345\n\x1b[31m at http://me:word@box/v1\x00 abc " + "x" * 2000
    clean = secrets.scrub(text)
    assert clean.startswith("401 for *** [31m at http://***@box/v1 abc xxx")
    assert len(clean) == MAX_TEXT
    assert "sk-12345" not in repr(secrets)
    closed = Alert(AlertRule.DOWN, "box", 1.0, "sk-12345", closed_at=2.0, closed_because="sk-12345!")
    assert secrets.scrubbed(closed).message == "***"
    assert secrets.scrubbed(closed).closed_because == "***!"


def test_the_log_has_one_line_for_each():
    line = log_line(notice("opened", Alert(AlertRule.DISK, None, 1.0, 'a "b"')))
    assert line == "alert.opened rule=disk target=- message=\"a 'b'\""


@pytest.mark.parametrize("url", ["ftp://x/y", "http://", "https://u:p@x/y", "https://x/a b", "https://x/ä"])
def test_an_address_that_cannot_be_called_is_refused_without_showing_it(url):
    with pytest.raises(UserError) as caught:
        check_webhook(url, "json", name="`monitor.webhook`")
    assert url not in caught.value.message
    assert caught.value.hint


def test_only_the_server_of_an_address_is_shown():
    hook = check_webhook("https://hooks.slack.com/services/T0/B0/secret", "slack", name="x")
    assert str(hook) == "https://hooks.slack.com:443"
    assert hook.path == "/services/T0/B0/secret"
    assert check_webhook("https://x/", "json", name="x").path == "/"
    assert check_webhook("http://x:1/a?b=c", "json", name="x").path == "/a?b=c"
    with pytest.raises(UserError, match="topic"):
        check_webhook("https://ntfy.sh", "ntfy", name="x")
