"""Writes mcp_server/first_answers.json: what the whole MCP server says to a client that opens a
conversation.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import anyio
from generated import write_or_check
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION

from skep import __version__
from skep.mcp_server.first_answers import META_PREFIX, STORED_ANSWERS, VERSION_MARK
from skep.mcp_server.read_tools import ServerContext
from skep.mcp_server.server import make_server
from skep.paths import user_paths

CLIENT = {"name": "client", "version": "1"}
STATELESS = {
    f"{META_PREFIX}protocolVersion": LATEST_MODERN_VERSION,
    f"{META_PREFIX}clientInfo": CLIENT,
    f"{META_PREFIX}clientCapabilities": {},
}
LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")


async def ask(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of a whole server, in the order of the requests."""
    server = make_server(ServerContext(user_paths({}), {}))._lowlevel_server  # noqa: SLF001
    to_server, from_client = anyio.create_memory_object_stream[Any](1)
    to_client, from_server = anyio.create_memory_object_stream[Any](1)
    results = []
    async with to_server, from_client, to_client, from_server, anyio.create_task_group() as tasks:
        tasks.start_soon(
            server.run, from_client, to_client, server.create_initialization_options()
        )
        for request in requests:
            line = json.dumps({"jsonrpc": "2.0", **request})
            await to_server.send(
                SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
            )
            if "id" in request:
                message = (await from_server.receive()).message
                results.append(
                    json.loads(message.model_dump_json(by_alias=True, exclude_unset=True))[
                        "result"
                    ]
                )
        tasks.cancel_scope.cancel()
    return results


def handshake(version: str) -> dict[str, Any]:
    """Return each method's result for a client that opens with `initialize`."""
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT}
    requests = [
        {"id": 0, "method": "initialize", "params": params},
        {"method": "notifications/initialized"},
    ]
    methods = [*LISTS, "ping"]
    requests += [{"id": number, "method": method} for number, method in enumerate(methods, 1)]
    return dict(zip(["initialize", *methods], asyncio.run(ask(requests)), strict=True))


def stateless() -> dict[str, Any]:
    methods = ["server/discover", *LISTS]
    meta = {"_meta": STATELESS}
    requests = [
        {"id": number, "method": method, "params": meta} for number, method in enumerate(methods)
    ]
    return dict(zip(methods, asyncio.run(ask(requests)), strict=True))


def one_line(value: Any) -> str:
    """Return the bytes as they are sent: a line end within them would end the message."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def by_method(results: dict[str, Any]) -> str:
    lines = [f"{one_line(method)}: {one_line(result)}" for method, result in results.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def document() -> str:
    parts = {
        "versions": one_line(HANDSHAKE_PROTOCOL_VERSIONS),
        "stateless_version": one_line(LATEST_MODERN_VERSION),
        "handshake": by_method(handshake(HANDSHAKE_PROTOCOL_VERSIONS[-1])),
        "stateless": by_method(stateless()),
    }
    text = ",\n".join(f'"{name}": {part}' for name, part in parts.items())
    return f"{{\n{text}\n}}\n".replace(f'"version":"{__version__}"', f'"version":"{VERSION_MARK}"')


if __name__ == "__main__":
    sys.exit(write_or_check({Path(STORED_ANSWERS): document}))
