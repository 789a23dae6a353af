"""The benchmarks are run by hand and rarely: what they import of skep must still be there."""

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").rglob("*.py"))


def is_there(module, name):
    """A name of it, or a module below it that nobody has loaded yet."""
    return hasattr(module, name) or (hasattr(module, "__path__") and find_spec(f"{module.__name__}.{name}") is not None)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(script):
    """Two of them could not be started for weeks after a function they used had gone."""
    found = [node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.ImportFrom)]
    for node in found:
        if node.module and node.module.split(".")[0] == "skep":
            module = importlib.import_module(node.module)
            missing = [alias.name for alias in node.names if not is_there(module, alias.name)]
            assert not missing, f"{node.module} has no {', '.join(missing)}"
