"""Settings that are merged into the files of a client, and taken out again."""

import contextlib
import json
import os
import resource
import tomllib

import msgspec
import pytest

from skep.clients.catalog import EndpointFacts, client_named
from skep.clients.written import undo_settings, write_settings
from skep.errors import UserError

CODEX = client_named("codex")
FACTS = EndpointFacts(
    root="http://box:8400",
    url="http://box:8400/v1",
    key="none",
    model="fake-model",
    context=65_536,
    slots=4,
    session="a-session",
    now="2026-11-19T00:00:00.000Z",
)


class Home:
    """A home with the configuration of one client, and skep's record of what was written there."""

    def __init__(self, folder, client):
        self.client = client
        self.env = {"HOME": str(folder)}
        self.record = folder / "state" / f"{client.program}.json"
        self.files = [folder / file.paths[-1].removeprefix("~/") for file in client.files]

    def put(self, content, number=0):
        path = self.files[number]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def write(self, facts=FACTS):
        return write_settings(self.client, facts, self.record, self.env)

    def undo(self):
        return undo_settings(self.client, self.record)

    def names(self, number=0):
        """Return what lies in the folder of a file."""
        return sorted(path.name for path in self.files[number].parent.iterdir())


@pytest.fixture
def codex(tmp_path):
    return Home(tmp_path, CODEX)


def test_what_skep_wrote_into_a_table_that_was_empty_can_be_taken_out(codex):
    path = codex.put(b"# mine\n[model_providers]  # none yet\n")
    codex.write()
    path.write_text(f"{path.read_text()}[tui]\nnotifications = true\n")
    codex.undo()
    values = tomllib.loads(path.read_text())
    assert values == {"model_providers": {}, "tui": {"notifications": True}}
    assert path.read_text().startswith("# mine\n[model_providers]  # none yet\n")


@pytest.fixture
def pi(tmp_path):
    """A client with two files, of which the first is small and the second large."""
    home = Home(tmp_path, client_named("pi"))
    home.put(LARGE, 1)
    return home


LARGE = json.dumps({"history": "x" * 9000}).encode()


@contextlib.contextmanager
def full_disk(room):
    """No file can grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def refusal(action):
    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in caught.value.message
    return caught.value


def test_line_ends_of_windows_stay_and_come_back_byte_by_byte(codex):
    content = b'# mine\r\nmodel = "gpt-5" # best\r\n\r\n[tui]\r\nx = 1\r\n'
    path = codex.put(content)
    codex.write()
    written = path.read_bytes()
    assert written.startswith(b'# mine\r\nmodel = "fake-model" # best\r\n')
    assert written.count(b"\n") == written.count(b"\r\n")
    codex.undo()
    assert path.read_bytes() == content


def test_a_value_that_could_not_be_put_back_is_not_replaced(codex):
    content = b"model = { a = 1 }\n"
    path = codex.put(content)
    words = "is written in a way that cannot be changed safely"
    assert refusal(codex.write).message == f"`{path}` {words}"
    assert path.read_bytes() == content
    assert codex.names() == ["config.toml"]


def test_a_file_of_another_user_is_refused_and_stays(codex):
    path = codex.put(b"")
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, 65534, -1)
    status = path.stat()
    assert refusal(codex.write).message == f"`{path}` belongs to another user"
    assert path.stat() == status
    assert codex.names() == ["config.toml"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("a_queue", "is not a regular file"),
        (".", "is not a regular file"),
        ("config.toml", "symbolic links"),
    ],
)
def test_a_link_to_what_is_no_file_is_refused_and_stays(codex, target, words):
    path = codex.files[0]
    path.parent.mkdir()
    os.mkfifo(path.with_name("a_queue"))
    path.symlink_to(target)
    assert words in refusal(codex.write).message
    assert str(path.readlink()) == target
    assert codex.names() == ["a_queue", "config.toml"]


def test_a_link_to_a_file_that_is_not_there_yet_stays_a_link(codex, tmp_path):
    path = codex.files[0]
    path.parent.mkdir()
    path.symlink_to(tmp_path / "dotfiles.toml")
    codex.write()
    assert path.is_symlink()
    assert tomllib.loads((tmp_path / "dotfiles.toml").read_text())["model"] == "fake-model"
    codex.undo()
    assert not path.exists()


def test_on_a_full_disk_no_file_is_written_and_the_error_names_the_one_without_room(pi):
    with full_disk(4000):
        error = refusal(pi.write)
    assert f"{pi.files[1]}.before-skep` cannot be written: " in error.message
    assert error.hint.startswith("nothing was changed")
    assert pi.files[1].read_bytes() == LARGE
    assert pi.names() == ["settings.json"]
    assert not pi.record.exists()


def test_on_a_full_disk_nothing_is_taken_out_and_it_can_be_tried_again(pi):
    pi.write()
    written = [path.read_bytes() for path in pi.files]
    with full_disk(4000):
        assert f"`{pi.files[1]}` cannot be written: " in refusal(pi.undo).message
    assert [path.read_bytes() for path in pi.files] == written
    pi.undo()
    assert pi.names() == ["settings.json"]
    assert pi.files[1].read_bytes() == LARGE


def test_of_two_files_none_is_taken_out_where_one_is_no_file_any_more(pi):
    pi.write()
    written = [path.read_bytes() for path in pi.files]
    pi.files[1].unlink()
    pi.files[1].mkdir()
    assert "is not a regular file" in refusal(pi.undo).message
    assert pi.files[0].read_bytes() == written[0]


def test_without_its_backup_a_file_is_left_and_the_error_says_what_to_do(codex):
    path = codex.put(b"x = 1\n")
    codex.write()
    written = path.read_bytes()
    path.with_name("config.toml.before-skep").unlink()
    error = refusal(codex.undo)
    assert error.message == f"the backup `{path}.before-skep` is gone"
    assert str(codex.record) in error.hint
    assert path.read_bytes() == written


@pytest.mark.parametrize(
    "line", ["'GOOSE_MODEL': mine", '"GOOSE_MODEL": mine', "? GOOSE_MODEL\n: mine"]
)
def test_a_key_that_yaml_writes_in_another_way_does_not_get_a_second_line(tmp_path, line):
    """goose refuses a file in which a key stands twice."""
    goose = Home(tmp_path, client_named("goose"))
    path = goose.put(f"{line}\n".encode())
    assert "cannot be changed safely" in refusal(goose.write).message
    assert path.read_text() == f"{line}\n"


def test_a_name_beyond_the_basic_plane_is_toml_too(codex):
    model = "fake-\N{HONEYBEE}"
    codex.put(b"")
    codex.write(msgspec.structs.replace(FACTS, model=model))
    assert tomllib.loads(codex.files[0].read_text())["model"] == model


def test_a_number_is_not_taken_for_the_flag_that_skep_writes(codex):
    path = codex.put(b"[analytics]\nenabled = 0\n")
    codex.write()
    assert tomllib.loads(path.read_text())["analytics"]["enabled"] is False
    codex.undo()
    assert path.read_bytes() == b"[analytics]\nenabled = 0\n"
