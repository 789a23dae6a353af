"""`skep key` as a user runs it, and the file that it writes."""

import os
import stat
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from in_process import call, refused

from skep.config.keys import (
    KeyRing,
    KeySpec,
    add_entry,
    checked,
    digest_of,
    parse_rate,
    read_keys,
    remove_entry,
)
from skep.errors import UserError

D1 = digest_of("one")
D2 = digest_of("two")
CREATED = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ONE = f'[[key]]\nname = "ci"\nsha256 = "{D1}"\n'
NO_NAMES = ["", "a b", "a\n", "ü", "x" * 65, "a/b", 'a"', "a\x1b[31m"]
NO_RATES = ["", "60", "0/m", "-1/s", "60/min", "1.5/s", "60 / m", "٦/m", "99999999/s", "60/m\n"]
key = partial(call, "key", check=0)


@pytest.fixture
def path(paths):
    return Path(os.environ["XDG_CONFIG_HOME"]) / "skep" / "keys.toml"


@pytest.fixture
def written(path):
    def write(text, mode=0o600):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


def full(name="ci", sha256=D1):
    return checked(
        KeySpec(name, sha256, priority="batch", max_concurrent=4, rate="60/m", created=CREATED)
    )


def names(path):
    return [spec.name for spec in read_keys(path)]


def test_a_new_key_is_the_only_line_on_standard_output(path):
    done = key("add", "ci")
    (secret,) = done.out.splitlines()
    assert secret.startswith("sk-skep-")
    assert len(secret) == 40
    assert secret not in done.err


def test_adding_a_key_names_the_command_that_brings_it_into_use(path):
    assert "`skep replica reload`" in key("add", "ci").err


def test_the_file_of_keys_is_for_its_owner_alone(path):
    key("add", "ci")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_only_the_digest_of_a_key_is_kept_with_its_limits(path):
    done = key("add", "ci", "--class", "batch", "--max-concurrent", 4, "--rate", "60/m")
    (secret,) = done.out.splitlines()
    assert secret not in path.read_text()
    spec = KeyRing(read_keys(path)).find(secret.encode())
    assert (spec.name, spec.priority, spec.max_concurrent, spec.rate) == ("ci", "batch", 4, "60/m")


def test_adding_a_key_says_that_from_then_on_every_request_needs_one(path):
    """Somebody added a key for a laptop, and the next request without one was refused without a
    warning.
    """
    warning = key("add", "laptop").err
    assert "from then on every request needs a key" in warning
    assert "Authorization: Bearer KEY" in warning


def test_a_key_is_an_admins_only_with_the_mark(path):
    key("add", "owner", "--admin")
    key("add", "laptop")
    marks = {row["name"]: row["admin"] for row in key("list", "--json").json}
    assert marks == {"owner": True, "laptop": False}
    assert path.read_text().count("admin = true") == 1
    assert "admin = false" not in path.read_text()
    header, *rows = key("list").out.splitlines()
    assert "ADMIN" in header
    assert [row.split()[4] for row in rows] == ["yes", "no"]


def test_list_shows_names_and_limits(path):
    assert key("list", "--json").json == []
    empty = key("list")
    assert (empty.out, "skep key add" in empty.err) == ("", True)
    key("add", "ci", "--class", "batch")
    key("add", "alice")
    first, second = key("list", "--json").json
    assert first.pop("created").endswith("+00:00")
    digest = read_keys(path)[0].sha256
    limits = {"class": "batch", "max_concurrent": None, "rate": None}
    assert first == {"name": "ci", **limits, "admin": False, "sha256": digest}
    assert second["name"] == "alice"
    table = key("list").out.splitlines()
    assert table[1].split()[:4] == ["ci", "batch", "any", "any"]
    assert len(table) == 3


def test_a_file_that_others_may_write_is_refused(written):
    """Who may write it may let himself in."""
    for mode in (0o620, 0o602, 0o666):
        written(ONE, mode)
        message = refused("key", "list")
        assert "other users can write" in message
        assert "chmod 600" in message


def test_remove_takes_a_key_back(path):
    key("add", "a")
    key("add", "b")
    assert refused("key", "remove", "c").endswith("known: a, b")
    done = key("remove", "a")
    assert (done.out, "`skep replica reload`" in done.err) == ("", True)
    assert "the last one" in key("remove", "b").err
    assert read_keys(path) == ()
    assert "no key" in refused("key", "remove", "b")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        *((["add", name], "is not a valid key name") for name in NO_NAMES),
        (["add", "x", "--class", "urgent"], "the priority 'urgent' is unknown"),
        *(
            (["add", "x", f"--rate={rate}"], "is not a rate | write it as 2/s, 60/m")
            for rate in NO_RATES
        ),
        (["add", "x", "--max-concurrent", 0], "--max-concurrent `0` should be"),
        (["add", "taken"], "there is already a key named `taken`"),
        (["remove", "nobody"], "there is no key named 'nobody'"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(path, args, says):
    key("add", "taken")
    before = path.read_text()
    message = refused("key", *args)
    assert says in message
    assert message.isprintable()
    assert not message.endswith("None")
    assert path.read_text() == before


def test_keys_added_at_the_same_time_are_all_kept(path):
    """Without the lock, two read the same file and the later one forgets the other's key."""
    agents = [f"agent-{i}" for i in range(3)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    children = [
        subprocess.Popen([sys.executable, "-m", "skep", "key", "add", name], **pipes)
        for name in agents
    ]
    keys = [child.communicate(timeout=100)[0].strip() for child in children]
    ring = KeyRing(read_keys(path))
    assert [ring.find(secret).name for secret in keys] == agents


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_key_that_could_not_be_printed_is_not_kept(path):
    with open("/dev/full", "w") as full_disk:
        command = [sys.executable, "-m", "skep", "key", "add", "ci"]
        done = subprocess.run(
            command, stdout=full_disk, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert read_keys(path) == ()


def test_what_is_added_is_the_manuals_toml_and_a_rate_is_a_bucket_of_its_count(path):
    add_entry(path, full())
    assert tomllib.loads(path.read_text()) == {
        "key": [
            {
                "name": "ci",
                "sha256": D1,
                "class": "batch",
                "max_concurrent": 4,
                "rate": "60/m",
                "created": CREATED,
            }
        ]
    }
    add_entry(path, checked(KeySpec("plain", D2.upper())))
    assert read_keys(path) == (full(), checked(KeySpec("plain", D2)))
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        ".keys.toml.lock",
        "keys.toml",
    ]
    buckets = [parse_rate(rate) for rate in ("2/s", "60/m", "900/h", "86400/d")]
    assert buckets == [(2.0, 2), (1.0, 60), (0.25, 900), (1.0, 86400)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[key\n", "cannot be read"),
        (ONE + "clas = 'batch'\n", "`key.0.clas` is an unknown key"),
        (ONE + "priority = 'batch'\n", "`key.0.priority` is an unknown key"),
        ("[gateway]\n", "`gateway` is an unknown key"),
        ("key = 3\n", "`key` must be a list"),
        ("key = [3]\n", "`key.0` must be a table"),
        ("[[key]]\nname = 'ci'\n", "`key.0.sha256` is missing"),
        (ONE + "class = 'urgent'\n", "key 1: the priority 'urgent' is unknown"),
        (ONE + "class = 1\n", "`key.0.class` must be text in quotes"),
        (ONE + "max_concurrent = '4'\n", "`key.0.max_concurrent` must be a whole number"),
        (ONE + "max_concurrent = true\n", "`key.0.max_concurrent` must be a whole number"),
        (ONE + "max_concurrent = 0\n", "key 1: max_concurrent 0 is below 1"),
        (ONE + "rate = '60'\n", "key 1: '60' is not a rate"),
        (ONE + "admin = 'yes'\n", "`key.0.admin` must be"),
        (ONE + "created = 'today'\n", "`key.0.created` must be a date and time"),
        (ONE + ONE.replace(D1, D2), "two keys are named `ci`"),
        (ONE + ONE.replace("ci", "ci2"), "`ci` and `ci2` have the same sha256"),
        (ONE + ONE.replace("ci", "c i").replace(D1, D2), "key 2: 'c i' is not a valid key name"),
    ],
)
def test_a_mistake_in_a_file_edited_by_hand_is_named_in_one_line(written, text, says):
    path = written(text)
    for command in (["list"], ["list", "--json"], ["add", "new"], ["remove", "ci"]):
        message, _, hint = refused("key", *command).partition(" | ")
        assert message.startswith(str(path))
        assert says in message
        assert hint != "None"
    assert path.read_text() == text, "a file that is not understood is not written"


def test_every_mistake_in_the_keys_is_told_at_once_and_no_value_with_it(written):
    wrong = "clas = 'sk-skep-oh-no'\nrate = '60'\nmax_concurrent = 'sk-skep-oh-no'\n"
    path = written(ONE + wrong + "[[key]]\nname = 'bob'\n" + ONE)
    lines = call("key", "list", check=2).error.message.splitlines()
    assert lines[0] == f"{path}: 5 keys or values are wrong:"
    assert [line.strip().partition(";")[0] for line in lines[1:]] == [
        "`key.0.clas` is an unknown key",
        "`key.0.max_concurrent` must be a whole number",
        "key 1: '60' is not a rate",
        "`key.1.sha256` is missing",
        "two keys are named `ci`",
    ]
    assert "oh-no" not in "".join(lines)


def test_a_misplaced_key_is_not_shown_and_what_is_no_text_file_is_named(path, written):
    """Errors reach terminals and logs."""
    for line in (
        'sha256 = "sk-skep-oh-no"',
        'sha256 = ["sk-skep-oh-no"]',
        'key = "sk-skep-oh-no"',
    ):
        with pytest.raises(UserError) as caught:
            read_keys(written(f'[[key]]\nname = "ci"\n{line}\n'))
        assert "oh-no" not in f"{caught.value.message}{caught.value.hint}"
    written("").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read"):
        read_keys(path)
    path.unlink()
    path.mkdir()
    path.chmod(0o700)
    with pytest.raises(UserError, match="cannot be read"):
        read_keys(path)


HAND = f"""# Our keys

# Alice, until June
[[key]]
name = "alice"  # her laptop
sha256 = "{D1}"

# Bob
[[ key ]]
rate = "1/s"
name = "bob"
sha256 = "{D2}"
"""


def test_comments_of_a_file_stay_and_what_is_no_table_is_left_to_the_user(
    written,
):
    path = written(HAND)
    add_entry(path, checked(KeySpec("carol", digest_of("three"))))
    assert path.read_text().startswith(HAND)
    remove_entry(path, "alice")
    text = path.read_text()
    assert text.startswith("# Our keys\n\n# Alice, until June\n[[ key ]]\n")
    remove_entry(path, "carol")
    remove_entry(path, "bob")
    assert path.read_text().startswith("# Our keys")
    assert read_keys(path) == ()
    path = written(text := f'key = [{{name = "a", sha256 = "{D2}"}}]\n')
    for change in (lambda: add_entry(path, full("new")), lambda: remove_entry(path, "a")):
        with pytest.raises(UserError, match=r"keys\.toml"):
            change()
        assert path.read_text() == text


def test_a_link_stays_a_link_and_a_change_that_fails_leaves_the_file_and_no_draft(
    written, tmp_path, monkeypatch
):
    """People who keep their settings in a repository have links."""
    target = tmp_path / "dotfiles" / "keys.toml"
    target.parent.mkdir()
    path = written("")
    path.unlink()
    path.symlink_to(target)
    add_entry(path, full())
    assert path.is_symlink()
    assert names(target) == ["ci"]

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        remove_entry(path, "ci")
    assert names(path) == ["ci"]
    assert sorted(entry.name for entry in target.parent.iterdir()) == [
        ".keys.toml.lock",
        "keys.toml",
    ]
