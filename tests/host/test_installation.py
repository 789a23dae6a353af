"""The command that adds to skep names the environment that runs, not the one of the shell."""

import sys

import pytest

from skep.host.installation import extra_hint


@pytest.mark.parametrize(
    ("mark", "modules", "command"),
    [
        ("uv-receipt.toml", (), "uv tool install --reinstall '.[mcp]'"),
        ("uv-receipt.toml", ("aiofiles",), "uv tool install --reinstall '.[mcp,quality]'"),
        ("pipx_metadata.json", ("ray",), "pipx install --force '.[mcp,ray]'"),
        ("pyvenv.cfg", ("ray",), "uv pip install --python '/a b/python' '.[mcp]'"),
        ("pyvenv.cfg", ("pip", "ray"), "'/a b/python' -m pip install '.[mcp]'"),
    ],
    ids=[
        "uv tool",
        "uv tool with an extra",
        "pipx",
        "an environment of uv",
        "an environment with pip",
    ],
)
def test_an_extra_goes_where_skep_is(tmp_path, mark, modules, command):
    """`pip install` beside a `uv tool` put it where skep did not look."""
    (tmp_path / mark).touch()
    place = {"environment": str(tmp_path), "python": "/a b/python"}
    hint = extra_hint("mcp", **place, has=modules.__contains__)
    assert hint == f"in skep's folder: {command}"


def test_here_it_names_this_python():
    assert (
        extra_hint("quality") == f"in skep's folder: {sys.executable} -m pip install '.[quality]'"
    )
