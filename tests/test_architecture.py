"""The drawing in docs/architecture.md is the code: layers, no cycles, one sentence a package."""

import ast
import importlib
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "skep"

# From the top down. A package may import from the rows below its own; inside a row, `>` points to
# what may be imported.
LAYERS = [
    [{"__main__"}, {"cli"}, {"mcp_server", "web"}],
    [{"report"}],
    [{"swarm", "tuner", "monitor", "cluster"}],
    [{"quality"}, {"bench", "gateway", "supervisor"}, {"deploy"}],
    [
        {"engines", "store", "sandbox", "weights", "clients"},
        {"config"},
        {"wire", "host", "files"},
        {"paths"},
    ],
    [{"planner", "stats", "workload"}, {"catalog"}, {"units"}, {"errors"}],
    [{"__init__"}],
]
BESIDE = {
    "testing"
}  # imports only the values at the bottom, is imported by tests and by its own command line
PURE = {"catalog", "planner", "stats", "workload", "units", "errors"}
IMPURE_MODULES = {
    "socket",
    "asyncio",
    "threading",
    "subprocess",
    "time",
    "sqlite3",
    "http",
    "os",
    "tempfile",
}

RANK = {
    name: (row, place)
    for row, groups in enumerate(LAYERS)
    for place, group in enumerate(groups)
    for name in group
}


def modules():
    for path in sorted(SRC.rglob("*.py")):
        yield (
            path,
            ".".join(("skep", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(
                ".__init__"
            ),
        )


def piece(module):
    """`skep.gateway.proxy` → gateway; `skep` itself → __init__."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@cache
def imports(path):
    """Every imported module, wherever in the file it is imported, also in a program that stands in
    a text.
    """
    return tuple(_imports(path))


def _imports(path):
    lines = re.findall(
        r"^ *(from [\w.]+ import (?:\([^)]*\).*|.*)|import .*)$", path.read_text(), re.MULTILINE
    )
    for node in ast.parse("\n".join(lines)).body:  # a tenth of the time that the whole file takes
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module in ("skep", "skep.cli"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def known(module):
    if (SRC.parent / Path(*module.split("."))).with_suffix(".py").exists():
        return module
    return None


def test_imports_point_down():
    wrong = []
    for path, module in modules():
        importer = piece(module)
        for target in imports(path):
            if not target.startswith("skep") or target == "skep.__version__":
                continue
            imported = piece(target)
            if importer in BESIDE:
                below = imported in ("units", "errors", "__init__")
            else:
                below = RANK.get(imported, ()) > RANK.get(importer)
            if imported not in (importer, "__version__") and not below:
                wrong.append(f"{module} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_there_are_no_import_cycles():
    graph = {
        module: {
            target for target in imports(path) if target.startswith("skep.") and known(target)
        }
        - {module}
        for path, module in modules()
    }
    TopologicalSorter(graph).prepare()  # its error names the cycle


def test_pure_packages_touch_neither_clock_nor_disk_nor_network():
    wrong = [
        f"{module} imports {target}"
        for path, module in modules()
        if piece(module) in PURE
        for target in imports(path)
        if target.split(".")[0] in IMPURE_MODULES or target == "urllib.request"
    ]
    assert not wrong, "\n".join(wrong)


def test_a_record_that_never_changes_is_a_struct():
    """But options of commands, what runs in the sandbox, a field out of comparisons, and a key out
    of texts.
    """
    frozen = re.compile(r"^@dataclass\([^)]*frozen=True[^)]*\)\nclass (\w+)", re.MULTILINE)
    dataclasses = (
        frozen.findall(path.read_text())
        for path, module in modules()
        if piece(module) not in ("cli", "sandbox")
    )
    assert {name for names in dataclasses for name in names} == {
        "Device",
        "Geometry",
        "Command",
        "Webhook",
    }


def test_every_package_has_its_sentence_in_the_drawing():
    text = (ROOT / "docs" / "architecture.md").read_text()
    documented = set(re.findall(r"^    src/skep/(\w+)/  ", text, re.MULTILINE))
    assert documented == {path.name for path in SRC.iterdir() if (path / "__init__.py").exists()}


def test_every_symbol_named_in_the_design_notes_exists():
    """`skep.gateway.admission.Admission` in docs/*.md must be importable by that path."""
    wrong = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for name in set(re.findall(r"`(skep(?:\.\w+)+)`", page.read_text())):
            module, _, symbol = name.rpartition(".")
            if symbol in ("toml", "sqlite3"):
                continue  # a file of that name
            try:
                symbol_found = importlib.import_module(name)
            except ImportError:
                symbol_found = getattr(importlib.import_module(module), symbol, None)
            if symbol_found is None:
                wrong.append(f"{page.name}: {name}")
    assert not wrong, "\n".join(wrong)


def test_no_module_is_a_grab_bag():
    bags = {"utils", "util", "common", "helpers", "manager", "misc"}
    assert [module for path, module in modules() if path.stem in bags] == []
    # Look for a seam past 500.
    long = {module for path, module in modules() if len(path.read_text().splitlines()) > 800}
    assert long == set()
