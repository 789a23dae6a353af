"""Scripted answers for agents: `--script FILE`, a JSON list of rules, of which the first that
matches decides.

    [{"name": "write", "when": {"says": "WRITE (?P<path>\\\\S+) (?P<text>\\\\S+)", "has_tools":
    true},
      "reply": {"write": {"path": "{path}", "content": "{text}"}}}]

Where no rule matches, the engine answers as it does without a script. `--script agents` names
`agent_script.json`, which does what a prompt says in capitals."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from skep.errors import UserError
from skep.testing.agent_turn import AgentTurn
from skep.testing.tool_calls import ToolCall, delegate_call, filled, shell_call, write_call

SHIPPED = {"agents": Path(__file__).with_name("agent_script.json")}


class Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a rule applies: where all the fields that are given hold.

    Expressions are searched for; their groups fill the reply.
    """

    says: str | None = None  # in the user's messages since the last answer
    prompt_says: str | None = None  # anywhere in the prompt
    result_says: str | None = None  # in the results of tools since then
    has_result: bool | None = None  # whether a tool has given a result since the last answer
    has_tools: bool | None = None
    above_tokens: int | None = None  # the prompt has more tokens than this

    def compile(self) -> None:
        """Raise re.error for an invalid expression."""
        for expression in (self.says, self.prompt_says, self.result_says):
            if expression is not None:
                re.compile(expression, re.DOTALL)

    def groups(self, turn: AgentTurn, prompt_tokens: int) -> dict[str, str] | None:
        """Return the groups of the expressions; None: the condition does not hold."""
        if self.has_result is not None and self.has_result != turn.has_result:
            return None
        if self.has_tools is not None and self.has_tools != bool(turn.tools):
            return None
        if self.above_tokens is not None and prompt_tokens <= self.above_tokens:
            return None
        groups: dict[str, str] = {}
        texts = (
            (self.says, turn.latest),
            (self.prompt_says, turn.prompt),
            (self.result_says, turn.results),
        )
        for expression, text in texts:
            if expression is not None:
                match = re.search(expression, text, re.DOTALL)
                if match is None:
                    return None
                groups |= {name: value or "" for name, value in match.groupdict().items()}
        return groups


class FileText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    content: str


class NamedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] = {}


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text of a rule's answer, then its calls.

    `error`: the message of a refusal; `context` stands for the engine's own, of a prompt that is
    too long.
    """

    text: str = ""
    thinking: str = ""
    write: FileText | None = None
    shell: str | None = None
    delegate: str | None = None  # the prompt of a sub-agent
    call: NamedCall | None = None
    error: str | None = None
    cut_after: int | None = None  # tokens after which the connection closes
    first_token_s: float = 0.0


class AnswerRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reply: Reply
    when: Condition = Condition()
    times: int | None = None  # how often it may decide; None: always
    name: str = ""


class ScriptedReply(msgspec.Struct, frozen=True):
    text: str
    calls: tuple[ToolCall, ...]
    rule: str = ""
    thinking: str = ""
    error: str | None = None
    cut_after: int | None = None
    first_token_s: float = 0.0


class AgentScript:
    """Chooses the answers of agents by rules, and counts how often each has decided."""

    def __init__(self, rules: tuple[AnswerRule, ...]) -> None:
        self._rules = rules
        self.decided: Counter[str] = Counter()

    def reply(self, turn: AgentTurn, prompt_tokens: int) -> ScriptedReply | None:
        """Return the reply of the first rule that matches; None: none does.

        Raise UserError where the client lacks the tool that the rule calls.
        """
        for place, rule in enumerate(self._rules):
            name = rule.name or f"rule-{place}"
            if rule.times is not None and self.decided[name] >= rule.times:
                continue
            groups = rule.when.groups(turn, prompt_tokens)
            if groups is not None:
                self.decided[name] += 1
                return scripted(name, rule.reply, turn, groups)
        return None


def scripted(name: str, reply: Reply, turn: AgentTurn, groups: dict[str, str]) -> ScriptedReply:
    def text(template: str) -> str:
        for group, value in groups.items():
            template = template.replace(f"{{{group}}}", value)
        return template

    calls: list[ToolCall] = []
    if reply.write is not None:
        calls.append(write_call(turn.tools, text(reply.write.path), text(reply.write.content)))
    if reply.shell is not None:
        calls.append(shell_call(turn.tools, text(reply.shell)))
    if reply.delegate is not None:
        calls.append(delegate_call(turn.tools, text(reply.delegate)))
    if reply.call is not None:
        calls.append(named_call(turn, text(reply.call.name), reply.call.arguments, text))
    return ScriptedReply(
        rule=name,
        text=text(reply.text),
        thinking=text(reply.thinking),
        calls=tuple(calls),
        error=reply.error,
        cut_after=reply.cut_after,
        first_token_s=reply.first_token_s,
    )


def named_call(
    turn: AgentTurn, name: str, arguments: dict[str, Any], text: Callable[[str], str]
) -> ToolCall:
    offer = turn.tool(name)
    if offer is None:
        raise UserError(f"the client offers no tool `{name}`")
    return filled(offer, with_texts(arguments, text))


def with_texts(value: Any, text: Callable[[str], str]) -> Any:
    """Return a value of JSON in which `text` has filled in every text."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        return [with_texts(item, text) for item in value]
    if isinstance(value, dict):
        return {key: with_texts(item, text) for key, item in value.items()}
    return value


def read_script(name: str) -> tuple[AnswerRule, ...]:
    """Return the rules of a file, or of a script that is shipped. Raise UserError for bad ones."""
    path = SHIPPED.get(name) or Path(name)
    try:
        rules = msgspec.json.decode(path.read_bytes(), type=tuple[AnswerRule, ...])
        for rule in rules:
            rule.when.compile()
    except (msgspec.DecodeError, re.error) as error:
        raise UserError(f"{path}: {error}") from None
    return rules
