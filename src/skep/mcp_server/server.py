"""The server: its tools, its prompt, and the two ways to speak with it: stdio and HTTP.

Over HTTP, on loopback only its own names are answered to, and other sites' pages are refused: no browser can be made to
reach in. Elsewhere a key is wanted.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib.resources import files
from typing import Annotated, Any

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field, ValidationError
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from skep import __version__
from skep.config.access import AcceptedKeys, answer_while, host_of, is_same_origin
from skep.config.keys import given_keys, keys_path
from skep.errors import SkepError, UserError
from skep.mcp_server.read_tools import ReadTools, ServerContext
from skep.mcp_server.run_tools import LONGEST_WAIT_S, RunTools
from skep.paths import LOOPBACK
from skep.wire.serve_asgi import AsgiServer

log = logging.getLogger("skep.mcp")
_FILES = (
    'For many tasks, write a .jsonl file (a line: {"id": ..., "prompt": ...}) and use swarm_dispatch_file with\n'
    "   `output`: then neither inputs nor results pass through the conversation.\n   "
)
_SAID = 200  # characters of a wrong value that are shown


class SkepTool(Tool):
    @property
    def output_schema(self) -> None:
        """Answers are structured, but how is not announced: it would double what every conversation begins with."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        known = list(self.parameters.get("properties", {}))
        if unknown := [name for name in arguments if name not in known]:
            near = get_close_matches(unknown[0], known, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"it takes: {', '.join(known) or 'nothing'}"
            raise ToolError(error_text(f"{self.name} has no argument `{unknown[0][:_SAID]}`", hint))
        try:
            answer = await super().run(arguments, context, convert_result)
        except ToolError as error:
            raise ToolError(describe_error(error.__cause__ or error)) from error
        if not isinstance(answer, CallToolResult) or answer.structured_content is None:
            return answer
        kept = without_unknown(answer.structured_content)
        text = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
        return answer.model_copy(update={"structured_content": kept, "content": [TextContent(type="text", text=text)]})


def make_tool(
    function: Callable[..., Any], title: str, *, reads: bool, destroys: bool = False, same: bool = True
) -> SkepTool:
    """`reads`: it changes nothing. `destroys`: it ends something. `same`: twice has the effect of once."""
    annotations = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    if not reads:
        annotations = ToolAnnotations(destructive_hint=destroys, idempotent_hint=same, open_world_hint=False)
    text = " ".join((function.__doc__ or "").split())
    made = SkepTool.from_function(
        function, title=title, description=text, annotations=annotations, structured_output=True
    )
    assert isinstance(made, SkepTool)
    made.parameters = compact_schema(made.parameters)
    return made


def error_text(message: str, hint: str | None) -> str:
    return f"error: {message}" + (f"\nhint: {hint}" if hint else "")


def describe_error(error: BaseException) -> str:
    if isinstance(error, SkepError):
        return error_text(error.message, error.hint)
    if isinstance(error, ValidationError):
        faults = []
        for one in error.errors()[:5]:
            where, said = ".".join(map(str, one["loc"])), one["msg"][:1].lower() + one["msg"][1:]
            faults.append(f"`{where}` is {str(one['input'])[:_SAID]!r}: {said}")
        return error_text("; ".join(faults), "see the input schema of the tool")
    if isinstance(error, ToolError):
        return str(error)
    if isinstance(error, OSError):
        return error_text(f"{error.strerror or error}", "check the disk and the permissions of skep's folders")
    log.error("tool.failed error=%r", error)
    return error_text(f"unexpected {type(error).__name__}: {error}", "the same command on the shell may say more")


def without_unknown(value: Any) -> Any:
    """Without what is None in our own objects. What a model has answered stays as it is."""
    if isinstance(value, dict):
        known = {key: one for key, one in value.items() if one is not None}
        return {key: one if key == "value" else without_unknown(one) for key, one in known.items()}
    return [without_unknown(one) for one in value] if isinstance(value, list) else value


def compact_schema(schema: Any) -> Any:
    """Without titles and `or null`: a third of a schema that every client's model reads and that says nothing new."""
    if isinstance(schema, list):
        return [compact_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: compact_schema(one) for key, one in schema.items() if key != "title" or not isinstance(one, str)}
    kinds = [one for one in kept.get("anyOf", ()) if one != {"type": "null"}]
    if len(kinds) == 1:
        kept = {**{key: one for key, one in kept.items() if key != "anyOf"}, **kinds[0]}
    return {key: one for key, one in kept.items() if key != "default" or one is not None}


# What a client that went away in the middle of a call leaves behind: nobody reads on.
GONE = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


def make_server(place: ServerContext, *, longest_wait_s: float = LONGEST_WAIT_S) -> MCPServer[Any]:
    made: MCPServer[Any] = MCPServer(
        "skep",
        title="skep: a swarm of agents on a local model",
        instructions=_text("instructions.txt"),
        version=__version__,
        tools=[*_tools(place, longest_wait_s)],
        log_level="WARNING",
    )

    def swarm(goal: Annotated[str, Field(description="The goal to reach.")] = "") -> str:
        told = _text("guide.txt").replace("{files}", _FILES if place.files else "")
        return told.replace("{goal}", goal.strip() or "as described by the user.")

    described = "How to split a goal into tasks for the local swarm, run them and merge the results."
    made.prompt(name="swarm", title="Run a swarm", description=described)(swarm)
    return made


def _text(name: str) -> str:
    return files("skep.mcp_server").joinpath(name).read_text("utf-8")


def serve_stdio(place: ServerContext) -> None:
    """Until the client closes our input, or a signal. Runs go on; nothing else is held, so the end is at once.
    The thread that reads stdin cannot be interrupted, which is why the process is left and not unwound."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # on stderr: stdout is the client's
    server = make_server(place)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: os._exit(0))
    try:
        anyio.run(server.run_stdio_async)
    except BaseExceptionGroup as group:
        if group.split(GONE)[1] is not None:
            raise
    sys.stderr.flush()
    os._exit(0)


def _tools(place: ServerContext, longest_wait_s: float) -> list[SkepTool]:
    """Files of this machine may be named only where the client is its user."""
    runs, looks = RunTools(place, longest_wait_s=longest_wait_s), ReadTools(place)
    made = [
        make_tool(runs.swarm_dispatch, "Dispatch tasks", reads=False, same=False),
        make_tool(runs.swarm_dispatch_file, "Dispatch tasks from a file", reads=False, same=False),
        make_tool(runs.swarm_wait, "Wait for a run", reads=True),
        make_tool(runs.swarm_results, "Page of results", reads=True),
        make_tool(runs.swarm_result, "One whole result", reads=True),
        make_tool(runs.swarm_retry, "Retry failed tasks", reads=False, same=False),
        make_tool(runs.swarm_resume, "Resume a run", reads=False),
        make_tool(runs.swarm_cancel, "Cancel a run", reads=False, destroys=True),
        make_tool(runs.swarm_list, "List runs", reads=True),
        make_tool(looks.capacity, "Capacity of the endpoint", reads=True),
        make_tool(looks.status, "Status of the deployment", reads=True),
        make_tool(looks.plan_model, "Plan a model", reads=True),
        make_tool(looks.benchmarks, "List benchmarks", reads=True),
        make_tool(looks.benchmark, "One benchmark", reads=True),
    ]
    return [tool for tool in made if place.files or tool.name != "swarm_dispatch_file"]


PATH = "/mcp"
BODY_BYTES = 32 * 1024 * 1024
GRACE_S = 1
SESSION_IDLE_S = 30 * 60.0  # without a request and without an open stream
MOST_SESSIONS = 256


class AccessCheck:
    """Around every request: the name it was asked by, where it comes from, the key. `keys` None: no key is wanted."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, keys: AcceptedKeys | None) -> None:
        self._app, self._hosts, self._keys = app, hosts, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if (refused := self._refusal(headers)) is not None:
            await refused(scope, receive, send)
        elif (keys := self._keys) is None:
            await self._app(scope, receive, send)
        elif (key := keys.find(given_keys(headers.raw))) is None:
            await _said(401, "an API key is required: send it as `Authorization: Bearer KEY`")(scope, receive, send)
        else:
            # The SDK answers in a session only to the user that opened it.
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=key.sha256, scopes=[]))
            await answer_while(lambda: keys.accepts(key), self._app, scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts is not None and host_of(host) not in self._hosts:
            return _said(421, f"this server does not answer as {host[:100]!r}")
        if origin is not None and not is_same_origin(origin, host):
            return _said(403, "requests from pages of other sites are refused")
        return None


def listen(
    place: ServerContext, *, host: str, port: int, session_idle_s: float = SESSION_IDLE_S,
    most_sessions: int = MOST_SESSIONS, on_ready: Callable[[str], None] = lambda _url: None,
) -> AsgiServer:  # fmt: skip
    """Bind the port and return the server; its `run` serves. `on_ready` is called with the URL."""
    hosts, keys = (frozenset(LOOPBACK), None) if host in LOOPBACK else (None, _keys(place, host))
    app = make_server(place).streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=BODY_BYTES,
        session_idle_timeout=session_idle_s,
        max_sessions=most_sessions,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # `AccessCheck` does that
    )
    guard, guarded = AccessCheck(app, hosts, keys), keys is not None
    return AsgiServer(guard, host=host, port=port, guarded=guarded, grace_s=GRACE_S, path=PATH, on_ready=on_ready)


def _keys(place: ServerContext, host: str) -> AcceptedKeys:
    """The gateway's rule: beyond loopback a key is wanted."""
    keys = AcceptedKeys(keys_path(place.paths), place.env.get("SKEP_API_KEY"))
    if not len(keys):
        hint = "`skep key add NAME` makes a key; or set SKEP_API_KEY, or bind 127.0.0.1"
        raise UserError(f"serving MCP on `{host}` without an API key would let anybody in", hint=hint)
    return keys


def _said(status: int, message: str) -> Response:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return Response(json.dumps({"error": {"message": message}}), status, headers, "application/json")
