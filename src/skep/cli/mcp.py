"""`skep mcp`: the swarm as tools of an MCP client, over stdio or HTTP."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from skep.cli.bench_options import KeyEnv, Model, Url
from skep.errors import UserError

DEFAULT_PORT = 8402


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: claude mcp add skep -- skep mcp")(mcp)


def mcp(
    http: Annotated[bool, typer.Option("--http", help="Serve streamable HTTP instead of stdio.")] = False,
    host: Annotated[
        str | None, typer.Option(help="With --http: address; any but loopback requires a key. Default: 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="With --http: port; 0 picks a free one. Default: 8402.")
    ] = None,
    url: Url = None,
    model: Model = None,
    key_env: KeyEnv = None,
) -> None:
    """Serve MCP tools: dispatch tasks to the swarm, wait, fetch results, see capacity, plan, read benchmarks."""
    from skep.cli.output import note
    from skep.paths import user_paths
    from skep.wire.heads import parse_url

    if not http and (host is not None or port is not None):
        raise UserError("--host and --port are for --http", hint="add --http; without it stdio is spoken")
    if url is not None:
        parse_url(url)
    try:
        import mcp as _sdk  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "mcp":
            raise
        raise UserError(
            "`skep mcp` needs the MCP SDK, which is not installed", hint="pip install 'skep[mcp]'"
        ) from None
    from skep.mcp_server.context import ServerContext

    place = ServerContext(
        user_paths(os.environ), dict(os.environ), url=url, model=model, key_env=key_env, files=not http
    )
    if http:
        from skep.mcp_server.http import listen

        def ready(address: str) -> None:
            print(address, flush=True)  # noqa: T201
            note("the MCP server is up; Ctrl-C stops it, runs go on")

        wanted = DEFAULT_PORT if port is None else port
        with listen(place, host=host or "127.0.0.1", port=wanted, on_ready=ready) as server:
            server.run()
    else:
        from skep.mcp_server.server import serve_stdio

        serve_stdio(place)
