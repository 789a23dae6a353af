"""The part of this machine that a script sees: the interpreter that runs skep, its libraries, and
the packages installed beside skep.
"""

from __future__ import annotations

import site
import sys
from dataclasses import dataclass, field
from pathlib import Path

BOX = "/box"  # the one place a script can write to: a tmpfs with a size
FOLDER = f"{BOX}/work"
UID = 1000  # inside; the launcher decides for whom it stands outside
LIBRARY_FOLDERS = ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/local/lib")
DATA_PATHS = ("/etc/ld.so.cache", "/usr/share/zoneinfo")
# Both count against the size of the box.
WRITABLE = {"/tmp": f"{BOX}/tmp", "/dev/shm": f"{BOX}/shm"}  # noqa: S108 - inside
LINKS = {
    **WRITABLE,
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}
ENVIRONMENT = "/environment"  # files of folders that a script can write to are shown below this


@dataclass(frozen=True, slots=True)
class ScriptView:
    """The part of this machine that a script sees. Keys are paths inside."""

    program: str
    binds: dict[str, str] = field(default_factory=dict)  # with the path outside
    links: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # with a text that is made up
    env: dict[str, str] = field(default_factory=dict)


def view() -> ScriptView:
    """Return a view with the interpreter that runs this, its libraries and the packages installed
    beside skep.

    All of it is read-only and at its own path, or below ENVIRONMENT where a script's own files
    would hide it. Nothing else of a home folder or of a checkout is there, even where they hold
    the interpreter. A line in a `.pth` file that leads elsewhere (an editable install) leads
    nowhere inside.
    """
    paths = ShownPaths()
    paths.add_system()
    paths.add_interpreter()
    paths.add_packages()
    program = paths.add_environment()
    return ScriptView(
        program,
        dict(sorted(paths.binds.items())),
        dict(sorted(paths.links.items())),
        paths.files,
        _variables(program),
    )


def path_inside(path: Path) -> Path:
    """Return where a script finds this path of the machine."""
    if any(path.is_relative_to(place) for place in (*WRITABLE, BOX)):
        return Path(f"{ENVIRONMENT}{path}")
    return path


class ShownPaths:
    """Gathers the paths of a view.

    A path that is visible already, inside a bound folder or behind a link, is not added again.
    """

    def __init__(self) -> None:
        self.binds: dict[str, str] = {}
        self.links = dict(LINKS)
        self.files: dict[str, str] = {}
        self._interpreter = Path(sys.executable).resolve()

    def add_system(self) -> None:
        for path in map(Path, LIBRARY_FOLDERS):
            if path.is_symlink():
                self.links[str(path)] = str(path.resolve())
            elif path.is_dir():
                self.binds[str(path)] = str(path)
        for path in map(Path, DATA_PATHS):
            self._add(path)

    def add_interpreter(self) -> None:
        """Add the interpreter, and its standard library at the paths where it looks for it."""
        if self._interpreter.is_relative_to("/nix/store"):
            self.binds["/nix/store"] = "/nix/store"
        base = Path(sys.base_prefix)
        for path in (base / "lib", base / "lib64", base.resolve() / "lib"):
            self._add(path)
        self._add(self._interpreter)
        self._add(base / "bin" / self._interpreter.name)

    def add_packages(self) -> None:
        for folder in map(Path, sys.path):
            if folder.name in ("site-packages", "dist-packages"):
                self._add(folder)

    def add_environment(self) -> str:
        """Add the virtual environment and return its program, which finds its packages by the
        files beside it.
        """
        interpreter = str(path_inside(self._interpreter))
        if sys.prefix == sys.base_prefix:
            return interpreter
        settings = Path(sys.prefix) / "pyvenv.cfg"
        if not self._is_bound(settings):
            self.files[str(path_inside(settings))] = _settings_inside(settings)
        program = Path(sys.executable)
        if program != self._interpreter and not self._is_bound(program):
            self.links[str(path_inside(program))] = interpreter
        return str(path_inside(program))

    def _add(self, path: Path) -> None:
        inside = path_inside(path)
        behind_link = any(inside.is_relative_to(link) for link in self.links)
        if path.exists() and not behind_link and not self._covers(path):
            self.binds[str(inside)] = str(path.resolve())

    def _is_bound(self, path: Path) -> bool:
        return any(path_inside(path).is_relative_to(bound) for bound in self.binds)

    def _covers(self, path: Path) -> bool:
        """Return whether a bound folder shows this path, and the file that it leads to."""
        inside = path_inside(path)
        target = path.resolve()
        for bound, source in self.binds.items():
            if inside.is_relative_to(bound):
                shown_path = (Path(source) / inside.relative_to(bound)).resolve()
                if shown_path == target:
                    return target.is_relative_to(source)
        return False


def _settings_inside(path: Path) -> str:
    """Return the text of a pyvenv.cfg, with the interpreter's folder as a script finds it."""
    lines = path.read_text().splitlines(keepends=True)
    for number, line in enumerate(lines):
        key, _, value = line.partition("=")
        if key.strip().lower() == "home":
            lines[number] = f"home = {path_inside(Path(value.strip()))}\n"
    return "".join(lines)


def _variables(program: str) -> dict[str, str]:
    env = {
        "PATH": f"{Path(program).parent}:/usr/bin:/bin",
        "HOME": FOLDER,
        "TMPDIR": WRITABLE["/tmp"],  # noqa: S108
        # A library that starts a thread a core would meet the process limit on a large machine.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }
    base = Path(sys.base_prefix)
    if path_inside(base) != base:
        # An interpreter that was built for its own path looks for its library there.
        env["LD_LIBRARY_PATH"] = f"{path_inside(base)}/lib"
    if site.getusersitepackages() in sys.path:
        env["PYTHONUSERBASE"] = str(path_inside(Path(site.getuserbase())))
    else:
        env["PYTHONNOUSERSITE"] = "1"
    return env
