"""The server: its tools, its prompt, and the two ways to speak with it begin here."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import MCPServer
from pydantic import Field

from skep import __version__
from skep.mcp_server.guide import INSTRUCTIONS, guide
from skep.mcp_server.launching import Launcher
from skep.mcp_server.looking import LookTools
from skep.mcp_server.place import Place
from skep.mcp_server.runs import LONGEST_WAIT_S, RunTools
from skep.mcp_server.spoken import SpokenTool, make_tool

# What a client that went away in the middle of a call leaves behind: nobody reads on.
GONE = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


def make_server(place: Place, *, longest_wait_s: float = LONGEST_WAIT_S) -> MCPServer[Any]:
    """Files of this machine may be named only where the client is its user."""
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


def serve_stdio(place: Place) -> None:
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


def _tools(place: Place, longest_wait_s: float) -> list[SpokenTool]:
    runs = RunTools(place, Launcher(place.paths, place.env), longest_wait_s=longest_wait_s)
    looks = LookTools(place)
    by_file = [make_tool(runs.swarm_dispatch_file, "Dispatch tasks of a file", reads=False, same=False)]
    return [
        make_tool(runs.swarm_dispatch, "Dispatch tasks", reads=False, same=False),
        *(by_file if place.files else ()),
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
