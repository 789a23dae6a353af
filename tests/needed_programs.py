"""What a test may need beyond the README's Python, make and C compiler, and a PATH without it for
all other tests.

A test says so by `@pytest.mark.needs("git")`: where the program is missing, the test is left out.
Each test that does not say so runs on a PATH without the programs below, so that a furnished
machine finds the same as a bare one."""

import os
from functools import cache
from pathlib import Path
from shutil import which

from skep.errors import UserError
from skep.sandbox.runner import how_to_install, open_sandbox

BROWSERS = {"chromium", "chromium-browser", "google-chrome"}
COMPILERS = {"c++", "g++", "clang", "clang++", "cargo", "cmake", "go", "nvcc", "rustc"}
OTHERS = {"bwrap", "curl", "git", "node", "npm", "npx", "nvidia-smi"}
UNASKED = BROWSERS | COMPILERS | OTHERS


def bare_path(path, folder, hidden=UNASKED):
    """Return this PATH without the hidden programs.

    `folder` gets links to what stands beside them.
    """
    places = {Path(name).resolve(): name for name in path.split(os.pathsep) if may_look_into(name)}
    for number, place in enumerate(places):
        if any((place / program).exists() for program in hidden):
            places[place] = linked_without(hidden, place, folder / str(number))
    return os.pathsep.join(places.values())


def may_look_into(name):
    """Return whether this user can read the folder: a PATH of another user may name folders of
    that user's.
    """
    # Path.is_dir raises where it may not look.
    is_folder = os.path.isdir(name)  # noqa: PTH112
    return is_folder and os.access(name, os.R_OK | os.X_OK)


def linked_without(hidden, place, folder):
    folder.mkdir(parents=True)
    for program in place.iterdir():
        if program.name not in hidden:
            (folder / program.name).symlink_to(program)
    return str(folder)


@cache
def lack_of(program):
    """Return what is missing and the command that installs it.

    None: the program is here and works.
    """
    if program == "bwrap":
        return lack_of_sandbox()
    if which(program):
        return None
    return f"no program `{program}` on PATH; {how_to_install(program)}"


def lack_of_sandbox():
    """A bubblewrap that is here may still not be allowed to work."""
    try:
        open_sandbox().close_now()
    except UserError as error:
        return f"{error.message}; {error.hint}"
    return None
