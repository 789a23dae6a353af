"""Where things lie: the folders of one installation,
and the port its gateway takes unless told.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from skep.errors import UserError

DEFAULT_PORT = 8400
HOST = "127.0.0.1"  # of engines that skep starts
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_SOCKET_PATH = 100  # the kernel's limit is 108 bytes, some systems' 104


class Paths(msgspec.Struct, frozen=True):
    config: Path
    data: Path
    cache: Path
    state: Path
    runtime: Path

    @property
    def store(self) -> Path:
        return self.data / "skep.sqlite3"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def socket(self) -> Path:
        return self.runtime / "control.sock"

    @property
    def lock(self) -> Path:
        """In the state folder, which is the same with and without a login session's runtime
        folder.
        """
        return self.state / "lock"


def user_paths(env: Mapping[str, str]) -> Paths:
    """Return the XDG folders.

    The runtime folder carries a digest of the others, so that installations stay apart.
    """
    home = Path(env.get("HOME") or Path.home())
    folders = {
        "config": _folder(env, "XDG_CONFIG_HOME", home / ".config"),
        "data": _folder(env, "XDG_DATA_HOME", home / ".local/share"),
        "cache": _folder(env, "XDG_CACHE_HOME", home / ".cache"),
        "state": _folder(env, "XDG_STATE_HOME", home / ".local/state"),
    }
    from hashlib import sha256

    mark = sha256(
        "\0".join(str(folders[key]) for key in ("config", "data", "state")).encode()
    ).hexdigest()[:8]
    runtime = Path(env.get("XDG_RUNTIME_DIR") or "/nonexistent") / f"skep-{mark}"
    if not runtime.parent.is_dir() or len(os.fsencode(runtime / "control.sock")) > MAX_SOCKET_PATH:
        # `make_runtime` makes it private and checks that it is.
        runtime = Path(f"/tmp/skep-{os.getuid()}-{mark}")  # noqa: S108
    return Paths(**folders, runtime=runtime)


def make_private(folder: Path) -> None:
    """Create the folder and its missing parents for this user alone.

    One that exists keeps its mode.
    """
    missing = [ancestor for ancestor in (folder, *folder.parents) if not ancestor.exists()]
    for ancestor in reversed(missing):
        ancestor.mkdir(mode=0o700, exist_ok=True)


def make_runtime(path: Path) -> None:
    """Create the runtime folder, or check that the one that is there is ours alone."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        hint = "set XDG_RUNTIME_DIR to a folder of your own, or remove it"
        raise UserError(f"the runtime folder `{path}` is not private to you", hint=hint)


@contextlib.contextmanager
def runtime_folder(path: Path) -> Iterator[None]:
    """Keep the runtime folder while the block runs.

    For the holder of the lock: nobody else may remove it.
    """
    make_runtime(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # not empty, or gone
            path.rmdir()


def _folder(env: Mapping[str, str], name: str, default: Path) -> Path:
    """Return the XDG rule: a relative value is ignored."""
    value = env.get(name, "")
    return (Path(value) if value.startswith("/") else default) / "skep"


def documentation() -> dict[str, Path]:
    """Return the pages of the documentation by name: installed beside the code, or in the checkout
    it runs from.
    """
    parent = Path(__file__).parent
    folder = next(
        (
            candidate
            for candidate in (parent / "docs", parent.parents[1] / "docs")
            if candidate.is_dir()
        ),
        parent,
    )
    return {page.stem: page for page in sorted(folder.glob("*.md")) if page.stem != "README"}
