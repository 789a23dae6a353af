"""The server: its tools, its prompt, and the two ways to speak with it begin here."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field, ValidationError

from skep import __version__
from skep.errors import SkepError
from skep.mcp_server.context import ServerContext
from skep.mcp_server.read_tools import ReadTools
from skep.mcp_server.run_tools import LONGEST_WAIT_S, RunTools

INSTRUCTIONS = """\
skep runs many independent tasks at once on a local model. Use it to fan work out: classify, extract, summarise, \
review or draft many things in parallel, cheaply and without sending anything elsewhere. \
The local model is smaller than you: give it narrow, self-contained tasks and check what comes back.
Flow: capacity (once) -> swarm_dispatch -> swarm_wait in a loop (at most 45 s a call) -> swarm_results page by page -> \
swarm_retry or a new dispatch for what failed. Runs go on when the client goes away: swarm_list finds them again."""

GUIDE = """\
You are the orchestrator of a swarm of agents on a local model, through the tools of skep.

Goal: {goal}

1. Call capacity. It says how many tasks run at once and how fast. Finer than a few times that number brings no speed.
2. Split the goal into tasks that need nothing from each other and nothing but their own prompt. Each prompt has
   - the objective: one thing, in one sentence;
   - the input itself, quoted in full (an agent sees no files, no conversation, no other task);
   - the form of the answer: a JSON schema wherever you will compute with it, else length and layout;
   - the boundaries: what to leave out, and what to answer where the input does not say.
   Give each an id that you will recognise (`src/app.py`, `review-017`).
3. Call swarm_dispatch with all of them at once. Where they share a prompt, use `template` and send only the fields.
   {files}Put `schema`, `system` and `max_tokens` that hold for all beside the tasks, not into each.
4. Call swarm_wait until its state is `done`. It returns within 45 s: calling it again is how to wait longer.
   `stopped` means that nobody works on it any more: swarm_resume.
5. Fetch the results with swarm_results, page by page; `swarm_result` has an answer that was cut.
6. Look at the failed ones (`only: failed`). Where the endpoint was at fault, swarm_retry. Where the answer did not meet
   its schema, make the task smaller or the schema simpler, and dispatch those anew.
7. Check a sample of the answers against their inputs before you rely on them, then merge them yourself.
"""

_FILES = (
    'For many tasks, write a .jsonl file (a line: {"id": ..., "prompt": ...}) and use swarm_dispatch_file with\n'
    "   `output`: neither inputs nor results pass through the conversation then.\n   "
)


def guide(goal: str, *, files: bool) -> str:
    return GUIDE.replace("{files}", _FILES if files else "").replace("{goal}", goal.strip() or "as the user has said.")


log = logging.getLogger("skep.mcp")
_SAID = 200  # characters of a wrong value that are shown


class SkepTool(Tool):
    @property
    def output_schema(self) -> None:
        """Answers are structured, but how is not announced: it would double what every conversation begins with."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        self._check_names(arguments)
        try:
            answer = await super().run(arguments, context, convert_result)
        except ToolError as error:
            raise ToolError(describe_error(error.__cause__ or error)) from error
        return compact(answer) if isinstance(answer, CallToolResult) else answer

    def _check_names(self, arguments: dict[str, Any]) -> None:
        known = list(self.parameters.get("properties", {}))
        for name in arguments:
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"did you mean `{near[0]}`?" if near else f"it takes: {', '.join(known) or 'nothing'}"
                raise ToolError(error_text(f"{self.name} has no argument `{name[:_SAID]}`", hint))


def make_tool(
    function: Callable[..., Any], title: str, *, reads: bool, destroys: bool = False, same: bool = True
) -> SkepTool:
    """`reads`: it changes nothing. `destroys`: it ends something. `same`: twice has the effect of once.

    The protocol gives the last two no meaning for a tool that only reads.
    """
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
        faults = "; ".join(_fault(one) for one in error.errors()[:5])
        return error_text(faults, "the tool's input schema says what it takes")
    if isinstance(error, ToolError):
        return str(error)
    if isinstance(error, OSError):
        return error_text(f"{error.strerror or error}", "check the disk and the permissions of skep's folders")
    log.error("tool.failed error=%r", error)
    return error_text(f"unexpected {type(error).__name__}: {error}", "the same command on the shell may say more")


def compact(answer: CallToolResult) -> CallToolResult:
    if answer.structured_content is None:
        return answer
    kept = without_unknown(answer.structured_content)
    text = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
    return answer.model_copy(update={"structured_content": kept, "content": [TextContent(type="text", text=text)]})


def without_unknown(value: Any) -> Any:
    """Without what is None in our own objects. What a model has answered stays as it is."""
    if isinstance(value, dict):
        known = {key: one for key, one in value.items() if one is not None}
        return {key: one if key == "value" else without_unknown(one) for key, one in known.items()}
    return [without_unknown(one) for one in value] if isinstance(value, list) else value


def compact_schema(schema: Any) -> Any:
    """Without titles, which only repeat the fields' names, and without `or null`, since what is not wanted can be left
    out. A third of a schema is that, and every client's model reads it."""
    if isinstance(schema, list):
        return [compact_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: compact_schema(one) for key, one in schema.items() if key != "title" or not isinstance(one, str)}
    kinds = [one for one in kept.get("anyOf", ()) if one != {"type": "null"}]
    if len(kinds) == 1:
        kept = {**{key: one for key, one in kept.items() if key != "anyOf"}, **kinds[0]}
    return {key: one for key, one in kept.items() if key != "default" or one is not None}


def _fault(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    return f"`{where}` is {str(error['input'])[:_SAID]!r}: {error['msg'][:1].lower()}{error['msg'][1:]}"


# What a client that went away in the middle of a call leaves behind: nobody reads on.
GONE = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


def make_server(place: ServerContext, *, longest_wait_s: float = LONGEST_WAIT_S) -> MCPServer[Any]:
    made: MCPServer[Any] = MCPServer(
        "skep",
        title="skep: a swarm of agents on a local model",
        instructions=INSTRUCTIONS,
        version=__version__,
        tools=[*_tools(place, longest_wait_s)],
        log_level="WARNING",
    )

    def swarm(goal: Annotated[str, Field(description="What is to be done.")] = "") -> str:
        return guide(goal, files=place.files)

    described = "How to split a goal into tasks for the local swarm, run them, and merge what comes back."
    made.prompt(name="swarm", title="Run a swarm", description=described)(swarm)
    return made


def serve_stdio(place: ServerContext) -> None:
    """Until the client closes our input, or a signal. Runs go on; nothing else is held, so the end is at once.

    The thread that reads stdin cannot be interrupted, which is why the process is left and not unwound.
    """
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
        make_tool(runs.swarm_dispatch_file, "Dispatch tasks of a file", reads=False, same=False),
        make_tool(runs.swarm_wait, "Wait for a run", reads=True),
        make_tool(runs.swarm_results, "Page of results", reads=True),
        make_tool(runs.swarm_result, "One whole result", reads=True),
        make_tool(runs.swarm_retry, "Retry failed tasks", reads=False, same=False),
        make_tool(runs.swarm_resume, "Resume a run", reads=False),
        make_tool(runs.swarm_cancel, "Cancel a run", reads=False, destroys=True),
        make_tool(runs.swarm_list, "List runs", reads=True),
        make_tool(looks.capacity, "Capacity of the endpoint", reads=True),
        make_tool(looks.status, "Status of the hive", reads=True),
        make_tool(looks.plan_model, "Plan a model", reads=True),
        make_tool(looks.benchmarks, "List benchmarks", reads=True),
        make_tool(looks.benchmark, "One benchmark", reads=True),
    ]
    return [tool for tool in made if place.files or tool.name != "swarm_dispatch_file"]
