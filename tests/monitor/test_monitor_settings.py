"""`[monitor]` of skep.toml: what it says, what it refuses, and that its page has every key."""

from pathlib import Path

import msgspec
import pytest

from skep.config.load import file_keys, parse_settings
from skep.config.settings import COMMAND_WORDS, Monitor, Settings
from skep.errors import UserError
from skep.monitor.notify import Notice, argv_of
from skep.monitor.records import Alert, AlertRule
from skep.units import GIB

DOCS = Path(__file__).parents[2] / "docs"

EVERYTHING = {
    "with_up": False,
    "slower": "7.5 %",
    "ttft": "800ms",
    "down_after": 3,
    "disk_free": "5GiB",
    "quiet_hours": "22:00-07:00",
    "quiet_except": ["down", "disk"],
    "command": ["notify-send", "{message}"],
    "webhook_env": "HOOK",
    "webhook_shape": "ntfy",
    "webhook_token_env": "TOKEN",
}


def monitor(**table):
    return parse_settings({"monitor": table}, "skep.toml", {}).monitor


def test_every_key_is_understood_is_in_the_page_and_has_the_default_of_its_value():
    expected = {
        "slower_pct": 7.5,
        "ttft_ms": 800.0,
        "disk_free_bytes": 5 * GIB,
        "quiet_except": ("down", "disk"),
    }
    expected |= {"command": ("notify-send", "{message}")}
    same = {
        name: value
        for name, value in EVERYTHING.items()
        if name not in ("slower", "ttft", "disk_free")
    }
    assert monitor(**EVERYTHING) == Monitor(**{**same, **expected})
    settings = parse_settings({"monitor": EVERYTHING}, "test", {})
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings
    assert monitor() == Monitor()
    assert monitor(slower="off", disk_free="0") == Monitor(slower_pct=None, disk_free_bytes=0)
    page = (DOCS / "watch.md").read_text()
    assert [key for key in file_keys(Monitor) if f"`{key}`" not in page] == []


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"command": ["say", "{mesage}"]}, "`{mesage}` is unknown"),
        ({"slower": "much"}, "`monitor.slower` = `much`"),
        ({"slower": "0%"}, "`monitor.slower`"),
        ({"slower": "100%"}, "`monitor.slower`"),
        ({"ttft": "0s"}, "`monitor.ttft`"),
        ({"ttft": "soon"}, "`monitor.ttft`"),
        ({"down_after": 0}, "`monitor.down_after`"),
        ({"disk_free": "lots"}, "`monitor.disk_free`"),
        ({"quiet_hours": "at night"}, "quiet hours `at night`"),
        ({"quiet_except": ["sleep"]}, "`monitor.quiet_except.0`"),
        ({"command": "notify-send"}, "`monitor.command`"),
        ({"command": [""]}, "`monitor.command`"),
        ({"command": ["a\0b"]}, "NUL"),
        ({"webhook": "x:y"}, "`monitor.webhook`"),
        ({"webhook": "https://x/y", "webhook_env": "X"}, "cannot be combined"),
        ({"webhook": "https://ntfy.sh", "webhook_shape": "ntfy"}, "topic"),
        ({"webhook_env": "NO NAME"}, "'NO NAME'"),
        ({"webhook_shape": "teams"}, "`monitor.webhook_shape`"),
        ({"interval": "1h"}, "`monitor.interval` is an unknown key"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(table, message):
    with pytest.raises(UserError) as caught:
        monitor(**table)
    assert "skep.toml: " in caught.value.message
    assert message in caught.value.message
    assert caught.value.hint
    assert "unknown key" not in message or "slower" in caught.value.hint


def test_the_words_of_a_command_are_those_it_is_given():
    notice = Notice("opened", Alert(AlertRule.DISK, None, 1.0, "full"), 1.0, "box")
    assert "{" not in "".join(argv_of([f"{{{name}}}" for name in COMMAND_WORDS], notice))
    assert monitor(command=["say", '{"text": 1}']).command == ("say", '{"text": 1}')
