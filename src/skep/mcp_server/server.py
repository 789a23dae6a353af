"""The server: its tools and its prompt, over stdio."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from difflib import get_close_matches
from importlib.resources import files
from typing import Annotated, Any, cast

import anyio
from anyio import to_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field, ValidationError

from skep import __version__
from skep.errors import SkepError
from skep.mcp_server.first_answers import REPLAYED_ID, ClientWire
from skep.mcp_server.read_tools import ReadTools, ServerContext
from skep.mcp_server.run_tools import LONGEST_WAIT_S, RunTools

log = logging.getLogger("skep.mcp")
_SAID = 200  # characters of a wrong value that are shown


class SkepTool(Tool):
    @property
    def output_schema(self) -> None:
        """Answers are structured, but how is not announced: it would double what every
        conversation begins with.
        """

    async def run(
        self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False
    ) -> Any:
        names = list(self.parameters.get("properties", {}))
        if unknown := [name for name in arguments if name not in names]:
            near = get_close_matches(unknown[0], names, 1)
            if near:
                hint = f"did you mean `{near[0]}`?"
            else:
                hint = f"it takes: {', '.join(names) or 'nothing'}"
            raise ToolError(
                error_text(f"{self.name} has no argument `{unknown[0][:_SAID]}`", hint)
            )
        try:
            answer = await super().run(arguments, context, convert_result)
        except ToolError as error:
            raise ToolError(describe_error(error.__cause__ or error)) from error
        if not isinstance(answer, CallToolResult) or answer.structured_content is None:
            return answer
        content = without_unknown(answer.structured_content)
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        return answer.model_copy(
            update={
                "structured_content": content,
                "content": [TextContent(type="text", text=text)],
            }
        )


def make_tool(
    function: Callable[..., Any], title: str, *, reads: bool, destroys: bool = False
) -> SkepTool:
    """Return a function as a tool. `reads`: it changes nothing. `destroys`: it ends something."""
    annotations = ToolAnnotations(
        read_only_hint=reads, destructive_hint=destroys, open_world_hint=False
    )
    text = " ".join((function.__doc__ or "").split())
    tool = SkepTool.from_function(
        function, title=title, description=text, annotations=annotations, structured_output=True
    )
    assert isinstance(tool, SkepTool)
    tool.parameters = compact_schema(tool.parameters)
    return tool


def error_text(message: str, hint: str | None) -> str:
    return f"error: {message}" + (f"\nhint: {hint}" if hint else "")


def describe_error(error: BaseException) -> str:
    if isinstance(error, SkepError):
        return error_text(error.message, error.hint)
    if isinstance(error, ValidationError):
        faults = []
        for fault in error.errors()[:5]:
            where = ".".join(map(str, fault["loc"]))
            reason = fault["msg"][:1].lower() + fault["msg"][1:]
            faults.append(f"`{where}` is {str(fault['input'])[:_SAID]!r}: {reason}")
        return error_text("; ".join(faults), "see the input schema of the tool")
    if isinstance(error, ToolError):
        return str(error)
    if isinstance(error, OSError):
        return error_text(
            f"{error.strerror or error}", "check the disk and the permissions of skep's folders"
        )
    log.error("tool.failed error=%r", error)
    return error_text(
        f"unexpected {type(error).__name__}: {error}", "the same command on the shell may say more"
    )


def without_unknown(value: Any) -> Any:
    """Return an answer without what is None in our own objects. What a model has answered stays as
    it is.
    """
    if isinstance(value, dict):
        fields = {key: field for key, field in value.items() if field is not None}
        return {
            key: field if key == "value" else without_unknown(field)
            for key, field in fields.items()
        }
    if isinstance(value, list):
        return [without_unknown(element) for element in value]
    return value


def compact_schema(schema: Any) -> Any:
    """Return a schema without titles and `or null`: a third of it, which every client's model
    reads and which says nothing new.
    """
    if isinstance(schema, list):
        return [compact_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    slim = {
        key: compact_schema(part)
        for key, part in schema.items()
        if key != "title" or not isinstance(part, str)
    }
    kinds = [part for part in slim.get("anyOf", ()) if part != {"type": "null"}]
    if len(kinds) == 1:
        slim = {**{key: part for key, part in slim.items() if key != "anyOf"}, **kinds[0]}
    return {key: part for key, part in slim.items() if key != "default" or part is not None}


# What a client that went away in the middle of a call leaves behind: nobody reads on.
CONNECTION_LOST = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


def make_server(place: ServerContext, *, longest_wait_s: float = LONGEST_WAIT_S) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer(
        "skep",
        title="skep: a swarm of agents on a local model",
        instructions=_text("instructions.txt"),
        version=__version__,
        tools=[*_tools(place, longest_wait_s)],
        log_level="WARNING",
    )

    def swarm(goal: Annotated[str, Field(description="The goal to reach.")] = "") -> str:
        return _text("guide.txt").replace("{goal}", goal.strip() or "as described by the user.")

    described = (
        "How to split a goal into tasks for the local swarm, run them and merge the results."
    )
    server.prompt(name="swarm", title="Run a swarm", description=described)(swarm)
    return server


def _text(name: str) -> str:
    return files("skep.mcp_server").joinpath(name).read_text("utf-8")


class ClientLines:
    """What the client says, for the SDK: first the opening that was answered without it, then
    every line after.
    """

    def __init__(self, wire: ClientWire, replayed: list[bytes], next_line: bytes) -> None:
        self._wire = wire
        self._replayed = replayed
        self._next_line = next_line
        self.opened = anyio.Event()  # the server has answered `initialize` again
        if not replayed:
            self.opened.set()

    async def __aiter__(self) -> AsyncIterator[str]:
        for replayed in self._replayed:
            yield replayed.decode()
            await self.opened.wait()
        line: bytes | None = self._next_line
        while line is not None:
            yield line.decode("utf-8", "replace")
            line = await to_thread.run_sync(self._wire.read_line, abandon_on_cancel=True)


class ClientReplies:
    """What the server says, for the client, without the second answer to `initialize`."""

    def __init__(self, wire: ClientWire, lines: ClientLines) -> None:
        self._wire = wire
        self._lines = lines

    async def write(self, text: str) -> None:
        if not self._lines.opened.is_set() and json.loads(text).get("id") == REPLAYED_ID:
            self._lines.opened.set()
            return
        await to_thread.run_sync(self._wire.send, text.encode("utf-8", "surrogatepass"))

    async def flush(self) -> None:
        """Nothing is held back."""


async def serve(server: MCPServer[Any], lines: ClientLines, replies: ClientReplies) -> None:
    """Serve as `run_stdio_async` does, with lines that were partly read before the SDK was
    imported.
    """
    lowlevel = server._lowlevel_server  # noqa: SLF001  # no public way takes other streams
    stdin = cast(Any, lines)
    stdout = cast(Any, replies)
    async with stdio_server(stdin, stdout) as (read_stream, write_stream):
        await lowlevel.run(read_stream, write_stream, lowlevel.create_initialization_options())


def serve_stdio(
    place: ServerContext, wire: ClientWire, replayed: list[bytes], next_line: bytes
) -> None:
    """Until the client closes our input, or a signal. Runs go on; nothing else is held, so the end
    is at once. The thread that reads stdin cannot be interrupted, which is why the process is left
    and not unwound."""
    # On stderr: stdout is the client's.
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    lines = ClientLines(wire, replayed, next_line)
    try:
        anyio.run(serve, make_server(place), lines, ClientReplies(wire, lines))
    except BaseExceptionGroup as group:
        if group.split(CONNECTION_LOST)[1] is not None:
            raise
    sys.stderr.flush()
    os._exit(0)


def _tools(place: ServerContext, longest_wait_s: float) -> list[SkepTool]:
    runs = RunTools(place, longest_wait_s=longest_wait_s)
    return [
        make_tool(runs.swarm_dispatch, "Dispatch tasks", reads=False),
        make_tool(runs.swarm_dispatch_file, "Dispatch tasks from a file", reads=False),
        make_tool(runs.swarm_wait, "Wait for a run", reads=True),
        make_tool(runs.swarm_results, "Page of results", reads=True),
        make_tool(runs.swarm_result, "One whole result", reads=True),
        make_tool(runs.swarm_retry, "Retry failed tasks", reads=False),
        make_tool(runs.swarm_resume, "Resume a run", reads=False),
        make_tool(runs.swarm_cancel, "Cancel a run", reads=False, destroys=True),
        make_tool(runs.swarm_list, "List runs", reads=True),
        make_tool(ReadTools(place).capacity, "Capacity of the endpoint", reads=True),
    ]
