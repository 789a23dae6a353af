"""The request of an agent: the tools it offers, which one it requires, and what the user and the
tools have said since the last answer.

One form for chat completions, Anthropic's messages and OpenAI's responses. Tools that have no
schema (`web_search`, `custom`) are ignored; those of a `namespace` are tools like others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from skep.errors import UserError

RESULT_ITEMS = ("function_call_output", "custom_tool_call_output")
ANSWER_ITEMS = ("function_call", "custom_tool_call", "reasoning")


class ToolOffer(msgspec.Struct, frozen=True):
    name: str
    schema: Mapping[str, Any]
    description: str = ""
    namespace: str | None = None


class AgentTurn(msgspec.Struct, frozen=True):
    tools: tuple[ToolOffer, ...]
    choice: str  # auto, none or required
    named: str | None  # the only tool that may be called
    prompt: str  # all messages, without the tools
    latest: str  # the user's messages since the last answer, without results of tools
    has_result: bool  # a tool has given a result since the last answer
    results: str = ""  # the results of tools since then
    tools_text: str = ""  # the tools as an engine writes them into its prompt

    def tool(self, name: str) -> ToolOffer | None:
        return next((tool for tool in self.tools if tool.name == name), None)


@contextmanager
def malformed_is_refused() -> Iterator[None]:
    """Raise UserError where the code inside meets a part of a request that has another form."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"the request is malformed: {type(error).__name__} {error}") from None


def read_turn(fields: Mapping[str, Any], dialect: str) -> AgentTurn:
    """Return the turn of a request. Raise UserError for one that an engine refuses."""
    read = {"chat": read_chat, "messages": read_messages, "responses": read_responses}[dialect]
    with malformed_is_refused():
        turn = read(fields)
    if turn.named is not None and turn.tool(turn.named) is None:
        raise UserError(f"tool_choice names `{turn.named}`, which is none of the tools")
    if turn.choice == "required" and not turn.tools:
        raise UserError("tool_choice is required, and there are no tools")
    return turn


def texts_of(value: Any) -> Iterator[str]:
    """Yield the texts of messages, blocks and items, in order, results of tools too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)
    elif isinstance(value, dict):
        yield from texts_of(value.get("content") or value.get("text") or value.get("output"))


def read_chat(fields: Mapping[str, Any]) -> AgentTurn:
    messages = [message for message in fields["messages"] if isinstance(message, dict)]
    latest = since_answer(messages, lambda message: message.get("role") == "assistant")
    tools = []
    for tool in fields.get("tools") or ():
        function = tool.get("function") or {}
        if function.get("name"):
            tools.append(
                ToolOffer(
                    function["name"],
                    function.get("parameters") or {},
                    function.get("description", ""),
                )
            )
    user_messages = [message for message in latest if message.get("role") == "user"]
    results = [message for message in latest if message.get("role") in ("tool", "function")]
    return turn_of(fields, tools, joined(messages), user_messages, results)


def read_messages(fields: Mapping[str, Any]) -> AgentTurn:
    messages = fields["messages"]
    blocks = blocks_of(since_answer(messages, lambda message: message["role"] == "assistant"))
    tools = [
        ToolOffer(tool["name"], tool["input_schema"], tool.get("description", ""))
        for tool in fields.get("tools") or ()
        if "input_schema" in tool
    ]
    prompt = joined([fields.get("system"), messages])
    user_blocks = [block for block in blocks if not is_result(block)]
    results = [block for block in blocks if is_result(block)]
    return turn_of(fields, tools, prompt, user_blocks, results)


def read_responses(fields: Mapping[str, Any]) -> AgentTurn:
    items = fields["input"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    latest = since_answer(items, is_answer_item)
    tools = []
    for tool in fields.get("tools") or ():
        if tool["type"] == "function":
            tools.append(
                ToolOffer(
                    tool["name"], tool.get("parameters") or {}, tool.get("description") or ""
                )
            )
        elif tool["type"] == "namespace":
            tools += [
                ToolOffer(
                    part["name"],
                    part.get("parameters") or {},
                    part.get("description") or "",
                    tool["name"],
                )
                for part in tool.get("tools") or ()
                if part.get("type", "function") == "function"
            ]
    prompt = joined([fields.get("instructions"), items])
    results = [item for item in latest if item.get("type") in RESULT_ITEMS]
    others = [item for item in latest if item.get("type") not in RESULT_ITEMS]
    user_items = [item for item in others if item.get("role") == "user"]
    return turn_of(fields, tools, prompt, user_items, results)


def turn_of(
    fields: Mapping[str, Any],
    tools: list[ToolOffer],
    prompt: str,
    user_parts: list[Any],
    results: list[Any],
) -> AgentTurn:
    choice, named = tool_choice_of(fields.get("tool_choice"))
    offered_tools = fields.get("tools")
    return AgentTurn(
        tools=tuple(tools),
        choice=choice,
        named=named,
        prompt=prompt,
        latest=joined(user_parts),
        has_result=bool(results),
        results=joined(results),
        tools_text=json.dumps(offered_tools) if offered_tools else "",
    )


def since_answer(messages: list[Any], is_answer: Callable[[Any], bool]) -> list[Any]:
    """Return the messages after the model's last answer."""
    count = 0
    for message in reversed(messages):
        if is_answer(message):
            break
        count += 1
    return messages[len(messages) - count :]


def blocks_of(messages: list[Any]) -> list[Any]:
    blocks: list[Any] = []
    for message in messages:
        content = message.get("content")
        blocks += content if isinstance(content, list) else [content]
    return blocks


def is_answer_item(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ANSWER_ITEMS


def is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def tool_choice_of(choice: Any) -> tuple[str, str | None]:
    """Return auto, none or required, and the name of the only tool that may be called."""
    if isinstance(choice, dict):
        name = choice.get("name") or (choice.get("function") or {}).get("name")
        kind = choice.get("type", "auto")
        if name or kind in ("any", "required"):
            kind = "required"
        return kind, name
    return choice or "auto", None


def joined(value: Any) -> str:
    return "\n".join(texts_of(value))
