"""mutants: the answer's tests against the right implementation and against faulty ones, with pytest.

One process a variant, forked from one that has pytest loaded; the module under test is always ours.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

from .blocks import chosen, testing
from .link import Link, Report
from .sources import Unit, is_installed, parsed
from .worker import Broken, Say, described

_OPTIONS = ("-q", "-p", "no:cacheprovider", "--assert=plain", "--rootdir=.", "--continue-on-collection-errors")


def look(job: dict[str, Any], link: Link, report: Report) -> None:
    values = job["values"]
    must, may = dict(values["must"]), dict(values.get("may", {}))
    variants = [values["right"], *must.values(), *may.values()]
    names = {key: values[key] for key in ("module", "entry_point")}
    link.send({"blocks": job["blocks"], "variants": variants, **names})
    report.note = link.receive().get("note", "")
    right = link.receive()
    passed, failed = right["passed"], right["failed"]
    fewest = values["fewest_tests"]
    report.check(f"there are at least {fewest} tests", passed + len(failed) >= fewest, f"{passed + len(failed)}")
    report.check("they pass on the right implementation", not failed and passed > 0, failed[0] if failed else "none")
    for name in must:
        told = link.receive()
        report.check(f"they fail on: {name}", bool(told["failed"]), "they pass all the same")
    caught = sum(bool(link.receive()["failed"]) for _ in may)
    if may:
        report.check(f"they fail on {caught} of {len(may)} subtle faults", caught == len(may), decides=False)


def try_out(job: dict[str, Any], say: Say) -> None:
    module, entry_point = job["module"], job["entry_point"]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    Path("nothing").mkdir()
    pytest.main([*_OPTIONS, "nothing"])  # loads all of pytest, once for all variants
    folders = [Path(f"variant{number}").absolute() for number in range(len(job["variants"]))]
    for folder, variant in zip(folders, job["variants"], strict=True):
        folder.mkdir()
        (folder / f"{module}.py").write_text(variant, encoding="utf-8")
    text, note = _chosen(job["blocks"], module, entry_point, folders[0])
    say(note=note)
    code = prepared(text, module, entry_point)
    for number, folder in enumerate(folders):
        (folder / "test_answer.py").write_text(code, encoding="utf-8", errors="surrogateescape")
        say(**_tried(folder, "-x" if number else ""))


def _chosen(blocks: list[str], module: str, entry_point: str, folder: Path) -> tuple[str, str]:
    """Blocks that would only run something, such as pytest, are no tests and are not tried either."""
    if any(map(testing, blocks)):
        blocks = [code for code in blocks if testing(code) or not _only_runs(code)]
    sys.path.insert(0, str(folder))
    try:
        return chosen(blocks, testing, prepared=lambda code: prepared(code, module, entry_point))
    finally:
        sys.path.remove(str(folder))


def _only_runs(code: str) -> bool:
    """`pytest.main()` in the tests' own file would run them inside themselves."""
    tree = parsed(code)
    if tree is None or any(isinstance(node, Unit) for node in tree.body):
        return False
    calls = [node.value for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    names = [getattr(call.func, "attr", getattr(call.func, "id", "")) for call in calls]
    return len(calls) == len(tree.body) or not {"main", "run", "system", "exit"}.isdisjoint(names)


def _tried(folder: Path, *options: str) -> dict[str, Any]:
    """How many passed, and what the others said. One failure is enough to know a mutant."""
    told, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(told)
            os.write(telling, json.dumps(_run(folder, *options)).encode())
        finally:
            os._exit(0)
    os.close(telling)
    with os.fdopen(told, "rb") as pipe:
        said = pipe.read(1 << 20)
    os.waitpid(pid, 0)
    try:
        found = json.loads(said)
        return {"passed": int(found["passed"]), "failed": [str(one) for one in found["failed"]]}
    except (ValueError, KeyError, TypeError):
        return {"passed": 0, "failed": ["the tests ended pytest's process"]}


def _run(folder: Path, *options: str) -> dict[str, Any]:
    import pytest

    os.chdir(folder)
    sys.path.insert(0, str(folder))
    watching = Watching()
    status = pytest.main([*_OPTIONS, *filter(None, options), "test_answer.py"], plugins=[watching])
    if status not in (0, 1, 2, 5) and not watching.failed:
        watching.failed.append(f"pytest ended with status {int(status)}")
    return {"passed": watching.passed, "failed": watching.failed[:200]}


class Watching:
    """A plugin of pytest that counts. A skipped test, or one that is expected to fail, is no test here."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            said = getattr(getattr(report.longrepr, "reprcrash", None), "message", "") or f"error in {report.when}"
            self.failed.append(f"{report.nodeid.partition('::')[2]}: {' '.join(str(said).split())}"[:200])
        elif report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self.passed += 1

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            said = lines[-1].removeprefix("E ").strip() if lines else "cannot be collected"
            self.failed.append(said[:200])


def prepared(code: str, module: str, entry_point: str) -> str:
    """Without a copy of the function, and with its import from our module, wherever the answer took it from."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Broken(described(error)) from None
    tree = ast.fix_missing_locations(Cleaned(module, entry_point).visit(tree))
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    rest = [node for node in tree.body if node not in future]
    ours = ast.ImportFrom(module, [ast.alias(entry_point)], 0)
    return ast.unparse(ast.fix_missing_locations(ast.Module([*future, ours, *rest], [])))


class Cleaned(ast.NodeTransformer):
    def __init__(self, module: str, entry_point: str) -> None:
        self._module = module
        self._entry_point = entry_point

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return ast.Pass() if node.name == self._entry_point else node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.stmt:
        return ast.Pass() if node.name == self._entry_point else node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        if node.module == self._module or not any(alias.name == self._entry_point for alias in node.names):
            return node
        node.module, node.level = self._module, 0
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        """`import shop` of a module that is not there means ours."""
        return [self._imported(alias) for alias in node.names]

    def _imported(self, alias: ast.alias) -> ast.stmt:
        if alias.name == self._module or is_installed(alias.name) or "." in alias.name:
            return ast.Import([alias])
        return ast.Import([ast.alias(self._module, alias.asname or alias.name)])
