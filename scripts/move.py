# ruff: noqa
"""Move and merge modules and rename symbols over the whole tree, from one map file.

python scripts/move.py MAP.toml [--dry-run]

[modules]      "skep.engines.crew" = "skep.supervisor.replica_set"     several with one target: merged, in this order
[symbols]      "skep.engines.crew.Crew" = "ReplicaSet"                 top-level names, by their old module
[attributes]   "enlist" = "add"                                        methods and fields: only where one class defines it
[docstrings]   "skep.supervisor.replica_set" = "The replicas of a hive."
"""

import ast
import builtins
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path.cwd()
CODE = ["src", "tests", "benchmarks", "scripts"]
TEXTS = ["*.md", "*.toml", "*.yml", "*.yaml", "Makefile", "*.sh", "*.service", "*.cfg"]


def python_files():
    for folder in CODE:
        yield from sorted((ROOT / folder).rglob("*.py"))


def module_of(path):
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def path_of(module):
    base = ROOT / "src" / Path(*module.split("."))
    return base / "__init__.py" if base.is_dir() and not base.with_suffix(".py").exists() else base.with_suffix(".py")


@dataclass(eq=False)
class Scope:
    kind: str
    parent: "Scope | None"
    bound: set = field(default_factory=set)
    globals: set = field(default_factory=set)

    def find(self, name):
        scope, inner = self, True
        while scope is not None:
            if name in scope.globals:
                while scope.parent:
                    scope = scope.parent
                return scope
            if name in scope.bound and (inner or scope.kind != "class"):
                return scope
            scope, inner = scope.parent, False
        return None


class Names(ast.NodeVisitor):
    """Every use of a name with the scope it stands in: (name, node, scope, kind)."""

    def __init__(self, tree):
        self.top = Scope("module", None)
        self.uses = []
        self.scope = self.top
        self.visit(tree)

    def use(self, name, node, kind):
        self.uses.append((name, node, self.scope, kind))

    def visit_Name(self, node):
        if not isinstance(node.ctx, ast.Load):
            self.scope.bound.add(node.id)
        self.use(node.id, node, "name")

    def visit_Global(self, node):
        self.scope.globals.update(node.names)
        self.use(node.names[0], node, "global")

    def _inside(self, kind, go):
        self.scope = Scope(kind, self.scope)
        go()
        self.scope = self.scope.parent

    def visit_FunctionDef(self, node):
        self.scope.bound.add(node.name)
        self.use(node.name, node, "def")
        for each in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if each:
                self.visit(each)
        args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        for arg in args:
            if arg and arg.annotation:
                self.annotation(arg.annotation)
        if node.returns:
            self.annotation(node.returns)

        def body():
            for p in getattr(node, "type_params", ()):
                self.scope.bound.add(p.name)
            for arg in args:
                if arg:
                    self.scope.bound.add(arg.arg)
            for statement in node.body:
                self.visit(statement)

        self._inside("function", body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node):
        for each in (*node.args.defaults, *node.args.kw_defaults):
            if each:
                self.visit(each)

        def body():
            for arg in [
                *node.args.posonlyargs,
                *node.args.args,
                *node.args.kwonlyargs,
                node.args.vararg,
                node.args.kwarg,
            ]:
                if arg:
                    self.scope.bound.add(arg.arg)
            self.visit(node.body)

        self._inside("function", body)

    def visit_ClassDef(self, node):
        self.scope.bound.add(node.name)
        self.use(node.name, node, "def")
        for each in (*node.decorator_list, *node.bases, *(k.value for k in node.keywords)):
            self.visit(each)
        self._inside("class", lambda: [self.visit(s) for s in node.body])

    def _comprehension(self, node):
        self.visit(node.generators[0].iter)

        def body():
            for number, part in enumerate(node.generators):
                if number:
                    self.visit(part.iter)
                self.visit(part.target)
                for test in part.ifs:
                    self.visit(test)
            for name in ("elt", "key", "value"):
                if getattr(node, name, None) is not None:
                    self.visit(getattr(node, name))

        self._inside("function", body)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_AnnAssign(self, node):
        self.visit(node.target)
        self.annotation(node.annotation)
        if node.value:
            self.visit(node.value)

    def annotation(self, node):
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                self.use(each.value, each, "string")
        self.visit(node)

    def visit_ExceptHandler(self, node):
        if node.name:
            self.scope.bound.add(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node):
        if node.name:
            self.scope.bound.add(node.name)
        self.generic_visit(node)

    def visit_MatchStar(self, node):
        if node.name:
            self.scope.bound.add(node.name)

    def visit_Import(self, node):
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            self.scope.bound.add(name)
            self.use(name, (node, alias), "import")

    def visit_ImportFrom(self, node):
        for alias in node.names:
            name = alias.asname or alias.name
            self.scope.bound.add(name)
            self.use(name, (node, alias), "from")

    def visit_Call(self, node):
        # cast("Type", x) has a string that is an annotation
        if (
            isinstance(node.func, ast.Name)
            and node.func.id == "cast"
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            self.use(node.args[0].value, node.args[0], "string")
        self.generic_visit(node)


class File:
    def __init__(self, path, text=None, module=None):
        self.path = path
        self.text = path.read_text() if text is None else text
        self.module = module or (module_of(path) if path.is_relative_to(ROOT / "src") else None)
        self._parse()

    def _parse(self):
        self.tree = ast.parse(self.text)
        self.names = Names(self.tree)
        self.lines = self.text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.edits = []

    def offset(self, lineno, col):
        line = self.lines[lineno - 1]
        return self.starts[lineno - 1] + len(line.encode()[:col].decode())

    def span(self, node):
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def edit(self, start, end, new):
        self.edits.append((start, end, new))

    def apply(self):
        if not self.edits:
            return False
        out, at = [], 0
        for start, end, new in sorted(set(self.edits)):
            if start < at:
                raise SystemExit(f"{self.path}: edits overlap at {self.text[start:end]!r}")
            out += [self.text[at:start], new]
            at = end
        self.text = "".join([*out, self.text[at:]])
        self._parse()
        return True

    def rename(self, scope, old, new):
        """Rename what `old` means in `scope` (uses only there and below)."""
        for name, node, where, kind in self.names.uses:
            if kind == "string":
                if re.search(rf"\b{old}\b", name) and where.find(old) is scope:
                    start, end = self.span(node)
                    self.edit(start, end, re.sub(rf"\b{old}\b", new, self.text[start:end]))
                continue
            if kind == "global" and old in node.names:
                start, end = self.span(node)
                self.edit(start, end, re.sub(rf"\b{old}\b", new, self.text[start:end]))
                continue
            if name != old or where.find(old) is not scope:
                continue
            hit = where.find(new)
            if hit is not None:
                print(f"  ! {self.path.relative_to(ROOT)}: `{new}` is bound already where `{old}` becomes it")
            if kind == "name":
                start, end = self.span(node)
                self.edit(start, end, new)
            elif kind == "def":
                start = self.offset(node.lineno, node.col_offset)
                match = re.compile(rf"(?:async\s+def|def|class)\s+({old})\b").match(self.text, start)
                self.edit(match.start(1), match.end(1), new)


def rename_symbols(files, symbols):
    by_module = {}
    for name, new in symbols.items():
        module, _, old = name.rpartition(".")
        by_module.setdefault(module, {})[old] = new
    for each in files:
        if each.module in by_module:
            for old, new in by_module[each.module].items():
                if old not in each.names.top.bound:
                    print(f"  ! {each.module} has no `{old}`")
                each.rename(each.names.top, old, new)
        aliases = {}
        for name, node, scope, kind in list(each.names.uses):
            if kind == "from":
                statement, alias = node
                renamed = by_module.get(statement.module, {}).get(alias.name)
                if renamed and each.module != statement.module:
                    start, end = each.span(alias)
                    if alias.asname:
                        each.edit(start, end, renamed if alias.asname == renamed else f"{renamed} as {alias.asname}")
                    else:
                        each.edit(start, end, renamed)
                        each.rename(scope, alias.name, renamed)
                if f"{statement.module}.{alias.name}" in by_module:
                    aliases[name, id(scope)] = by_module[f"{statement.module}.{alias.name}"]
            elif kind == "import":
                _, alias = node
                if alias.asname and alias.name in by_module:
                    aliases[name, id(scope)] = by_module[alias.name]
        if aliases:
            places = {id(node): scope for _, node, scope, kind in each.names.uses if kind == "name"}
            for node in ast.walk(each.tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node.value) in places:
                    scope = places[id(node.value)].find(node.value.id)
                    renamed = aliases.get((node.value.id, id(scope)), {}).get(node.attr)
                    if renamed:
                        _, end = each.span(node)
                        each.edit(end - len(node.attr), end, renamed)
        each.apply()


def rename_attributes(files, attributes):
    for each in files:
        for node in ast.walk(each.tree):
            if isinstance(node, ast.Attribute) and node.attr in attributes:
                _, end = each.span(node)
                each.edit(end - len(node.attr), end, attributes[node.attr])
            elif isinstance(node, ast.ClassDef):
                for item in node.body:
                    if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name in attributes:
                        start = each.offset(item.lineno, item.col_offset)
                        match = re.compile(rf"(?:async\s+def|def)\s+({item.name})\b").match(each.text, start)
                        each.edit(match.start(1), match.end(1), attributes[item.name])
                    elif (
                        isinstance(item, ast.AnnAssign)
                        and isinstance(item.target, ast.Name)
                        and item.target.id in attributes
                    ):
                        start, end = each.span(item.target)
                        each.edit(start, end, attributes[item.target.id])
            elif isinstance(node, ast.keyword) and node.arg in attributes:
                start = each.offset(node.lineno, node.col_offset)
                each.edit(start, start + len(node.arg), attributes[node.arg])
        each.apply()


def is_import(node):
    return isinstance(node, ast.Import | ast.ImportFrom)


def is_typing_block(node):
    return (
        isinstance(node, ast.If)
        and "TYPE_CHECKING" in ast.unparse(node.test)
        and all(map(is_import, node.body))
        and not node.orelse
    )


def is_main(node):
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def inline_module_uses(part, members):
    """`pool.choose` becomes `choose` where `pool` is merged into the same module."""
    places = {id(node): scope for _, node, scope, kind in part.names.uses if kind == "name"}
    modules = {}
    for name, node, scope, kind in part.names.uses:
        if kind == "from" and f"{node[0].module}.{node[1].name}" in members:
            modules[name, id(scope)] = True
        elif kind == "import" and node[1].asname and node[1].name in members:
            modules[name, id(scope)] = True
    for node in ast.walk(part.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node.value) in places:
            scope = places[id(node.value)].find(node.value.id)
            if (node.value.id, id(scope)) in modules:
                if places[id(node.value)].find(node.attr) not in (None, part.names.top):
                    print(f"  ! {part.module}: local `{node.attr}` hides what was `{node.value.id}.{node.attr}`")
                start, end = part.span(node)
                part.edit(start, end, node.attr)
    part.apply()


def unalias(part, members):
    """`from a import X as Y` between merged parts: Y is called X."""
    for name, node, scope, kind in list(part.names.uses):
        if kind == "from" and node[0].module in members and node[1].asname and node[1].asname != node[1].name:
            part.rename(scope, name, node[1].name)
            part.edit(*part.span(node[1]), node[1].name)
            part.apply()
            return unalias(part, members)
    return None


def bindings(part, members):
    """Top-level names: what each stands for."""
    out = {}
    for node in part.tree.body:
        for each in node.body if is_typing_block(node) else [node]:
            if isinstance(each, ast.ImportFrom):
                for alias in each.names:
                    out[alias.asname or alias.name] = (each.module, alias.name)
            elif isinstance(each, ast.Import):
                for alias in each.names:
                    out[alias.asname or alias.name.split(".")[0]] = (
                        "import",
                        alias.name if alias.asname else alias.name.split(".")[0],
                    )
    defined = {name for name, _, scope, kind in part.names.uses if scope is part.names.top and kind in ("def",)}
    defined |= {
        name
        for name, node, scope, kind in part.names.uses
        if scope is part.names.top and kind == "name" and not isinstance(node.ctx, ast.Load)
    }
    for name in defined:
        out[name] = (part.module, name)
    return out


def definition_text(part, name):
    for node in part.tree.body:
        if getattr(node, "name", None) == name:
            return ast.unparse(node)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                return ast.unparse(node)
    return None


def settle_collisions(parts, members, files, symbols_more):
    """Rename what two parts call alike; drop what is the same in both."""
    taken, dropped = {}, set()
    for part in parts:
        own = bindings(part, members)
        for name, origin in own.items():
            if name.startswith("__") and name.endswith("__"):
                continue
            if name in dir(builtins) and origin[0] == part.module:
                print(f"  ! {part.module} defines the builtin `{name}`")
            if name not in taken or taken[name][0] == origin:
                taken.setdefault(name, (origin, part))
                continue
            first_origin, first = taken[name]
            if origin[0] == part.module and first_origin[0] == first.module:
                same = definition_text(part, name)
                if same and same == definition_text(first, name):
                    dropped.add((part.module, name))
                    continue
            if origin[0] == part.module:
                stem = part.module.rsplit(".", 1)[1]
                new = f"_{stem}_{name.lstrip('_')}" if name.startswith("_") else None
                if new is None:
                    print(f"  !! public collision: {part.module}.{name} and {first_origin}")
                    continue
                print(f"  ~ {part.module}.{name} -> {new}")
                symbols_more[f"{part.module}.{name}"] = new
            elif first_origin[0] == first.module:
                if name.startswith("_"):
                    stem = first.module.rsplit(".", 1)[1]
                    symbols_more[f"{first.module}.{name}"] = f"_{stem}_{name.lstrip('_')}"
                    print(f"  ~ {first.module}.{name} (hides an import of {part.module})")
                else:
                    print(f"  !! {first.module}.{name} is defined, {part.module} imports another: {origin}")
            else:
                print(f"  !! imports differ: {name} is {first_origin} in {first.module}, {origin} in {part.module}")
    return dropped


def order(parts):
    """Those that others import first."""
    modules = {p.module: p for p in parts}
    done, out = set(), []

    def walk(part, path=()):
        if part.module in done or part.module in path:
            return
        for node in part.tree.body:
            if isinstance(node, ast.ImportFrom):
                for target in (node.module, *(f"{node.module}.{a.name}" for a in node.names)):
                    if target in modules:
                        walk(modules[target], (*path, part.module))
        done.add(part.module)
        out.append(part)

    for part in parts:
        walk(part)
    return out


def cut_internal_imports(part, members):
    """Drop imports, anywhere, of what will be in the same module."""
    for node in ast.walk(part.tree):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        gone = [a for a in node.names if node.module in members or f"{node.module}.{a.name}" in members]
        if not gone:
            continue
        left = [ast.unparse(a) for a in node.names if a not in gone]
        start, end = part.span(node)
        if left:
            part.edit(start, end, f"from {node.module} import {', '.join(left)}")
        else:
            line_start = part.starts[node.lineno - 1]
            line_end = part.starts[node.end_lineno]
            alone = any(
                isinstance(o, ast.AST) and getattr(o, "body", None) == [node]
                for o in ast.walk(part.tree)
                if not isinstance(o, ast.Lambda)
            )
            if alone:
                part.edit(start, end, "pass")
            else:
                part.edit(line_start, line_end, "")
    part.apply()


def merged_text(target, parts, members, dropped, docstring):
    imports, bodies, mains = [], [], []
    first_doc = None
    ordered = order(parts)
    for part in parts:
        cut_internal_imports(part, members)
    for part in ordered:
        doc = ast.get_docstring(part.tree, clean=False)
        first_doc = first_doc or (doc if part.module in (target, parts[0].module) else None)
        cuts = []
        for number, node in enumerate(part.tree.body):
            start = part.starts[node.lineno - 1]
            end = part.starts[node.end_lineno]
            if number == 0 and doc is not None:
                cuts.append((start, end))
            elif is_import(node) or is_typing_block(node):
                imports.append(part.text[start:end])
                cuts.append((start, end))
            elif is_main(node):
                mains.append(part.text[start:end])
                cuts.append((start, end))
            else:
                name = getattr(node, "name", None)
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    t = node.targets[0] if isinstance(node, ast.Assign) else node.target
                    name = getattr(t, "id", None)
                if (part.module, name) in dropped:
                    decorators = getattr(node, "decorator_list", [])
                    begin = part.starts[min([node.lineno, *(d.lineno for d in decorators)]) - 1]
                    cuts.append((begin, end))
        text, at = [], 0
        for start, end in cuts:
            text.append(part.text[at:start])
            at = end
        bodies.append("".join([*text, part.text[at:]]).strip("\n"))
    doc = docstring or first_doc or "TODO"
    head = f'"""{doc}"""\n\n' + "".join(imports) + "\n\n"
    return head + "\n\n\n".join(b for b in bodies if b) + "\n" + ("\n\n" + "\n".join(mains) if mains else "")


def move_references(files, moves):
    """`from skep.a import b` for a moved module b; dotted names are replaced as text."""
    for each in files:
        for name, node, scope, kind in list(each.names.uses):
            if kind != "from" or not node[0].module:
                continue
            old = f"{node[0].module}.{node[1].name}"
            if old not in moves:
                continue
            package, _, stem = moves[old].rpartition(".")
            statement, alias = node
            taken = any(scope_.find(stem) is not None for n, _, scope_, _ in each.names.uses)
            keep = alias.asname or (alias.name if taken and stem != alias.name else None)
            line = f"from {package} import {stem}" + (f" as {keep}" if keep and keep != stem else "")
            start, end = each.span(statement)
            others = [ast.unparse(a) for a in statement.names if f"{statement.module}.{a.name}" not in moves]
            indent = " " * statement.col_offset
            lines = [f"from {statement.module} import {', '.join(others)}"] if others else []
            if not keep and stem != alias.name:
                each.rename(scope, alias.name, stem)
            pending = each.__dict__.setdefault("pending", {})
            pending.setdefault((start, end, indent, tuple(lines)), []).append(line)
        for (start, end, indent, lines), new in each.__dict__.pop("pending", {}).items():
            each.edits = [e for e in each.edits if not (start <= e[0] and e[1] <= end)]
            each.edit(start, end, f"\n{indent}".join([*lines, *new]))
        each.apply()


def replace_dotted(text, moves, pattern):
    return pattern.sub(lambda m: moves[m.group(0)], text)


def main():
    table = tomllib.loads(Path(sys.argv[1]).read_text())
    dry = "--dry-run" in sys.argv
    moves, symbols = table.get("modules", {}), table.get("symbols", {})
    files = [File(p) for p in python_files()]
    known = {f.module: f for f in files if f.module}
    for old in moves:
        if old not in known:
            raise SystemExit(f"no module {old}")
    for name in symbols:
        if name.rpartition(".")[0] not in known:
            raise SystemExit(f"no module of {name}")
    rename_symbols(files, symbols)
    if table.get("attributes"):
        rename_attributes(files, table["attributes"])
    targets = {}
    for old, new in moves.items():
        targets.setdefault(new, []).append(old)
    for new, olds in targets.items():
        if new in known and new not in olds:
            olds.insert(0, new)
    merges = {new: olds for new, olds in targets.items() if len(olds) > 1}
    more, dropped = {}, {}
    for new, olds in merges.items():
        members = set(olds)
        print(f"{new} <- {', '.join(o.rsplit('.', 1)[1] for o in olds)}")
        for old in olds:
            inline_module_uses(known[old], members)
            unalias(known[old], members)
        dropped[new] = settle_collisions([known[o] for o in olds], members, files, more)
    if dry:
        return
    rename_symbols(files, more)
    written = {}
    for new, olds in merges.items():
        written[new] = merged_text(
            new, [known[o] for o in olds], set(olds), dropped[new], table.get("docstrings", {}).get(new)
        )
    gone = set()
    for new, olds in targets.items():
        path = ROOT / "src" / Path(*new.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        init = path.parent / "__init__.py"
        if not init.exists():
            init.write_text("")
        text = written.get(new, known[olds[0]].text)
        if new not in merges and table.get("docstrings", {}).get(new):
            doc = known[olds[0]].tree.body[0]
            start, end = known[olds[0]].span(doc)
            text = text[:start] + f'"""{table["docstrings"][new]}"""' + text[end:]
        for old in olds:
            source = known[old].path
            if source != path:
                subprocess.run(["git", "rm", "-q", "--cached", str(source)], check=True)
                source.unlink()
                gone.add(source)
        files = [f for f in files if f.module not in olds]
        files.append(File(path, text, new))
    move_references(files, moves)
    pattern = re.compile("|".join(rf"{re.escape(m)}(?![\w])" for m in sorted(moves, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w.])(?:{pattern.pattern})") if moves else None
    slashes = {}
    for old, new in moves.items():
        slashes[old.removeprefix("skep.").replace(".", "/") + ".py"] = (
            new.removeprefix("skep.").replace(".", "/") + ".py"
        )
        slashes[old.replace(".", "/") + ".py"] = new.replace(".", "/") + ".py"
    slash = (
        re.compile(
            r"(?<![\w/.])(?:src/)?(?:" + "|".join(re.escape(s) for s in sorted(slashes, key=len, reverse=True)) + ")"
        )
        if moves
        else None
    )

    def slashed(match):
        text = match.group(0)
        head = "src/" if text.startswith("src/") else ""
        return head + slashes[text.removeprefix("src/")]

    for each in files:
        text = each.text
        if moves:
            text = replace_dotted(text, moves, pattern)
            text = slash.sub(slashed, text)
        if not each.path.exists() or text != each.path.read_text():
            each.path.write_text(text)
    for glob in TEXTS:
        for path in [
            *ROOT.glob(glob),
            *(p for d in ["docs", "tests", "benchmarks", "scripts", "src"] for p in (ROOT / d).rglob(glob)),
        ]:
            if path.name in ("CHANGELOG.md", Path(sys.argv[1]).name):
                continue
            text = path.read_text()
            new = slash.sub(slashed, replace_dotted(text, moves, pattern)) if moves else text
            for name, symbol in symbols.items():
                module, _, old = name.rpartition(".")
                place = moves.get(module, module)
                new = re.sub(rf"(?<![\w.]){re.escape(place)}\.{old}\b", f"{place}.{symbol}", new)
                if old[0].isupper():
                    new = re.sub(rf"`{old}(?=[`.(])", f"`{symbol}", new)
            if new != text:
                path.write_text(new)
    for folder in sorted({p.parent for p in gone}, reverse=True):
        rest = [p for p in folder.iterdir() if p.name != "__pycache__"] if folder.exists() else []
        if rest and all(p.name == "__init__.py" for p in rest) and not rest[0].read_text().strip():
            rest[0].unlink()
    subprocess.run([".venv/bin/ruff", "check", "-q", "--fix", "--select", "I,F401,F811", *CODE], check=False)
    subprocess.run([".venv/bin/ruff", "format", "-q", *CODE], check=False)


if __name__ == "__main__":
    main()
