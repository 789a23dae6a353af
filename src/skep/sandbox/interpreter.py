"""What of this machine a script may see: the interpreter, its libraries and, if wanted, the installed packages.

All of it read-only and at its own path; nothing else of a home folder or of a checkout, even where they hold the
interpreter. A line in a `.pth` file that leads elsewhere (an editable install) leads nowhere inside.
"""

from __future__ import annotations

import site
import sys
from dataclasses import dataclass, field
from pathlib import Path

BOX = "/box"  # the one place a script can write to: a tmpfs with a size
FOLDER = f"{BOX}/work"
UID = 1000  # inside; whom it stands for outside is the launcher's business
SYSTEM = ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/local/lib")
EXTRA = ("/etc/ld.so.cache", "/usr/share/zoneinfo")
DEVICES = ("null", "zero", "full", "random", "urandom")
ETC = {  # what Python asks for, made up
    "/etc/passwd": f"box:x:{UID}:{UID}::{FOLDER}:/nonexistent\n",
    "/etc/group": f"box:x:{UID}:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/shm": f"{BOX}/shm",  # noqa: S108 - inside; counts against the same size as the folder
}


@dataclass(frozen=True, slots=True)
class View:
    """`binds` maps a path inside to the path outside; `emptied` are folders inside a bind that appear empty."""

    program: str
    binds: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    emptied: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


def view(*, packages: bool) -> View:
    """Of the interpreter that runs this. `packages`: with those that are installed beside skep."""
    real = Path(sys.executable).resolve()
    base = Path(sys.base_prefix)
    binds: dict[str, str] = {}
    links = dict(LINKS)
    for path in map(Path, SYSTEM):
        if path.is_symlink():
            links[str(path)] = str(path.resolve())
        elif path.is_dir():
            binds[str(path)] = str(path)
    if real.is_relative_to("/nix/store"):
        binds["/nix/store"] = "/nix/store"
    for path in (base / "lib", base / "lib64", base.resolve() / "lib", real, *map(Path, EXTRA)):
        _add(binds, links, path)
    _add(binds, links, base / "bin" / real.name)
    installed = _installed_folders()
    if packages:
        program = _with_packages(binds, links, installed, real)
        emptied: tuple[str, ...] = ()
    else:
        program = str(real)
        emptied = tuple(str(path) for path in _base_folders(base) if path.is_dir() and _covered(binds, path))
    if not any(dest.startswith("/tmp/") for dest in (*binds, *links)):  # noqa: S108 - a path inside
        links["/tmp"] = f"{BOX}/tmp"  # noqa: S108
    ordered = dict(sorted(binds.items()))
    return View(program, ordered, dict(sorted(links.items())), emptied, _environment(program, packages=packages))


def _with_packages(binds: dict[str, str], links: dict[str, str], folders: list[Path], real: Path) -> str:
    for folder in folders:
        _add(binds, links, folder)
    if sys.prefix == sys.base_prefix:
        return str(real)
    _add(binds, links, Path(sys.prefix) / "pyvenv.cfg")
    if sys.executable != str(real):
        links[sys.executable] = str(real)
    return sys.executable


def _add(binds: dict[str, str], links: dict[str, str], path: Path) -> None:
    """Unless it is there already, inside a folder that is bound or behind a link."""
    if not path.exists() or _covered(binds, path) or any(path.is_relative_to(link) for link in links):
        return
    binds[str(path)] = str(path.resolve())


def _covered(binds: dict[str, str], path: Path) -> bool:
    for dest, source in binds.items():
        if path.is_relative_to(dest) and path.resolve() == (Path(source) / path.relative_to(dest)).resolve():
            return path.resolve().is_relative_to(source)
    return False


def _installed_folders() -> list[Path]:
    return [Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]


def _base_folders(base: Path) -> list[Path]:
    """Where packages lie inside the trees that are bound anyway."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    roots = {base / "lib" / version, base.resolve() / "lib" / version, Path("/usr/lib/python3")}
    roots |= {Path("/usr/lib") / version, Path("/usr/local/lib") / version}
    return sorted(root / name for root in roots for name in ("site-packages", "dist-packages"))


def _environment(program: str, *, packages: bool) -> dict[str, str]:
    env = {
        "PATH": f"{Path(program).parent}:/usr/bin:/bin",
        "HOME": FOLDER,
        "TMPDIR": f"{BOX}/tmp",  # noqa: S108
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        # A library that starts a thread a core would meet the process limit on a large machine.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }
    user_site = site.getusersitepackages()
    if packages and user_site in sys.path:
        env["PYTHONUSERBASE"] = site.getuserbase()
    else:
        env["PYTHONNOUSERSITE"] = "1"
    return env
