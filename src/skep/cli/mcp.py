"""`skep mcp`: the swarm as tools of an MCP client, over stdio."""

from __future__ import annotations

import os
from importlib.util import find_spec

from skep.cli.options import ROOT, EndpointOptions, command
from skep.errors import UserError
from skep.paths import user_paths


@command(ROOT, "claude mcp add skep -- skep mcp")
def mcp(*, endpoint: EndpointOptions) -> None:
    """Serve MCP tools over stdio: run tasks on the swarm, fetch results, see capacity."""
    from skep.wire.heads import parse_url

    if endpoint.url is not None:
        parse_url(endpoint.url)
    if find_spec("mcp") is None:
        from skep.host.installation import extra_hint

        lack = "`skep mcp` needs the MCP SDK, which is not installed"
        raise UserError(lack, hint=extra_hint("mcp"))
    from skep.mcp_server.first_answers import (
        ClientWire,
        Doorman,
        open_conversation,
        read_first_answers,
    )

    doorman = Doorman(read_first_answers())
    wire = ClientWire()
    next_line = open_conversation(doorman, wire)
    if next_line is None:
        return
    # This takes a second or more, for a client that calls a tool.
    from skep.mcp_server.read_tools import ServerContext
    from skep.mcp_server.server import serve_stdio

    where = {"url": endpoint.url, "model": endpoint.model, "key_env": endpoint.key_env}
    context = ServerContext(user_paths(os.environ), dict(os.environ), **where)
    serve_stdio(context, wire, doorman.replay(), next_line)
