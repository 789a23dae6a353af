"""`skep mcp`: the swarm as tools of an MCP client, over stdio or HTTP."""

from __future__ import annotations

import os
from typing import Annotated

from skep.cli.options import ROOT, EndpointOptions, command, option
from skep.errors import UserError
from skep.paths import user_paths
from skep.report.terminal import note

DEFAULT_PORT = 8402


@command(ROOT, "claude mcp add skep -- skep mcp")
def mcp(
    http: Annotated[bool, option("Serve streamable HTTP instead of stdio.")] = False,
    host: Annotated[
        str | None, option("Address for --http; beyond loopback a key is required (default: 127.0.0.1).")
    ] = None,
    port: Annotated[
        int | None, option("Port for --http; 0 picks a free port (default: 8402).", min=0, max=65535)
    ] = None,
    *,
    endpoint: EndpointOptions,
) -> None:
    """Serve MCP tools: run tasks on the swarm, fetch results, see capacity, plan, read benchmarks."""
    from skep.wire.heads import parse_url

    if not http and (host is not None or port is not None):
        raise UserError("--host and --port are for --http", hint="add --http; without it skep serves stdio")
    if endpoint.url is not None:
        parse_url(endpoint.url)
    try:
        import mcp as _sdk  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "mcp":
            raise
        hint = "in skep's folder: pip install '.[mcp]'"
        raise UserError("`skep mcp` needs the MCP SDK, which is not installed", hint=hint) from None
    from skep.mcp_server.read_tools import ServerContext

    place = ServerContext(
        user_paths(os.environ),
        dict(os.environ),
        url=endpoint.url,
        model=endpoint.model,
        key_env=endpoint.key_env,
        files=not http,
    )
    if http:
        from skep.mcp_server.server import listen

        def ready(address: str) -> None:
            print(address, flush=True)  # noqa: T201
            note("the MCP server is up; Ctrl-C stops it, runs continue")

        wanted = DEFAULT_PORT if port is None else port
        with listen(place, host=host or "127.0.0.1", port=wanted, on_ready=ready) as server:
            server.run()
    else:
        from skep.mcp_server.server import serve_stdio

        serve_stdio(place)
