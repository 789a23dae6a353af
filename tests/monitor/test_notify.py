"""Notices on their way: to a real HTTP receiver on loopback and to a real program."""

import asyncio
import json
import os
import signal
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skep.config.settings import Monitor, check_webhook
from skep.errors import UserError
from skep.monitor import notify
from skep.monitor.records import Alert, AlertRule

DOWN = Alert(AlertRule.DOWN, "box", 3600.0, "box is down: <refused> & gone", 2.0, 2.0, id=1)
NOTICE = notify.Notice("opened", DOWN, 7200.0, "attic")
OK = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Receiver:
    """Answers what it is told to, one after the other, the last for ever.

    None: it takes the request and hangs.
    """

    def __init__(self, *answers):
        self.answers = list(answers) or [OK]
        self.heads = []
        self.bodies = []
        self.asked = asyncio.Event()
        self.tasks = []

    async def serve(self, reader, writer):
        self.tasks.append(asyncio.current_task())
        try:
            await self.answer(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        self.heads.append(head)
        self.bodies.append(json.loads(await reader.readexactly(length)))
        self.asked.set()
        if len(self.answers) > 1:
            answer = self.answers.pop(0)
        else:
            answer = self.answers[0]
        if answer is None:
            await reader.read()
        else:
            writer.write(answer.encode())


@asynccontextmanager
async def receiving(*answers):
    receiver = Receiver(*answers)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield receiver
        await asyncio.gather(*receiver.tasks)


def status(code):
    return f"HTTP/1.1 {code} X\r\ncontent-length: 0\r\n\r\n"


def send(path, shape, *answers, token=None, limit_s=5.0):
    """What the receiver got, and what went wrong."""

    async def run():
        async with receiving(*answers) as receiver:
            hook = check_webhook(receiver.url + path, shape, name="x")
            error = await notify.Webhook(hook, shape, token, limit_s=limit_s).send(NOTICE)
        return receiver, error

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("shape", "path", "request_path", "body"),
    [
        (
            "json",
            "/hook?x=1",
            "/hook?x=1",
            {"event": "opened", "rule": "down", "target": "box", "host": "attic"},
        ),
        (
            "ntfy",
            "/my-topic",
            "/",
            {"topic": "my-topic", "title": "box: down (attic)", "priority": 4},
        ),
        (
            "slack",
            "/T0/B0/x",
            "/t0/b0/x",
            {"text": ":warning: box is down: &lt;refused&gt; &amp; gone (attic)"},
        ),
    ],
)
def test_a_receiver_gets_its_form_at_its_path_with_the_token(shape, path, request_path, body):
    """A JSON message goes to the root of an ntfy server, and in Slack no markup may call
    everybody.
    """
    receiver, error = send(path, shape, token="t0ken")
    assert error is None
    (head,) = receiver.heads
    assert head.startswith(f"post {request_path} http/1.1")
    assert "authorization: bearer t0ken" in head
    assert "content-type: application/json" in head
    assert body.items() <= receiver.bodies[0].items()
    assert shape == "slack" or receiver.bodies[0]["message"] == DOWN.message


def test_a_receiver_that_hangs_or_is_absent_is_given_up_without_a_word_of_its_path():
    receiver, error = send("/secret", "json", None, limit_s=0.05)
    assert error == f"{receiver.url}: no answer in time"
    receiver, error = send("/secret", "json", status(503))
    assert error == f"{receiver.url} answered 503"
    _, error = send("/secret", "json", "this is not http\r\n\r\n")
    assert "secret" not in error

    async def nobody():
        hook = check_webhook("http://127.0.0.1:1/secret", "json", name="x")
        return await notify.Webhook(hook, "json").send(NOTICE)

    assert asyncio.run(nobody()) == "http://127.0.0.1:1: it cannot be reached"


def command(*argv, limit_s=20.0, secrets=()):
    lines = []
    notifier = notify.Command(
        argv, {"PATH": os.environ["PATH"]}, notify.Secrets(secrets), lines.append, limit_s=limit_s
    )
    return asyncio.run(notifier.send(NOTICE)), lines


def test_a_command_gets_the_message_as_one_word():
    error, lines = command(
        "sh", "-c", 'printf "%s|" "$#" "$1" "$2"', "sh", "{message}", "{rule} {target} {event}"
    )
    assert error is None
    assert lines == ['alert.command said="2|box is down: <refused> & gone|down box opened|"']


def test_a_command_that_fails_or_does_not_exist_is_an_error():
    assert command("sh", "-c", "echo broken >&2; exit 3") == (
        "`sh` ended with code 3",
        ['alert.command said="broken"'],
    )
    error, _ = command("no-such-program-here")
    assert error == "`no-such-program-here` cannot be started: No such file or directory"


def test_the_output_of_a_command_is_logged_shortened_and_without_secrets():
    error, lines = command(
        "sh", "-c", "echo sk-12345; head -c 300000 /dev/zero | tr '\\0' x", secrets=["sk-12345"]
    )
    assert error is None
    assert lines[0].startswith('alert.command said="*** xxx')
    assert len(lines[0]) < 1100


def test_a_command_that_does_not_end_is_ended_with_all_it_started(tmp_path):
    pid = tmp_path / "pid"
    error, _ = command("sh", "-c", f"sleep 60 & echo $! > {pid}; wait", limit_s=0.3)
    assert error == "`sh` did not end within 0.3 s"
    deadline = time.monotonic() + 5
    while state_of(int(pid.read_text())) not in "ZX":
        assert time.monotonic() < deadline


def state_of(pid):
    """A dead one stays a zombie until its new parent has noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0]
    except FileNotFoundError:
        return "X"


def test_the_address_and_the_token_of_a_webhook_come_from_variables():
    monitor = Monitor(webhook_env="HOOK", webhook_token_env="TOKEN", webhook_shape="ntfy")
    assert (
        str(notify.webhook_of(monitor, {"HOOK": "https://ntfy.sh/t", "TOKEN": "x"}))
        == "https://ntfy.sh:443"
    )
    for env in ({}, {"HOOK": "https://ntfy.sh/t"}, {"HOOK": "secret", "TOKEN": "x"}):
        with pytest.raises(UserError) as caught:
            notify.webhook_of(monitor, env)
        assert "secret" not in caught.value.message
    assert notify.webhook_of(Monitor(), {}) is None


def test_a_webhook_that_cannot_be_used_is_named_in_the_log():
    lines = []
    monitor = Monitor(webhook_env="HOOK", command=("true",))
    assert [
        notifier.via
        for notifier in notify.notifiers_of(monitor, {}, notify.Secrets([]), lines.append)
    ] == ["command"]
    assert lines == ['alert.webhook unusable because="the variable `HOOK` is not set"']
    both = notify.notifiers_of(monitor, {"HOOK": "http://x:1/y"}, notify.Secrets([]), lines.append)
    assert [notifier.via for notifier in both] == ["command", "webhook"]


def test_a_cancelled_command_leaves_nothing_behind(tmp_path):
    pid = tmp_path / "pid"

    async def run():
        notifier = notify.Command(
            ("sh", "-c", f"echo $$ > {pid}; exec sleep 60"),
            os.environ,
            notify.Secrets([]),
            lambda _: None,
        )
        task = asyncio.ensure_future(notifier.send(NOTICE))
        while not pid.exists() or not pid.read_text():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), signal.SIGTERM)


OVER = Alert(
    AlertRule.DOWN, "box", 3600.0, "box is down", 2.0, 2.0, 5400.0, "it answers again", id=1
)
NTFY = check_webhook("https://ntfy.sh/my-topic", "ntfy", name="x")


def notice(event="opened", alert=DOWN):
    return notify.Notice(event, alert, 7200.0, "attic")


def test_a_notice_of_an_end_has_the_length_of_the_alert():
    body = notify.body_of(notice("closed", OVER), "ntfy", NTFY)
    assert body["tags"] == ["white_check_mark"]
    assert body["message"] == "box: no longer down after 30 min 00 s: it answers again"


def test_the_words_of_a_command_are_filled_in_once():
    argv = notify.argv_of(
        ["notify-send", "{title}", "{message}", "{other} {}", "$(id)", "{value} {closed_at}"],
        notice(),
    )
    assert argv == ["notify-send", "box: down", DOWN.message, "{other} {}", "$(id)", "2 "]
    # What it brings in is not filled in again.
    evil = Alert(AlertRule.DOWN, "box", 1.0, "{host} {message}")
    assert notify.argv_of(["{message}"], notice("opened", evil)) == ["{host} {message}"]


def test_the_log_has_one_line_for_each_notice():
    line = notify.log_line(notice("opened", Alert(AlertRule.DISK, None, 1.0, 'a "b"')))
    assert line == "alert.opened rule=disk target=- message=\"a 'b'\""


def test_an_address_shows_its_server_alone():
    hook = check_webhook("https://hooks.slack.com/services/T0/B0/secret", "slack", name="x")
    assert str(hook) == "https://hooks.slack.com:443"
    assert hook.path == "/services/T0/B0/secret"
    assert check_webhook("https://x/", "json", name="x").path == "/"
    assert check_webhook("http://x:1/a?b=c", "json", name="x").path == "/a?b=c"


def test_an_address_that_cannot_be_used_is_refused_without_being_shown():
    with pytest.raises(UserError, match="topic"):
        check_webhook("https://ntfy.sh", "ntfy", name="x")
    for url in ("ftp://x/y", "http://", "https://u:p@x/y", "https://x/a b", "https://x/ä"):
        with pytest.raises(UserError) as caught:
            check_webhook(url, "json", name="`monitor.webhook`")
        assert url not in caught.value.message
        assert caught.value.hint


def test_secrets_are_taken_out_of_lines():
    secrets = notify.Secrets(["sk-12345", None, "", "abc"])
    text = "401 for sk-12345\n\x1b[31m at http://me:word@box/v1\x00 abc " + "x" * 2000
    clean = secrets.scrub(text)
    assert clean.startswith("401 for *** [31m at http://***@box/v1 abc xxx")
    assert len(clean) == notify.MAX_TEXT
    assert "sk-12345" not in repr(secrets)
