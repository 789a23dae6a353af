"""What `skep up` says of a configuration file that a person has got wrong in several places."""

import tomllib
from importlib.resources import files

import pytest
from in_process import call, refused

from skep.config.load import file_keys
from skep.config.settings import GatewaySettings, Monitor, Serve

WRONG = """\
drian = "10s"
[gateway]
prot = 9000
idle_timeout = "0s"
files_quota = "4GiB"
tls_key = "key.pem"
cors_origins = ["localhost", "http://localhost:3000", "*/"]
[[serve]]
model = "m"
engine = "fake"
slots = 0
max_replicas = 4
pinned = true
on_demand = true
[serve.env]
"A B" = "1"
THREADS = 4
[[upstream]]
url = "http://x:1"
slot = 4
[[upstream]]
url = "http://x:1/v2"
slots = 4
[monitor]
quiet_hours = "at night"
command = ["notify-send", "{mesage}"]
"""
TOLD = [
    "`drian` is an unknown key; did you mean `drain`?",
    "`gateway.prot` is an unknown key; did you mean `port`?",
    "`gateway.files_quota` was removed; leave it out",
    "`gateway.idle_timeout` = `0s` is too short",
    "`gateway.tls_key` is set without `gateway.tls_certificate`",
    "`gateway.cors_origins`: `localhost` is not the origin",
    "`gateway.cors_origins`: `*/` is not the origin",
    "`serve.0.max_replicas` was removed; `skep replica scale MODEL=N`",
    "`serve.0.slots` = 0: must be at least 1",
    "`serve.0.env.THREADS` = 4: must be text in quotes",
    "`env`: 'A B' is not the name of a variable",
    "`pinned` and `on_demand` of `m` contradict each other",
    "`upstream.0.slot` is an unknown key; did you mean `slots`?",
    "upstream `http://x:1/v2` has the path `/v2`",
    "quiet hours `at night` are not understood",
    "`monitor.command`: `{mesage}` is unknown",
]


@pytest.fixture
def up(tmp_path, paths):
    def words(text):
        path = tmp_path / "skep.toml"
        path.write_text(text)
        return "up", "--dry-run", "--config", path

    return words


def test_every_wrong_key_and_value_is_told_at_once_each_in_a_line_of_its_own(up):
    error = call(*up(WRONG), check=2).error
    head, *lines = error.message.splitlines()
    assert head.endswith("skep.toml: 16 keys or values are wrong:")
    assert len(lines) == len(TOLD)
    for line, message in zip(lines, TOLD, strict=True):
        assert line.startswith(f"  {message}")
    assert error.hint == "docs/configuration.md has an example of every key"


def test_a_file_with_hundreds_of_wrong_keys_is_told_in_twenty_lines(up):
    text = "".join(f"k{number} = 1\n" for number in range(300))
    lines = call(*up(text), check=2).error.message.splitlines()
    assert lines[0].endswith(" 300 keys or values are wrong:")
    assert len(lines) == 22
    assert lines[-1] == "  and 280 more"


@pytest.mark.parametrize("mistake", ["k{} = 1\n", "[[upstream]]\nurl{} = 1\n"])
def test_a_file_of_thousands_of_mistakes_is_not_read_to_its_end(up, mistake):
    """Each costs a search for the key that is meant: 40,000 of them took 17 seconds."""
    text = "".join(mistake.format(number) for number in range(3000))
    lines = call(*up(text), check=2).error.message.splitlines()
    assert lines[0].endswith(" at least 1,000 keys or values are wrong:")
    assert lines[-1] == "  and 980 more"


def test_a_key_of_signs_that_a_terminal_obeys_is_told_in_one_line(up):
    message, _, _ = refused(*up('"a\\u001b[31m\\nb" = 1\n')).partition(" | ")
    assert message.endswith("skep.toml: `a [31m b` is an unknown key")


REMOVED = tomllib.loads(
    files("skep.config").joinpath("removed_keys.toml").read_text(encoding="utf-8")
)
TABLES = {"gateway": GatewaySettings, "serve": Serve, "monitor": Monitor}


@pytest.mark.parametrize(
    ("table", "key"), [(table, key) for table, keys in REMOVED.items() for key in keys]
)
def test_a_key_that_was_removed_says_what_takes_its_place(up, table, key):
    assert key not in file_keys(TABLES[table])
    head = f"[[{table}]]" if table == "serve" else f"[{table}]"
    message, _, hint = refused(*up(f"{head}\n{key} = 1\n")).partition(" | ")
    place = f"{table}.0" if table == "serve" else table
    assert message.endswith(f"skep.toml: `{place}.{key}` was removed")
    assert hint == REMOVED[table][key]
