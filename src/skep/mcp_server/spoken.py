"""A tool whose errors are one line and a hint, and whose answers are compact.

A model reads what comes back: no traceback, no `null`, no indentation. An argument that is not known is refused, since
one that is left out in silence looks as if it had been heeded.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import ValidationError

from skep.errors import SkepError

log = logging.getLogger("skep.mcp")
_SAID = 200  # characters of a wrong value that are shown


class SpokenTool(Tool):
    @property
    def output_schema(self) -> None:
        """Answers are structured, but how is not announced: it would double what every conversation begins with."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        self._check_names(arguments)
        try:
            answer = await super().run(arguments, context, convert_result)
        except ToolError as error:
            raise ToolError(words_of(error.__cause__ or error)) from error
        return compact(answer) if isinstance(answer, CallToolResult) else answer

    def _check_names(self, arguments: dict[str, Any]) -> None:
        known = list(self.parameters.get("properties", {}))
        for name in arguments:
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"did you mean `{near[0]}`?" if near else f"it takes: {', '.join(known) or 'nothing'}"
                raise ToolError(spoken(f"{self.name} has no argument `{name[:_SAID]}`", hint))


def make_tool(
    function: Callable[..., Any], title: str, *, reads: bool, destroys: bool = False, same: bool = True
) -> SpokenTool:
    """`reads`: it changes nothing. `destroys`: it ends something. `same`: twice has the effect of once.

    The protocol gives the last two no meaning for a tool that only reads.
    """
    annotations = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    if not reads:
        annotations = ToolAnnotations(destructive_hint=destroys, idempotent_hint=same, open_world_hint=False)
    text = " ".join((function.__doc__ or "").split())
    made = SpokenTool.from_function(
        function, title=title, description=text, annotations=annotations, structured_output=True
    )
    assert isinstance(made, SpokenTool)
    made.parameters = terse(made.parameters)
    return made


def spoken(message: str, hint: str | None) -> str:
    return f"error: {message}" + (f"\nhint: {hint}" if hint else "")


def words_of(error: BaseException) -> str:
    if isinstance(error, SkepError):
        return spoken(error.message, error.hint)
    if isinstance(error, ValidationError):
        return spoken(
            "; ".join(_fault(one) for one in error.errors()[:5]), "the tool's input schema says what it takes"
        )
    if isinstance(error, ToolError):
        return str(error)
    if isinstance(error, OSError):
        return spoken(f"{error.strerror or error}", "check the disk and the permissions of skep's folders")
    log.error("tool.failed error=%r", error)
    return spoken(f"unexpected {type(error).__name__}: {error}", "the same command on the shell may say more")


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


def terse(schema: Any) -> Any:
    """Without titles, which only repeat the fields' names, and without `or null`, since what is not wanted can be left
    out. A third of a schema is that, and every client's model reads it."""
    if isinstance(schema, list):
        return [terse(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: terse(one) for key, one in schema.items() if key != "title" or not isinstance(one, str)}
    kinds = [one for one in kept.get("anyOf", ()) if one != {"type": "null"}]
    if len(kinds) == 1:
        kept = {**{key: one for key, one in kept.items() if key != "anyOf"}, **kinds[0]}
    return {key: one for key, one in kept.items() if key != "default" or one is not None}


def _fault(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    return f"`{where}` is {str(error['input'])[:_SAID]!r}: {error['msg'][:1].lower()}{error['msg'][1:]}"
