import sys

import pytest
from weight_makers import gguf

from skep.errors import UserError, WeightsError
from skep.weights.pull import HubFile, fetch_from_hub, parse_hub_source, pull

WANTED = HubFile("org/repo", "sub/model.gguf")


class RepositoryNotFoundError(Exception):
    pass


class GatedRepoError(RepositoryNotFoundError):
    pass


class EntryNotFoundError(Exception):
    pass


class LocalEntryNotFoundError(EntryNotFoundError):
    pass


class FakeHub:
    """Answers as the hub's client does: a cached path, or a downloaded one, or an error."""

    def __init__(self, answer, cached=None):
        self.answer = answer
        self.cached = cached

    def try_to_load_from_cache(self, repo, file):
        assert (repo, file) == ("org/repo", "sub/model.gguf")
        return self.cached

    def hf_hub_download(self, repo, file):
        assert (repo, file) == ("org/repo", "sub/model.gguf")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_hub_source_names_repo_and_file():
    """`org/repo:file` and nothing else is a file on the hub."""
    assert parse_hub_source("org/repo:sub/model.gguf") == WANTED
    assert [parse_hub_source(s) for s in ("org/repo", "a/b/c:f", "repo:f", "C:\\x", "org/repo:")] == [None] * 5


def test_missing_extra_says_what_to_install(monkeypatch, tmp_path):
    """The hub's client is optional."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError) as caught:
        pull("org/repo:model.gguf", cache_dir=tmp_path)
    assert caught.value.hint == "pip install 'skep[hub]'"


def test_cached_file_asks_no_network():
    """What lies in the hub's cache is used as it is."""
    path, already_there = fetch_from_hub(WANTED, FakeHub(AssertionError("asked"), cached="/c/model.gguf"))
    assert (str(path), already_there) == ("/c/model.gguf", True)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (GatedRepoError("401"), UserError, "`org/repo` is gated"),
        (RepositoryNotFoundError("404"), UserError, "the hub has no `org/repo`"),
        (EntryNotFoundError("404"), UserError, "`org/repo` has no file `sub/model.gguf`"),
        (LocalEntryNotFoundError("x"), WeightsError, "cannot reach the hub"),
        (ConnectionError("refused"), WeightsError, "cannot reach the hub"),
        (RuntimeError("\nodd\nmore"), WeightsError, "cannot pull `org/repo:sub/model.gguf`: odd"),
    ],
)
def test_hub_errors_become_one_line(error, kind, said):
    """Gated, not found and offline are told apart."""
    with pytest.raises(kind) as caught:
        fetch_from_hub(WANTED, FakeHub(error))
    assert caught.value.message.startswith(said)


def test_file_from_the_hub_is_checked(monkeypatch, tmp_path):
    """A page saved under the name of a model is refused, a model accepted."""
    path = tmp_path / "model.gguf"
    monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub(str(path)))
    path.write_bytes(b"<html>")
    with pytest.raises(WeightsError, match="it is an HTML page"):
        pull("org/repo:sub/model.gguf", cache_dir=tmp_path)
    path.write_bytes(gguf())
    pulled = pull("org/repo:sub/model.gguf", cache_dir=tmp_path)
    assert (pulled.name, pulled.path, pulled.already_there) == ("model", path, False)
