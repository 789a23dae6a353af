"""`skep key` as a user runs it."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from skep.config.keys import KeyRing, keys_path, read_keys
from skep.paths import user_paths


@pytest.fixture
def path(env):
    return keys_path(user_paths(env))


def test_a_key_is_printed_once_and_only_its_digest_is_kept(skep, path):
    done = skep("key", "add", "ci", "--class", "batch", "--max-concurrent", 4, "--rate", "60/m", check=0)
    (key,) = done.stdout.splitlines()
    assert key.startswith("sk-skep-")
    assert len(key) == 40
    assert "`skep reload`" in done.stderr
    assert key not in done.stderr
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    spec = KeyRing(read_keys(path)).find(key.encode())
    assert (spec.name, spec.priority, spec.max_concurrent, spec.rate_per_s, spec.burst) == ("ci", "batch", 4, 1.0, 60)


def test_list_shows_names_and_limits(skep, path):
    assert json.loads(skep("key", "list", "--json", check=0).stdout) == []
    empty = skep("key", "list", check=0)
    assert (empty.stdout, "skep key add" in empty.stderr) == ("", True)
    skep("key", "add", "ci", "--class", "batch", check=0)
    skep("key", "add", "alice", check=0)
    first, second = json.loads(skep("key", "list", "--json", check=0).stdout)
    assert first.pop("created").endswith("+00:00")
    assert first == {
        "name": "ci",
        "class": "batch",
        "max_concurrent": None,
        "rate": None,
        "sha256": read_keys(path)[0].sha256,
    }
    assert second["name"] == "alice"
    table = skep("key", "list", check=0).stdout.splitlines()
    assert table[1].split()[:4] == ["ci", "batch", "any", "any"]
    assert len(table) == 3


def test_list_warns_of_a_file_that_others_may_read(skep, path):
    skep("key", "add", "ci", check=0)
    path.chmod(0o640)
    done = skep("key", "list", "--json", check=0)
    assert done.stderr.startswith("warning: others may read")
    assert json.loads(done.stdout)


def test_remove_takes_a_key_back(skep, path):
    skep("key", "add", "a", check=0)
    skep("key", "add", "b", check=0)
    done = skep("key", "remove", "a", check=0)
    assert (done.stdout, "`skep reload`" in done.stderr) == ("", True)
    assert "the last one" in skep("key", "remove", "b", check=0).stderr
    assert read_keys(path) == ()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["add", "a b"], "error: 'a b' is not a name for a key"),
        (["add", "x", "--class", "urgent"], "error: the class 'urgent' is unknown"),
        (["add", "x", "--rate", "60"], "error: '60' is not a rate"),
        (["add", "taken"], "error: there is a key named `taken`"),
        (["remove", "nobody"], "error: there is no key named 'nobody'"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(skep, path, args, says):
    skep("key", "add", "taken", check=0)
    before = path.read_text()
    done = skep("key", *args, check=2)
    error, hint = done.stderr.splitlines()
    assert error.startswith(says)
    assert hint.startswith("hint: ")
    assert done.stdout == ""
    assert path.read_text() == before


def test_a_number_out_of_range_is_wrong_usage(skep, path):
    assert "--max-concurrent" in skep("key", "add", "x", "--max-concurrent", 0, check=2).stderr
    assert not path.exists()


def test_a_file_broken_by_hand_is_named_by_every_command(skep, path):
    path.parent.mkdir(parents=True)
    path.write_text('[[key]]\nname = "ci"\n')
    path.chmod(0o600)
    for args in (["add", "x"], ["list"], ["list", "--json"], ["remove", "ci"]):
        done = skep("key", *args, check=2)
        assert f"error: {path}: key 1: `sha256`: field required" in done.stderr
        assert done.stdout == ""


def test_keys_added_at_the_same_time_are_all_kept(env, tmp_path, path):
    """Without the lock, two read the same file and the later one forgets the other's key."""
    names = [f"agent-{i}" for i in range(12)]
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "skep", "key", "add", name],
            env=env,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for name in names
    ]
    keys = [child.communicate(timeout=100)[0].strip() for child in children]
    ring = KeyRing(read_keys(path))
    assert [ring.find(key).name for key in keys] == names


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_key_that_could_not_be_printed_is_not_kept(env, tmp_path, path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "skep", "key", "add", "ci"],
            env=env,
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert read_keys(path) == ()


def test_nobody_else_can_read_the_new_folder(skep, path):
    skep("key", "add", "ci", check=0)
    assert not path.parent.stat().st_mode & 0o077
    assert path.stat().st_uid == os.getuid()
