"""Checkpoints of the hub: its own client against a hub on the loopback."""

import hashlib
import os
import signal
import subprocess
import sys

import pytest
from weight_makers import gguf

from fake_hub import FakeHub
from skep.errors import UserError, WeightsError
from skep.weights import cache
from skep.weights.hub import HubSource, cached, hub_token, parse_hub_source, pull_hub
from skep.weights.pull import pull

FOLDER = {
    "config.json": b"{}",
    "model.safetensors": b"w" * 400_000,
    "pytorch_model.bin": b"the same again",
}
CHILD = (
    # which `nohup make test` has it ignore
    "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    "from skep.weights.pull import pull; from pathlib import Path; pull(sys.argv[1], "
    "cache_dir=Path('x'))"
)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    for name in ("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    parts = {f"big/m-Q4-{n:05}-of-00002.gguf": gguf() for n in (1, 2)}
    with FakeHub(
        org__model=FOLDER, org__gguf={"m-Q4.gguf": gguf(), **parts}, org__gated=FOLDER
    ).serving() as hub:
        hub.gated.add("org/gated")
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def test_a_source_is_a_repository_or_a_file_of_it():
    assert parse_hub_source("org/repo") == HubSource("org/repo")
    assert parse_hub_source("org/repo:sub/model.gguf") == HubSource("org/repo", "sub/model.gguf")
    assert [
        parse_hub_source(text) for text in ("a/b/c:f", "repo:f", "C:\\x", "org/repo:", "repo")
    ] == [None] * 5


def test_a_checkpoint_is_fetched_once_without_the_weights_in_other_forms(
    hub, tmp_path, monkeypatch
):
    """A gated one with a token."""
    assert not hub_token(os.environ)
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert hub_token(os.environ)
    heard = []
    files = pull_hub(HubSource("org/gated"), lambda done, total: heard.append((done, total)))
    assert sorted(path.name for path in files.path.iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert (files.bytes, files.already_there) == (400_002, False)
    assert heard[-1] == (400_002, 400_002)
    requests = len(hub.asked)
    again = pull("org/gated", cache_dir=tmp_path)
    assert (again.path, again.already_there, len(hub.asked)) == (files.path, True, requests)


def test_weights_in_an_older_form_are_fetched_where_there_are_no_others(hub):
    hub.repos["org/old"] = {
        "params.json": b"{}",
        "pytorch_model.bin": b"w" * 100,
        "model.onnx": b"no",
    }
    path = pull_hub(HubSource("org/old")).path
    assert {path.name for path in path.iterdir()} == {"params.json", "pytorch_model.bin"}
    assert cached(HubSource("org/old")) is not None


def test_a_file_of_several_parts_is_fetched_with_all_of_them(hub):
    source = HubSource("org/gguf", "big/m-Q4-00001-of-00002.gguf")
    folder = pull_hub(source).path.parent
    assert {path.name for path in folder.iterdir()} == {
        f"m-Q4-0000{n}-of-00002.gguf" for n in (1, 2)
    }
    (folder / "m-Q4-00002-of-00002.gguf").unlink()
    assert cached(source) is None


@pytest.mark.parametrize(
    ("source", "kind", "message", "hint"),
    [
        ("org/gated", UserError, "`org/gated` is gated", "HF_TOKEN"),
        ("org/nothing", UserError, "the hub has no `org/nothing`", "check the spelling"),
        ("org/gguf:other.gguf", UserError, "`org/gguf` has no file `other.gguf`", ".gguf names"),
        ("org/gguf:page.gguf", WeightsError, "it is a web page", ""),
    ],
)
def test_what_cannot_be_had_is_one_clear_line(hub, tmp_path, source, kind, message, hint):
    hub.repos["org/gguf"]["page.gguf"] = b"<html>"
    with pytest.raises(kind) as caught:
        pull(source, cache_dir=tmp_path)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
    assert not list((tmp_path / "hf").rglob("*.safetensors"))


def test_without_a_network_it_says_what_to_do(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        WeightsError, match="cannot reach the hub, and `org/model` is not in its cache"
    ):
        pull_hub(HubSource("org/model"))


def test_another_file_than_the_hub_says_is_removed(hub, tmp_path):
    hub.wrong["model.safetensors"] = b"x" * 400_000
    with pytest.raises(WeightsError, match=r"checksum mismatch: model\.safetensors"):
        pull_hub(HubSource("org/model"))
    assert cached(HubSource("org/model")) is None
    assert not list((tmp_path / "hf").rglob("*.safetensors"))  # it would be fetched again


def test_a_disk_without_room_is_refused_before_the_first_byte(hub, monkeypatch):
    monkeypatch.setattr(
        cache.shutil, "disk_usage", lambda _: os.statvfs_result and type("", (), {"free": 1 << 20})
    )
    with pytest.raises(WeightsError, match=r"no space left .* needs 1.0 GiB, has 1.0 MiB"):
        pull_hub(HubSource("org/model"))
    assert hub.asked == []


def test_an_interrupted_pull_goes_on_where_it_was(hub):
    """By a terminal that was closed; by other signals: test_pull_processes.py."""
    hub.repos["org/model"] = {**FOLDER, "model.safetensors": b"w" * 30_000_000}
    hub.stops_at["model.safetensors"] = 20_000_000
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, "org/model"], stderr=subprocess.DEVNULL
    ) as process:
        assert hub.reached.wait(60)
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) != 0
    assert cached(HubSource("org/model")) is None
    hub.go_on.set()
    assert pull_hub(HubSource("org/model")).bytes == 30_000_002
    assert max(first for name, first in hub.asked if name == "model.safetensors") > 0


def interrupted(hub, source):
    """A pull that was ended in the middle of its large file."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, source], stderr=subprocess.DEVNULL
    ) as process:
        assert hub.reached.wait(60)
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) != 0
    hub.go_on.set()


def outside_of(cache, tmp_path):
    """The files that lie anywhere but in the cache of the hub."""
    return [
        path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(cache)
    ]


@pytest.mark.parametrize(
    "etag", ["../../../../escaped", "/tmp/escaped", "a/b", "..", "x" * 300, "A" * 40]
)
def test_an_etag_is_a_file_name_only_where_it_is_a_checksum(hub, tmp_path, etag):
    """`../../../../x` was written outside of the cache.

    Of small files, too, which have no checksum.
    """
    hub.etags = {"model.safetensors": etag, "config.json": etag + "/config"}
    folder = pull_hub(HubSource("org/model")).path
    blobs = (tmp_path / "hf" / "hub" / "models--org--model" / "blobs").iterdir()
    assert [len(path.name) for path in blobs] == [64, 64]
    assert (folder / "model.safetensors").read_bytes() == FOLDER["model.safetensors"]
    assert (folder / "config.json").read_bytes() == FOLDER["config.json"]
    assert outside_of(tmp_path / "hf" / "hub", tmp_path) == []


@pytest.mark.parametrize(
    "name",
    [
        "../../../escaped.safetensors",
        "/tmp/escaped.safetensors",
        "a/../../b.safetensors",
        "a\\b.safetensors",
    ],
)
def test_a_listed_file_that_would_lie_elsewhere_is_refused(hub, tmp_path, name):
    hub.repos["org/model"] = {**FOLDER, name: b"evil"}
    with pytest.raises(WeightsError, match="which would lie elsewhere"):
        pull_hub(HubSource("org/model"))
    assert list(tmp_path.rglob("*.safetensors")) == []


@pytest.mark.parametrize("commit", ["../../../../escaped", "c" * 41, "main", ""])
def test_a_revision_that_is_none_names_no_folder(hub, tmp_path, commit):
    hub.commit = commit
    with pytest.raises(WeightsError, match="as the revision, which is none"):
        pull_hub(HubSource("org/model"))
    assert outside_of(tmp_path / "hf" / "hub", tmp_path) == []


def test_a_file_that_changed_between_two_pulls_is_fetched_anew(hub):
    """Its ETag is another one: what was begun of the old file is no beginning of it."""
    hub.repos["org/model"] = {**FOLDER, "model.safetensors": b"w" * 30_000_000}
    hub.stops_at["model.safetensors"] = 20_000_000
    interrupted(hub, "org/model")
    hub.repos["org/model"] = {**FOLDER, "model.safetensors": b"v" * 30_000_000}
    folder = pull_hub(HubSource("org/model")).path
    assert (folder / "model.safetensors").read_bytes() == b"v" * 30_000_000
    assert hub.asked[-1] != ("model.safetensors", 20_000_000)


def test_a_changed_file_under_the_same_etag_does_not_become_a_mixture(hub, tmp_path):
    """A mirror whose ETag says nothing: the checksum of the whole file decides, and the next pull
    begins anew.
    """
    hub.etags = {"model.safetensors": "latest"}
    new = hashlib.sha256(b"v" * 400_000).hexdigest()
    blobs = tmp_path / "hf" / "hub" / "models--org--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{new}.part").write_bytes(b"w" * 200_000)
    hub.repos["org/model"] = {**FOLDER, "model.safetensors": b"v" * 400_000}
    with pytest.raises(WeightsError, match=r"checksum mismatch: model\.safetensors"):
        pull_hub(HubSource("org/model"))
    folder = pull_hub(HubSource("org/model")).path
    assert (folder / "model.safetensors").read_bytes() == b"v" * 400_000


def test_a_file_without_a_checksum_is_begun_anew(hub, tmp_path):
    """What was begun may be of an older file: nobody would notice the mixture."""
    hub.etags = {"config.json": "1" * 40}
    blobs = tmp_path / "hf" / "hub" / "models--org--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{'1' * 40}.part").write_bytes(b'{"a": 1')
    hub.repos["org/model"] = {**FOLDER, "config.json": b'{"b": 222}'}
    folder = pull_hub(HubSource("org/model")).path
    assert (folder / "config.json").read_bytes() == b'{"b": 222}'


def test_a_file_without_a_checksum_that_changes_on_the_way_does_not_become_a_mixture(hub):
    """The hub's client asks for the rest after a break, when it is another file."""
    old = b"a" * 25_000_000  # its client writes 10 MB at a time
    new = b"b" * 25_000_000
    hub.repos["org/model"] = {**FOLDER, "config.json": old}
    hub.changes_at = {"config.json": (15_000_000, new)}
    folder = pull_hub(HubSource("org/model")).path
    assert set((folder / "config.json").read_bytes()) == {ord("b")}


@pytest.mark.parametrize(
    "index",
    [
        '{"weight_map": {"a": "../../../../etc/passwd"}}',
        '{"weight_map": {"a": ["x"]}}',
        '{"weight_map": 3}',
        "[]",
        "[",
    ],
)
def test_an_index_that_names_no_weights_beside_it_is_no_checkpoint(hub, index):
    hub.repos["org/model"] = {**FOLDER, "model.safetensors.index.json": index.encode()}
    pull_hub(HubSource("org/model"))
    assert cached(HubSource("org/model")) is None


def test_a_file_outside_of_the_repository_is_no_source(hub, tmp_path):
    (tmp_path / "mine.gguf").write_bytes(gguf())
    with pytest.raises(UserError, match="has no file"):
        pull_hub(HubSource("org/gguf", "../../../../../mine.gguf"))
