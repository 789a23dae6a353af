"""What people and programs see of skep stays as tests/surface/ has it, which `make surface`
writes:

    json.txt     keys of the documents that `--json` prints, by the commands of commands.txt
    against a fake engine routes.txt   HTTP routes of the gateway (its own, and what it passes on
    or refuses) and of the dashboard mcp.json     names and input schemas of the MCP tools
    errors.txt   error codes of the gateway with their statuses and types; exit codes of the
    command line metrics.txt  names and labels of the metrics config.txt   keys of skep.toml,
    keys.toml and presets; environment variables views.txt    columns of the SQL views of the store
    help.txt     the help pages of all commands, and other names of commands and options

tests/store/versions/ is the snapshot of the store.
"""

import asyncio
import difflib
import json
import os
import re
import shlex
from collections import defaultdict
from pathlib import Path
from typing import get_args

import click
import msgspec
import pytest

from skep.testing.process import FakeEngine

ROOT = Path(__file__).parent.parent
SURFACE = ROOT / "tests" / "surface"
OF_THE_MACHINE = {
    ".probe.host",
    ".probe.versions",
}  # objects whose keys another machine need not have
SERVED = '[gateway]\nport = 0\n[[serve]]\nmodel = "fake-model"\nengine = "fake"\nslots = 2\n'


def json_documents(skep, folder):
    """`COMMAND PATH: KEYS` for every object; those of a list share a path. Later commands show
    what earlier stored.
    """
    (folder / "skep.toml").write_text(SERVED)
    (folder / "tasks.jsonl").write_text('{"id": "t1", "prompt": "hi", "max_tokens": 4}\n')
    skep("key", "add", "laptop", check=0)
    with FakeEngine(slots=2, token_ms=2) as engine:
        for line in (SURFACE / "commands.txt").read_text().splitlines():
            command = shlex.split(line.format(url=engine.url))
            keys = defaultdict(set)
            done = skep(*command, "--json")
            assert done.stdout, (line, done.stderr)
            gather(json.loads(done.stdout), "", keys)
            name = " ".join(command[: 2 if command[1:2] and command[1].isalpha() else 1])
            yield from (
                f"{name} {at or '.'}: {' '.join(sorted(keys[at]))}"
                for at in sorted(keys.keys() - OF_THE_MACHINE)
            )


def gather(value, at, keys):
    for inner in value if isinstance(value, list) else ():
        gather(inner, f"{at}[]", keys)
    for key, inner in value.items() if isinstance(value, dict) else ():
        keys[at].add(key)
        gather(inner, f"{at}.{key}", keys)


def routes(_skep, folder):
    from skep.config.gateway_messages import BatchPlaces, GatewaySetup
    from skep.gateway import request_policy
    from skep.gateway.main import Gateway
    from skep.paths import user_paths
    from skep.web.app import make_app
    from skep.web.context import Site

    async def routes_of_gateway():
        gateway = Gateway(GatewaySetup(batches=BatchPlaces(str(folder / "store"), str(folder))))
        routes = [(*route, "key") for route in gateway.proxy.routes]
        return routes + [(*route, "open") for route in gateway.proxy.open_routes]

    yield from sorted(
        f"gateway {method.decode()} {path} {access}"
        for method, path, access in asyncio.run(routes_of_gateway())
    )
    for title, paths in (
        ("passes on", request_policy.FOR_CLIENTS),
        ("takes no slot", request_policy.LIGHT),
        ("refuses", request_policy.ADMIN_PATHS),
    ):
        yield from (f"gateway {title} {path}" for path in sorted(paths))
    app = make_app(Site(user_paths({"HOME": str(folder)})), warm=False)
    yield from sorted(
        f"dashboard {','.join(sorted(route.methods))} {route.path}" for route in app.routes
    )


def mcp_tools(_skep, folder):
    from mcp import Client
    from skep.mcp_server.read_tools import ServerContext
    from skep.mcp_server.server import make_server
    from skep.paths import user_paths

    async def tools():
        async with Client(
            make_server(ServerContext(user_paths({"HOME": str(folder)}), {}))
        ) as client:
            return {
                tool.name: without_prose(tool.input_schema)
                for tool in (await client.list_tools()).tools
            }

    yield from json.dumps(asyncio.run(tools()), indent=1, sort_keys=True).splitlines()


def without_prose(schema):
    if isinstance(schema, list):
        return [without_prose(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    prose = {key for key in ("title", "description") if isinstance(schema.get(key), str)}
    return {key: without_prose(value) for key, value in schema.items() if key not in prose}


def errors(_skep, _folder):
    from skep import errors as own
    from skep.gateway.error_format import ERRORS

    yield from (
        f"gateway {code}: {' '.join(map(str, answer))}" for code, answer in sorted(ERRORS.items())
    )
    yield from sorted(
        f"exit code {var.exit_code}: {var.__name__}"
        for var in vars(own).values()
        if isinstance(var, type)
    )


def metrics(_skep, _folder):
    from skep.gateway.request_accounting import Metrics

    yield from sorted(
        f"{var.name} {var.kind}: {' '.join(var.labels) or '-'}" for var in vars(Metrics()).values()
    )
    yield from written(r'"(?:# TYPE )?(skep_(?:monitor|simulated)\w*)')


def config(_skep, _folder):
    from skep.catalog.engines import engine_kinds
    from skep.catalog.presets import Preset
    from skep.config.keys import KeySpec
    from skep.config.settings import Settings

    for file, table in (("skep.toml", Settings), ("keys.toml", KeySpec), ("preset", Preset)):
        yield from (f"{file} {key}" for key in sorted(keys_of(table)))
    of_engines = {kind.variable for kind in engine_kinds().values() if kind.variable}
    variables = of_engines.union(written(r'"(SKEP_[A-Z_]+)"'))
    yield from (f"environment {name}" for name in sorted(variables))


def help_pages(_skep, _folder):
    """At a fixed width, so that they do not depend on a terminal."""
    from skep.cli.main import ALIASES, NAMES, PARTS, help_page, tree_of
    from skep.cli.options import ROOT as ROOT_COMMAND

    yield from help_page(everything=True).splitlines()
    for path, command in commands(tree_of(PARTS), ("skep",)):
        yield from ("", f"== {' '.join(path)}", "")
        context = click.Context(
            command, info_name=" ".join(path), terminal_width=100, **ROOT_COMMAND.context_settings
        )
        yield from (line.rstrip() for line in command.get_help(context).rstrip().splitlines())
    yield from ("", "== other names", "")
    yield from (f"skep {old}: skep {new}" for old, new in ALIASES.items())
    yield from (f"second word {old}: {new}" for old, new in NAMES["below"].items())
    for name, options in NAMES["options"].items():
        yield from (f"skep {name} {old}: {new}" for old, new in options.items())


def commands(command, path):
    """Every command below it, groups included, with its words."""
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield (*path, name), child
        yield from commands(child, (*path, name))


def views(_, folder):
    from skep.store.database import open_store

    with open_store(folder / "store.sqlite3") as store:
        for row in store.read("SELECT name FROM sqlite_master WHERE type = 'view' ORDER BY name"):
            columns = store.read(f"PRAGMA table_info({row['name']})")
            yield f"{row['name']}: {' '.join(column['name'] for column in columns)}"


def keys_of(table, at=""):
    from skep.config.load import file_keys

    for key, kind in file_keys(table).items():
        yield f"{at}{key}"
        for inner in (kind, *get_args(kind)):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield from keys_of(inner, f"{at}{key}.")


def written(pattern):
    """What the source has that looks so."""
    return sorted(
        {
            match
            for path in (ROOT / "src").rglob("*.py")
            for match in re.findall(pattern, path.read_text())
        }
    )


def with_unseen(now, before):
    """`now`, with the objects known from `before` that happen to be null or empty: their parent
    still has the key.
    """
    keys = {at: keys.split() for at, _, keys in (line.partition(": ") for line in now)}
    for line in before:
        at = line.partition(": ")[0]
        parent, _, key = at.rstrip("[]").rpartition(".")
        if at not in keys and key in keys.get(parent if parent[-1:] != " " else f"{parent}.", ()):
            keys[at] = line.partition(": ")[2].split()
    return sorted(f"{at}: {' '.join(words)}" for at, words in keys.items())


@pytest.mark.timeout(300)  # thirty commands
@pytest.mark.parametrize(
    ("file", "look"),
    [
        ("json.txt", json_documents),
        ("routes.txt", routes),
        ("mcp.json", mcp_tools),
        ("errors.txt", errors),
        ("metrics.txt", metrics),
        ("config.txt", config),
        ("views.txt", views),
        ("help.txt", help_pages),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_seen_from_outside_is_as_it_was(file, look, skep, tmp_path):
    now = [*look(skep, tmp_path)]
    before = (SURFACE / file).read_text().splitlines()
    if file == "json.txt":
        now = with_unseen(now, before)
    if os.environ.get("SKEP_WRITE_SURFACE"):
        (SURFACE / file).write_text("\n".join(now) + "\n")
        return
    # What was null or empty when it was written has no keys there; its own name is its parent's.
    if file == "json.txt":
        known_keys = {line.partition(": ")[0] for line in before}
        now = [line for line in now if line.partition(": ")[0] in known_keys]
    changed = [
        *difflib.unified_diff(before, now, f"tests/surface/{file}", "now", n=0, lineterm="")
    ]
    assert not changed, "\n".join(
        [*changed, "if users are told of it, `make surface` writes it anew"]
    )
