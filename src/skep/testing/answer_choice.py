"""Decides each request once, when it arrives: whether it is refused, and which words and calls of
tools answer it.
"""

from __future__ import annotations

import argparse
import json

import msgspec

from skep.testing.agent_script import AgentScript, ScriptedReply
from skep.testing.agent_turn import AgentTurn, malformed_is_refused
from skep.testing.engine_words import (
    Refusal,
    context_refusal,
    output_refusal,
    parser_refusal,
    plain_refusal,
)
from skep.testing.fake_answers import WORDS, FakeAnswer, FakeRequest, QualityPolicy
from skep.testing.prefix_memory import PrefixMemory
from skep.testing.tool_calls import ToolCall, forced_call


class ChosenAnswer(msgspec.Struct, frozen=True):
    """How a request is answered: it has either a `refusal` or an `answer`."""

    refusal: Refusal | None = None
    answer: FakeAnswer | None = None
    cached_tokens: int = 0
    cut_after: int | None = None
    late_s: float = 0.0


class AnswerChoice:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._quality = QualityPolicy(options.answers, options.quality)
        self._prefixes = PrefixMemory()
        self.script = AgentScript(options.script)

    def choose(self, ask: FakeRequest, *, inside: int) -> ChosenAnswer:
        """Return the answer of a request. Raise UserError for what the script cannot do.

        `inside`: the requests in the engine, with this one.
        """
        refusal = self._refusal(ask)
        if refusal is not None:
            return ChosenAnswer(refusal)
        decision = self._quality.decide(ask, inside=inside)
        if decision.fails:
            message = "the fake engine fails under load as asked"
            return ChosenAnswer(plain_refusal(500, message, "server_error", ask.dialect))
        reply = self._reply(ask, inside)
        if reply is not None and reply.error is not None:
            return ChosenAnswer(self._scripted_refusal(ask, reply.error))
        answer = self._answer(ask, reply, decision.text)
        if decision.cut:
            answer = answer.halved()
        cached_tokens = 0
        if self._options.prefix_cache != "off":
            cached_tokens = self._prefixes.cached(all_words(ask))
        if reply is None:
            return ChosenAnswer(answer=answer, cached_tokens=cached_tokens)
        return ChosenAnswer(
            answer=answer,
            cached_tokens=cached_tokens,
            cut_after=reply.cut_after,
            late_s=reply.first_token_s * self._options.time_scale,
        )

    def _reply(self, ask: FakeRequest, inside: int) -> ScriptedReply | None:
        if ask.turn is None:
            return None
        dialogue = self._options.dialogues.get(ask.last)
        if dialogue is not None and ask.turn.tools:
            turn = self._quality.dialogue_turn(dialogue, ask, inside=inside)
            return ScriptedReply(text=turn.text, calls=turn.tool_calls())
        with malformed_is_refused():
            return self.script.reply(ask.turn, ask.prompt_tokens)

    def _refusal(self, ask: FakeRequest) -> Refusal | None:
        options = self._options
        prompt = ask.prompt_tokens
        if prompt >= options.ctx:
            return context_refusal(options.speaks, ask.dialect, prompt=prompt, ctx=options.ctx)
        output = ask.max_tokens or 0
        if options.speaks == "vllm" and prompt + output > options.ctx:
            return output_refusal(ask.dialect, output=output, prompt=prompt, ctx=options.ctx)
        chooses_tools = ask.turn is not None and ask.turn.tools and ask.turn.choice == "auto"
        if options.tool_calls == "refused" and chooses_tools:
            return parser_refusal(ask.dialect)
        return None

    def _scripted_refusal(self, ask: FakeRequest, error: str) -> Refusal:
        if error == "context":  # whatever the true context is
            prompt = max(ask.prompt_tokens, self._options.ctx + 1)
            return context_refusal(
                self._options.speaks, ask.dialect, prompt=prompt, ctx=self._options.ctx
            )
        return plain_refusal(500, error, "server_error", ask.dialect)

    def _answer(
        self, ask: FakeRequest, reply: ScriptedReply | None, stored: str | None
    ) -> FakeAnswer:
        options = self._options
        turn = ask.turn
        limits = {"default_tokens": options.default_tokens, "ctx": options.ctx}
        is_agent = turn is not None and (
            bool(turn.tools) or ask.dialect in ("messages", "responses")
        )
        if reply is None and not is_agent:
            answer = ask.answer(text=stored, **limits)
            if options.reasoning is not None and ask.chat:
                answer = answer.after_thinking(options.reasoning, room=ask.room(**limits))
            return answer
        assert turn is not None
        calls = self._calls(turn, reply)
        thinking = options.reasoning or ""
        text = stored
        if reply is not None:
            thinking = reply.thinking
            text = reply.text
        if text is None:
            text = "" if calls else words_until(options.default_tokens)
        if options.tool_calls == "text":
            text += "".join(map(as_text, calls))
            calls = ()
        elif options.tool_calls == "broken":
            calls = tuple(map(broken_call, calls))
        return ask.agent_answer(thinking=thinking, text=text, calls=calls, **limits)

    def _calls(self, turn: AgentTurn, reply: ScriptedReply | None) -> tuple[ToolCall, ...]:
        """Return the script's calls; where a call is forced and the script has none, one that fits
        its schema.
        """
        if turn.choice == "none":
            return ()
        calls = reply.calls if reply is not None else ()
        if turn.named is not None:
            calls = tuple(call for call in calls if call.name == turn.named)
        if calls or turn.choice != "required":
            return calls
        if turn.named is not None:
            tool = turn.tool(turn.named)
        else:
            tool = turn.tools[0]
        assert tool is not None
        with malformed_is_refused():
            return (forced_call(tool),)


def all_words(ask: FakeRequest) -> list[str]:
    """Return the words of the prompt, those of its tools first."""
    words = ask.prompt.split()
    if ask.turn is not None:
        return ask.turn.tools_text.split() + words
    return words


def words_until(count: int) -> str:
    return " ".join(WORDS[place % len(WORDS)] for place in range(count))


def broken_call(call: ToolCall) -> ToolCall:
    """Return the call with arguments that are no JSON."""
    return msgspec.structs.replace(call, arguments=call.arguments[:-1] or "{")


def as_text(call: ToolCall) -> str:
    """Return a call as text, as it arrives where no parser reads it."""
    content = {"name": call.name, "arguments": json.loads(call.arguments)}
    return f"\n<tool_call>\n{json.dumps(content)}\n</tool_call>"
