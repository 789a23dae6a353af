"""The requests of the fake engine, the words that answer them, rightly or wrongly, and the bytes
that these become. One word is one token.

Pure but for `QualityPolicy`'s one source of chance, `Random(seed)`, drawn in the order in which
requests come: the same requests in the same order have the same result, while clients that race
each other have another one each time."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Self

import msgspec

from skep.errors import UserError
from skep.testing.agent_turn import AgentTurn, read_turn
from skep.testing.tool_calls import ToolCall

DATA: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("fake_options.toml").read_text(encoding="utf-8")
)
WORDS: list[str] = DATA["words"]
DO_NOT_KNOW = "I do not know."


class FakeRequest(msgspec.Struct, frozen=True):
    chat: bool
    stream: bool
    include_usage: bool
    prompt: str
    prompt_tokens: int
    max_tokens: int | None
    last: str = ""  # the last user message alone; the prompt, where there are no messages
    dialect: str = "chat"  # completions, chat, messages or responses
    turn: AgentTurn | None = None  # None: of a plain completion
    answers: int = 0  # of the model, since the last user message

    def room(self, *, default_tokens: int, ctx: int) -> int:
        return min(self.max_tokens or default_tokens, ctx - self.prompt_tokens)

    def answer(self, *, default_tokens: int, ctx: int, text: str | None = None) -> FakeAnswer:
        """Return the words of `text`, or the word list over and over; never past the context."""
        limit = self.room(default_tokens=default_tokens, ctx=ctx)
        if text is not None:
            words = words_of(text) or [""]
            natural = len(words)
        else:
            words = [" " + WORDS[place % len(WORDS)] for place in range(limit)]
            if words:
                words[0] = words[0].lstrip()
            if self.max_tokens is None:
                natural = default_tokens
            else:
                natural = limit + 1
        finish = "stop" if natural <= limit else "length"
        return FakeAnswer(tuple(words[:limit]), finish)

    def agent_answer(
        self, *, thinking: str, text: str, calls: Sequence[ToolCall], default_tokens: int, ctx: int
    ) -> FakeAnswer:
        """Return thinking, text and calls, as far as they fit."""
        thoughts = words_of(thinking)
        tokens = [*thoughts, *words_of(text)]
        fake_calls = []
        for call in calls:
            fake_calls.append(FakeCall(call.name, len(tokens), call.namespace))
            tokens += words_of(call.arguments)
        limit = self.room(default_tokens=default_tokens, ctx=ctx)
        if not tokens:
            tokens.append("")
        fitting = tokens[:limit]
        if len(tokens) > limit:
            finish = "length"
        elif fake_calls:
            finish = "tool_calls"
        else:
            finish = "stop"
        return FakeAnswer(
            tokens=tuple(fitting),
            finish_reason=finish,
            thought=min(len(thoughts), len(fitting)),
            calls=tuple(call for call in fake_calls if call.first < len(fitting)),
        )


def words_of(text: str) -> list[str]:
    """Return the words of a text, each with the white space before it: joined, they are it."""
    return re.findall(r"\s*\S+(?:\s+$)?", text)


class StoredAnswer(msgspec.Struct, frozen=True):
    """The right answer to a prompt. `wrong`: what is given instead of it, one of them."""

    prompt: str  # the last user message, or a part of the prompt
    text: str
    wrong: tuple[str, ...] = (DO_NOT_KNOW,)


class DialogueTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer of a dialogue: its text, then its calls. Arguments that are a text are sent as
    they stand, so that they need not be JSON.
    """

    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()  # name and arguments

    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments))
            for name, arguments in self.calls
        )


class StoredDialogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is answered turn after turn once the user's last message is the goal.

    `wrong`: what is answered in place of a turn where an answer is to be worse.
    """

    goal: str
    turns: tuple[DialogueTurn, ...]
    wrong: DialogueTurn = DialogueTurn(text=DO_NOT_KNOW)


def read_dialogues(path: Path | str) -> dict[str, StoredDialogue]:
    """Return the dialogues of a file, a line of JSON each, by their goals."""
    decoder = msgspec.json.Decoder(StoredDialogue)
    lines = Path(path).read_text("utf-8").split("\n")
    dialogues = [decoder.decode(line) for line in lines if line.strip()]
    return {dialogue.goal: dialogue for dialogue in dialogues}


class FakeCall(msgspec.Struct, frozen=True):
    name: str
    # The place of the first token of its arguments, which end with the next call or the answer.
    first: int
    namespace: str | None = None


class FakeAnswer(msgspec.Struct, frozen=True):
    tokens: tuple[str, ...]
    finish_reason: str
    thought: int = 0  # the first so many are reasoning
    calls: tuple[FakeCall, ...] = ()  # behind the text

    def arguments(self) -> list[tuple[FakeCall, tuple[str, ...]]]:
        """Return each call with the tokens of its arguments."""
        ends = [*(call.first for call in self.calls), len(self.tokens)][1:]
        return [
            (call, self.tokens[call.first : end])
            for call, end in zip(self.calls, ends, strict=False)
        ]

    def halved(self) -> FakeAnswer:
        """Return half of its tokens, rounded down, but at least one; it ended at a limit."""
        return FakeAnswer(self.tokens[: max(1, len(self.tokens) // 2)], "length")

    def after_thinking(self, text: str, *, room: int) -> FakeAnswer:
        """Return the answer, as far as it fits, with reasoning before it.

        The reasoning has a third as many tokens as the answer: a quarter of all.
        """
        kept_tokens = len(self.tokens)
        while kept_tokens + max(1, kept_tokens // 3) > room and kept_tokens:
            kept_tokens -= 1
        count = max(1, kept_tokens // 3)
        places = [len(text) * part // count for part in range(count + 1)]
        thoughts = tuple(text[begin:end] for begin, end in pairwise(places))
        if kept_tokens == len(self.tokens):
            finish = self.finish_reason
        else:
            finish = "length"
        return FakeAnswer(thoughts + self.tokens[:kept_tokens], finish, count)


def parse_request(body: bytes, *, chat: bool) -> FakeRequest:
    """Return the request of a chat or a plain completion."""
    fields = json_object(body)
    name = "messages" if chat else "prompt"
    if not fields.get(name):
        raise UserError(f"`{name}` is missing")
    max_tokens = limit_of(fields, "max_completion_tokens", "max_tokens")
    content = fields[name]
    prompt = " ".join(_texts(content))
    prompt_tokens = len(prompt.split())
    last = prompt
    answers = 0
    turn = None
    if chat:
        # None where the field is not a list: then `last` is empty and no exact answer is found.
        messages = content if isinstance(content, list) else []
        user_messages = [
            message
            for message in messages
            if isinstance(message, dict) and message.get("role") == "user"
        ]
        last = " ".join(_texts(user_messages[-1:]))
        answers = answers_since_user(messages)
        turn = read_turn(fields | {"messages": messages}, "chat")
        prompt_tokens += len(turn.tools_text.split())
    stream_options = fields.get("stream_options") or {}
    return FakeRequest(
        chat=chat,
        stream=bool(fields.get("stream")),
        include_usage=bool(stream_options.get("include_usage")),
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        last=last,
        dialect="chat" if chat else "completions",
        turn=turn,
        answers=answers,
    )


def answers_since_user(messages: Sequence[Any]) -> int:
    """Return how often the model has answered since the last message of the user."""
    count = 0
    for message in reversed(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role == "user":
            break
        count += role == "assistant"
    return count


def parse_agent_request(body: bytes, dialect: str) -> FakeRequest:
    """Return the request of an agent, in the dialect `messages` or `responses`."""
    fields = json_object(body)
    name = {"messages": "messages", "responses": "input"}[dialect]
    if not fields.get(name):
        raise UserError(f"`{name}` is missing")
    max_tokens = limit_of(fields, "max_tokens", "max_output_tokens")
    turn = read_turn(fields, dialect)
    return FakeRequest(
        chat=True,
        stream=bool(fields.get("stream")),
        include_usage=True,
        prompt=turn.prompt,
        prompt_tokens=len(turn.prompt.split()) + len(turn.tools_text.split()),
        max_tokens=max_tokens,
        last=turn.latest,
        dialect=dialect,
        turn=turn,
    )


def json_object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError:
        raise UserError("the body is not JSON") from None
    return fields if isinstance(fields, dict) else {}


def limit_of(fields: dict[str, Any], *names: str) -> int | None:
    value = next((fields[name] for name in names if fields.get(name)), fields.get(names[-1]))
    if value is not None and (not isinstance(value, int) or value < 1):
        raise UserError(f"`max_tokens` is {value!r}, not a positive number")
    return value


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return _texts(value.get("content") or value.get("text"))
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def read_answers(path: Path | str) -> tuple[StoredAnswer, ...]:
    """Return lines of `{"prompt": "part of the prompt", "answer": "text", "wrong": "text" or a
    list of texts}`.
    """
    answers = []
    for line in Path(path).read_text("utf-8").split("\n"):
        if line.strip():
            row = json.loads(line)
            wrong = row.get("wrong", DO_NOT_KNOW)
            if isinstance(wrong, str):
                texts = (wrong,)
            else:
                texts = tuple(wrong)
            answers.append(StoredAnswer(row["prompt"], row["answer"], texts))
    return tuple(answers)


class LoadShare(msgspec.Struct, frozen=True):
    """Strikes a share of the requests that find more than `load` inside, themselves counted."""

    load: int
    share: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `4:0.15`, load and share."""
        load, _, share = text.partition(":")
        return cls(int(load), float(share))


class Quality(msgspec.Struct, frozen=True):
    """How well the engine answers.

    `wrong_share` is of prompts, the same ones at every request; all else is chance, request by
    request.
    """

    wrong_share: float = 0.0
    flip_share: float = 0.0
    worse: LoadShare | None = None
    truncate: LoadShare | None = None
    error: LoadShare | None = None
    seed: int = 0


class AnswerDecision(msgspec.Struct, frozen=True):
    text: str | None = None  # None: nothing is stored for the prompt
    cut: bool = False
    fails: bool = False


class QualityPolicy:
    """Decides each request once, when it arrives.

    A prompt without a stored answer is never answered wrongly.
    """

    def __init__(self, stored: Sequence[StoredAnswer], quality: Quality) -> None:
        self._stored = stored
        self._quality = quality
        self._chance = Random(quality.seed)
        # Of two, the first.
        self._by_message = {answer.prompt: answer for answer in reversed(stored)}

    def decide(self, ask: FakeRequest, *, inside: int) -> AnswerDecision:
        """Return the answer that is stored for exactly this message, else the first one whose key
        the prompt contains, rightly or wrongly.
        """
        if self._strikes(self._quality.error, inside):
            return AnswerDecision(fails=True)
        exact = self._by_message.get(ask.last)
        stored = exact or next(
            (answer for answer in self._stored if answer.prompt in ask.prompt), None
        )
        if stored is None:
            text = None
        else:
            text = self._text(stored, ask, inside)
        return AnswerDecision(text, cut=self._strikes(self._quality.truncate, inside))

    def dialogue_turn(
        self, dialogue: StoredDialogue, ask: FakeRequest, *, inside: int
    ) -> DialogueTurn:
        """Return the next answer of a dialogue; its last one again where it has no more."""
        if self._draw(self._quality.flip_share) or self._strikes(self._quality.worse, inside):
            return dialogue.wrong
        return dialogue.turns[min(ask.answers, len(dialogue.turns) - 1)]

    def _text(self, stored: StoredAnswer, ask: FakeRequest, inside: int) -> str:
        digest = hashlib.sha256(ask.prompt.encode("utf-8", "surrogatepass")).digest()
        by_nature = right = int.from_bytes(digest[:8]) / 2**64 >= self._quality.wrong_share
        if self._draw(self._quality.flip_share):
            right = not right
        if right and not self._strikes(self._quality.worse, inside):
            return stored.text
        number = int.from_bytes(digest[8:16])
        if by_nature:
            return self._chance.choice(stored.wrong)
        return stored.wrong[number % len(stored.wrong)]

    def _strikes(self, above: LoadShare | None, inside: int) -> bool:
        return above is not None and inside > above.load and self._draw(above.share)

    def _draw(self, share: float) -> bool:
        return share > 0 and self._chance.random() < share


class AnswerHead(msgspec.Struct, frozen=True):
    """What all chunks of one answer have in common."""

    id: str
    model: str
    created: int
    chat: bool
    prompt_tokens: int
    cached_tokens: int = 0

    @property
    def call_id(self) -> str:
        """Return the beginning of the ids of the answer's calls of tools."""
        return f"call_{self.id.partition('-')[2]}"

    def usage(self, tokens: int) -> dict[str, Any]:
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": tokens}
        details = {"cached_tokens": self.cached_tokens}
        return {**counts, "total_tokens": sum(counts.values()), "prompt_tokens_details": details}

    def fields(self, *, whole: bool) -> dict[str, Any]:
        if not self.chat:
            kind = "text_completion"
        elif whole:
            kind = "chat.completion"
        else:
            kind = "chat.completion.chunk"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def whole_answer(self, answer: FakeAnswer, timings: dict[str, Any], *, usage: bool) -> bytes:
        thought = answer.thought
        if answer.calls:
            first_call = answer.calls[0].first
        else:
            first_call = len(answer.tokens)
        text = "".join(answer.tokens[thought:first_call])
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": answer.finish_reason,
            "logprobs": None,
        }
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text}
            if thought:
                choice["message"]["reasoning_content"] = "".join(answer.tokens[:thought])
            if answer.calls:
                choice["message"]["content"] = text or None
                choice["message"]["tool_calls"] = self.tool_calls(answer)
        else:
            choice["text"] = text
        body = self.fields(whole=True) | {"choices": [choice]}
        if usage:
            body["usage"] = self.usage(len(answer.tokens))
        return to_json({**body, "timings": timings})

    def tool_calls(self, answer: FakeAnswer) -> list[dict[str, Any]]:
        calls = []
        for number, (call, tokens) in enumerate(answer.arguments()):
            function = {"name": call.name, "arguments": "".join(tokens)}
            calls.append(
                {"id": f"{self.call_id}_{number}", "type": "function", "function": function}
            )
        return calls


class StreamEncoder:
    """Encodes one streamed answer.

    Call `token` for each token and `ending` once. `per_chunk`: the tokens of one event.
    """

    def __init__(
        self,
        head: AnswerHead,
        *,
        thought: int = 0,
        per_chunk: int = 1,
        usage: bool = True,
        calls: Sequence[FakeCall] = (),
    ) -> None:
        self._head = head
        self._thought = thought
        self._per_chunk = per_chunk
        self._usage = usage
        self._calls = {call.first: (number, call) for number, call in enumerate(calls)}
        self._call: int | None = None  # the number of the call whose arguments are being sent
        self._token_count = 0
        self._role_sent = not head.chat
        self._tokens: list[str] = []  # of the chunk being filled

    def token(self, text: str) -> bytes:
        if self._token_count in self._calls:
            events = self._begin_call(*self._calls[self._token_count])
        else:
            events = b""
        self._token_count += 1
        self._tokens.append(text)
        is_end = self._token_count == self._thought or self._token_count in self._calls
        if len(self._tokens) < self._per_chunk and not is_end:
            return events
        return events + self._content()

    def ending(self, finish: str, timings: dict[str, Any]) -> bytes:
        last: list[dict[str, Any]] = [{"choices": [self._choice({}, finish)]}]
        if self._usage:
            last.append({"choices": [], "usage": self._head.usage(self._token_count)})
        last[-1]["timings"] = timings
        content = self._content() if self._tokens else b""
        return content + b"".join(map(self._event, last)) + b"data: [DONE]\n\n"

    def _begin_call(self, number: int, call: FakeCall) -> bytes:
        self._call = number
        empty_call = {
            "index": number,
            "id": f"{self._head.call_id}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": ""},
        }
        choice = self._choice({"tool_calls": [empty_call]}, None)
        return self._role() + self._event({"choices": [choice]})

    def _role(self) -> bytes:
        if self._role_sent:
            return b""
        self._role_sent = True
        return self._event({"choices": [self._choice({"role": "assistant", "content": ""}, None)]})

    def _content(self) -> bytes:
        text = "".join(self._tokens)
        self._tokens = []
        if self._call is not None:
            delta: dict[str, Any] = {
                "tool_calls": [{"index": self._call, "function": {"arguments": text}}]
            }
        else:
            delta = {
                "reasoning_content" if self._token_count <= self._thought else "content": text
            }
        return self._role() + self._event({"choices": [self._choice(delta, None)]})

    def _choice(self, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        if self._head.chat:
            return {"index": 0, "delta": delta, "finish_reason": finish}
        return {"index": 0, "text": delta.get("content", ""), "finish_reason": finish}

    def _event(self, fields: dict[str, Any]) -> bytes:
        return b"data: %b\n\n" % to_json(self._head.fields(whole=False) | fields)


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
