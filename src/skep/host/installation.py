"""How skep itself was installed: what is added to it goes into the environment that runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

UV_TOOL_MARK = "uv-receipt.toml"
PIPX_MARK = "pipx_metadata.json"
MODULE_OF_EXTRA = {"mcp": "mcp", "quality": "aiofiles", "ray": "ray"}


def is_installed(module: str) -> bool:
    return find_spec(module) is not None


def extra_hint(
    extra: str,
    *,
    environment: str = sys.prefix,
    python: str = sys.executable,
    has: Callable[[str], bool] = is_installed,
) -> str:
    """Return how to add an extra of skep to the environment that it runs in.

    uv and pipx make the environment anew, so that the present extras are named too.
    """
    extras = [name for name, module in MODULE_OF_EXTRA.items() if name == extra or has(module)]
    interpreter = shlex.quote(python)
    if (Path(environment) / UV_TOOL_MARK).exists():
        command = f"uv tool install --reinstall '.[{','.join(extras)}]'"
    elif (Path(environment) / PIPX_MARK).exists():
        command = f"pipx install --force '.[{','.join(extras)}]'"
    elif has("pip"):
        command = f"{interpreter} -m pip install '.[{extra}]'"
    else:
        command = f"uv pip install --python {interpreter} '.[{extra}]'"
    return f"in skep's folder: {command}"
