import os
import stat
import tomllib
from datetime import UTC, datetime

import pytest

from skep.config.keys import (
    KeySpec,
    add_entry,
    digest_of,
    keys_path,
    loose_mode,
    make_entry,
    new_key,
    read_entries,
    read_keys,
    remove_entry,
)
from skep.errors import UserError
from skep.paths import user_paths

D1, D2 = digest_of("one"), digest_of("two")
CREATED = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "config" / "skep" / "keys.toml"


@pytest.fixture
def written(path):
    def write(text, mode=0o600):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


def full(name="ci", sha256=D1):
    return make_entry(name, sha256, priority="batch", max_concurrent=4, rate="60/m", created=CREATED)


def names(path):
    return [spec.name for spec in read_keys(path)]


def test_the_file_lies_in_the_configuration_folder():
    assert str(keys_path(user_paths({"HOME": "/home/bee"}))) == "/home/bee/.config/skep/keys.toml"


def test_new_keys_have_their_form_and_differ():
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("sk-skep-") and len(key) == 8 + 32 for key in keys)


def test_no_file_is_no_keys(path):
    assert read_keys(path) == ()


def test_what_is_added_is_read_back_and_the_file_is_the_owners_alone(path):
    add_entry(path, full())
    add_entry(path, make_entry("plain", D2))
    assert read_entries(path) == (full(), make_entry("plain", D2))
    assert read_keys(path) == (KeySpec("ci", D1, "batch", 4, 1.0, 60), KeySpec("plain", D2))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".keys.toml.lock", "keys.toml"]


def test_the_file_is_the_toml_that_the_manual_shows(path):
    add_entry(path, full())
    assert tomllib.loads(path.read_text()) == {
        "key": [{"name": "ci", "sha256": D1, "class": "batch", "max_concurrent": 4, "rate": "60/m", "created": CREATED}]
    }


@pytest.mark.parametrize(
    ("rate", "per_s", "burst"), [("2/s", 2.0, 2), ("60/m", 1.0, 60), ("900/h", 0.25, 900), ("86400/d", 1.0, 86400)]
)
def test_a_rate_is_a_bucket_of_its_count(rate, per_s, burst):
    spec = make_entry("ci", D1, rate=rate).spec
    assert (spec.rate_per_s, spec.burst) == (per_s, burst)


@pytest.mark.parametrize("rate", ["", "60", "0/m", "-1/s", "60/min", "1.5/s", "60 / m", "٦/m", "99999999/s", "60/m\n"])
def test_a_rate_that_is_none_is_refused_with_an_example(rate):
    with pytest.raises(UserError, match="is not a rate") as caught:
        make_entry("ci", D1, rate=rate)
    assert "60/m" in caught.value.hint


@pytest.mark.parametrize("name", ["", "a b", "a\n", "ü", "x" * 65, "a/b", 'a"', "a\x1b[31m"])
def test_a_name_of_other_characters_is_refused_in_one_plain_line(name):
    with pytest.raises(UserError, match="is not a name") as caught:
        make_entry(name, D1)
    assert caught.value.message.isprintable()


def test_a_digest_in_capitals_is_the_same_digest():
    assert make_entry("ci", D1.upper()) == make_entry("ci", D1)


ONE = f'[[key]]\nname = "ci"\nsha256 = "{D1}"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[key\n", "cannot be read"),
        (ONE + "clas = 'batch'\n", "key 1: `clas` is an unknown key"),
        (ONE + "priority = 'batch'\n", "key 1: `priority` is an unknown key"),
        ("[gateway]\n", "`gateway` is an unknown key"),
        ("key = 3\n", "`key`: input should be a valid list"),
        ("key = [3]\n", "`key`: input should be"),
        ("[[key]]\nname = 'ci'\n", "key 1: `sha256`: field required"),
        (ONE + "class = 'urgent'\n", "key 1: the class 'urgent' is unknown"),
        (ONE + "class = 1\n", "key 1: `class`: input should be a valid string"),
        (ONE + "max_concurrent = '4'\n", "key 1: `max_concurrent`: input should be a valid integer"),
        (ONE + "max_concurrent = true\n", "key 1: `max_concurrent`: input should be a valid integer"),
        (ONE + "max_concurrent = 0\n", "key 1: max_concurrent 0 is below 1"),
        (ONE + "rate = '60'\n", "key 1: '60' is not a rate"),
        (ONE + "created = 'today'\n", "key 1: `created`: input should be a valid datetime"),
        (ONE + ONE.replace(D1, D2), "two keys are named `ci`"),
        (ONE + ONE.replace("ci", "ci2"), "`ci` and `ci2` have the same sha256"),
        (ONE + ONE.replace("ci", "c i"), "key 2: 'c i' is not a name"),
    ],
)
def test_a_mistake_in_a_file_edited_by_hand_is_named_in_one_line(written, text, says):
    path = written(text)
    for attempt in (read_keys, lambda path: add_entry(path, make_entry("new", digest_of("new")))):
        with pytest.raises(UserError) as caught:
            attempt(path)
        assert caught.value.message.startswith(str(path))
        assert says in caught.value.message
        assert "\n" not in caught.value.message
        assert caught.value.hint
    assert path.read_text() == text, "a file that is not understood is not written"


@pytest.mark.parametrize("line", ['sha256 = "sk-skep-oh-no"', 'sha256 = ["sk-skep-oh-no"]', 'key = "sk-skep-oh-no"'])
def test_a_key_in_the_wrong_place_is_not_shown(written, line):
    """Errors reach terminals and logs."""
    with pytest.raises(UserError) as caught:
        read_keys(written(f'[[key]]\nname = "ci"\n{line}\n'))
    assert "oh-no" not in f"{caught.value.message}{caught.value.hint}"


def test_bytes_that_are_no_text_and_folders_are_named(path, written):
    written("").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read"):
        read_keys(path)
    path.unlink()
    path.mkdir()
    path.chmod(0o700)
    with pytest.raises(UserError, match="cannot be read"):
        read_keys(path)


def test_a_file_that_others_may_read_is_warned_about_and_closed_by_the_next_change(written):
    path = written(ONE, 0o644)
    assert names(path) == ["ci"]
    assert "chmod 600" in loose_mode(path)
    add_entry(path, make_entry("two", D2))
    assert loose_mode(path) is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(written, mode):
    """Who may write it may let himself in."""
    with pytest.raises(UserError, match="others may write") as caught:
        read_keys(written(ONE, mode))
    assert "chmod 600" in caught.value.hint


def test_no_file_needs_no_warning(path):
    assert loose_mode(path) is None


def test_a_name_that_is_taken_is_refused(path):
    add_entry(path, full())
    with pytest.raises(UserError, match="there is a key named `ci`"):
        add_entry(path, make_entry("ci", D2))


def test_removing_tells_what_stays_and_an_unknown_name_tells_the_known(path):
    add_entry(path, full("a", D1))
    add_entry(path, full("b", D2))
    with pytest.raises(UserError, match="no key named 'c'") as caught:
        remove_entry(path, "c")
    assert caught.value.hint == "known: a, b"
    assert remove_entry(path, "a") == (full("b", D2),)
    assert remove_entry(path, "b") == ()
    assert read_keys(path) == ()
    with pytest.raises(UserError, match="no key"):
        remove_entry(path, "b")


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


def test_comments_of_a_file_edited_by_hand_stay(written):
    path = written(HAND)
    add_entry(path, make_entry("carol", digest_of("three")))
    assert path.read_text().startswith(HAND)
    remove_entry(path, "alice")
    text = path.read_text()
    assert text.startswith("# Our keys\n\n# Bob\n[[ key ]]\n")
    assert "Alice" not in text
    remove_entry(path, "carol")
    remove_entry(path, "bob")
    assert path.read_text().strip() == "# Our keys"


@pytest.mark.parametrize(
    "text",
    [
        f'key = [{{name = "a", sha256 = "{D1}"}}, {{name = "b", sha256 = "{D2}", class = "batch"}}]\n',
        f'[["key"]]\nname = "a"\nsha256 = "{D1}"\n' + ONE.replace(D1, D2),
        f'[[key]]\nname = "a"\nsha256 = """\\\n  {D1}"""\n' + ONE.replace(D1, D2),
    ],
)
def test_keys_written_in_another_style_are_changed_all_the_same(written, text):
    path = written(text)
    before = read_entries(path)
    add_entry(path, full("new", digest_of("new")))
    assert read_entries(path) == (*before, full("new", digest_of("new")))
    assert remove_entry(path, before[0].spec.name) == read_entries(path)
    assert read_entries(path) == (*before[1:], full("new", digest_of("new")))


def test_a_link_stays_a_link(written, tmp_path):
    """As people who keep their settings in a repository have it."""
    target = tmp_path / "dotfiles" / "keys.toml"
    target.parent.mkdir()
    path = written("")
    path.unlink()
    path.symlink_to(target)
    add_entry(path, full())
    assert path.is_symlink()
    assert names(target) == ["ci"]


def test_a_change_that_fails_leaves_the_file_and_no_draft(path, monkeypatch):
    add_entry(path, full())

    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        remove_entry(path, "ci")
    assert names(path) == ["ci"]
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".keys.toml.lock", "keys.toml"]
