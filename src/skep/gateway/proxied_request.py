"""One client's request, from its arrival to its one end: ties a client's connection to a
replica's. Knows nothing of other requests, and decides nothing about slots.

No task and no await is on the way of a token. Bytes of bodies pass unchanged both ways."""

from __future__ import annotations

import time
from collections import deque
from typing import Protocol

from skep.config.gateway_messages import ReplicaSpec, Timeouts
from skep.gateway.admission import Admission
from skep.gateway.admission_messages import Action, Event, Forward, Reject
from skep.gateway.answer_tokens import NO_COUNTS, Tokens, ends_in_tool_call, tokens_of
from skep.gateway.body_inspection import NOTHING_READ, BodySummary, wants_stream
from skep.gateway.context_errors import ENGINE_STATUSES as CONTEXT_STATUSES
from skep.gateway.context_errors import ERROR_CODE as CONTEXT_EXCEEDED
from skep.gateway.context_errors import ERROR_STATUS as CONTEXT_STATUS
from skep.gateway.context_errors import context_exceeded, in_clients_words
from skep.gateway.error_format import (
    ERRORS,
    error_body,
    event_of,
    rejection,
    retry_headers,
    speaks_anthropic,
)
from skep.gateway.prompt_sketch import (
    SKETCHED_BYTES,
    PromptLook,
    SketchBudget,
    look_at_prompt,
)
from skep.gateway.request_policy import (
    COMMENT_PATHS,
    CONTEXT_PATHS,
    LATE_COMMENT_PATHS,
    STREAM_PATHS,
    RequestPlan,
)
from skep.gateway.session_names import conversation_in
from skep.gateway.sessions import RequestSession
from skep.gateway.unloaded_models import UnloadedModels
from skep.wire.client import Call, Pool, WireFailure
from skep.wire.heads import (
    CARRIED,
    HOP_BY_HOP,
    Headers,
    ResponseHead,
    lines_of,
    strip_chunk_headers,
)
from skep.wire.openai import json_object, message_of
from skep.wire.server_connection import ServerConnection
from skep.wire.server_request import ServerRequest

# The server says that it cannot; another one perhaps can.
ERROR_STATUSES = frozenset((502, 503, 504))
RETRY_STATUSES = ERROR_STATUSES | {429}
TAIL_PIECES = 64
TAIL_BYTES = 262_144  # of an answer that is longer, only the last few pieces
TAIL_PIECES_OF_LONG = 8
ERROR_BYTES = 65_536  # of an engine's complaint
ERROR_CHARACTERS = 500  # of it that are repeated
# Of an answer: whole chunks with their framing, or a part of the body in a tuple.
Piece = bytes | tuple[bytes]
_NOTHING: deque[Piece] = deque(maxlen=0)

# What the gateway gives by itself: an engine's own would contradict it, or tell pages what they
# may.
_LEAVE = (b"access-control-", b"x-skep")
# A cookie of one upstream would reach the others, and with it who asked.
NOT_HANDED_ON = HOP_BY_HOP | {b"content-length", b"set-cookie", b"set-cookie2"}
SIMULATED = b"x-skep-simulated: 1\r\n"
# Streams that wait for a model to be loaded get a head and comments at once: proxies and clients
# give up on a connection on which nothing happens; a comment is something, and no event.
STREAM_LINES = lines_of(
    [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
)


class ProxyPort(Protocol):
    """What an exchange needs of the proxy it lives in."""

    admission: Admission
    timeouts: Timeouts
    unloaded: UnloadedModels
    sketches: SketchBudget

    def pool(self, spec: ReplicaSpec) -> Pool: ...
    def carry_out(self, actions: list[Action]) -> None: ...
    def ended(self, exchange: Exchange, actions: list[Action]) -> None: ...


class Exchange:
    """Receives the replica's answer. `outcome` says how it ended, once it has."""

    # What most exchanges never change stands here: setting it for each one would cost as much as
    # admission.
    leased = True
    takes_chunks = False
    granted: Forward | None = None
    granted_at = 0.0
    first_at: float | None = None  # first byte of the answer's body
    paused = False  # the client reads slower than the replica writes
    response_bytes = 0
    events = 0  # of a stream, passed so far: about as many as tokens
    outcome: str | None = None  # None: under way
    status: int | None = None
    code: str | None = None
    streamed = False
    # Its client has a head from the gateway and gets comments, until the engine's events begin.
    is_commenting = False
    _comment_sent_at = 0.0  # when it last got a comment
    # The body of an answer that is no stream, where one was promised; or of a complaint that may
    # be about the context, and whose head is not handed on yet.
    _complaint = b""
    _held: ResponseHead | None = None
    _streams: bool | None = None  # its client wants a stream of events; None: nobody has looked
    flow = ""  # whose turn it took
    body_summary: BodySummary = NOTHING_READ
    _unsketched = b""  # the body, from when it was sent until somebody has time for a look at it
    _prompt: PromptLook | None = None
    _call: Call | None = None
    _attempt: Forward | None = None
    _resumed_at = 0.0
    _endless = False  # the answer has no length that was promised: something may be added to it
    _first = b""
    _whole = b""  # an answer that came at once
    _tail = _NOTHING  # the last pieces of one that did not
    # Chunks that went from connection to connection, not accounted for yet.
    _passed: list[bytes] | None = None

    def __init__(
        self,
        request_id: str,
        request: ServerRequest,
        plan: RequestPlan,
        model: str,
        body: bytes,
        proxy: ProxyPort,
    ) -> None:
        self.id = request_id
        self.request = request
        self.plan = plan
        self.model = model
        self.request_bytes = len(body)
        # `heard_at` > `granted_at`: a byte came from the replica.
        self.arrived_at = self.heard_at = time.monotonic()
        self._body = body
        self._proxy = proxy
        request.on_gone = self._client_gone
        request.on_pause = self._pause
        request.on_resume = self._resume

    # Admission's side

    def forward(self, action: Forward) -> None:
        self.granted = self._attempt = action
        self.granted_at = self.heard_at = time.monotonic()
        if self._held is not None:  # an earlier attempt broke in the middle of a complaint
            self._held = None
            self._complaint = b""
        pool = self._proxy.pool(action.replica)
        plan = self.plan
        body = self._body
        name = action.replica.name
        request = self.request
        head = plan.heads.get(name)
        if head is None:  # all of it but the body's length
            lines = plan.lines
            if action.replica.authorization:
                lines += b"authorization: %b\r\n" % action.replica.authorization.encode()
            # The parser takes a length for a body.
            method = b"GET" if request.method == b"HEAD" else request.method
            target = pool.prefix + request.target
            head = b"%b %b HTTP/1.1\r\n%b%b" % (method, target, pool.host_line, lines)
            plan.heads[name] = head
        if body or plan.lengthy:
            head += b"content-length: %d\r\n\r\n" % len(body)
        else:
            head += b"\r\n"
        call = pool.send(head, self, body, None if self.is_commenting else self._on_whole)
        if self._attempt is action:  # it may have failed at once
            self._call = call
        if len(body) >= SKETCHED_BYTES and self._proxy.sketches.take(len(body)):
            self._unsketched = body

    def reject(self, action: Reject) -> None:
        models = self._proxy.admission.models
        loading = self.model in self._proxy.unloaded.states
        status, headers, body = rejection(
            action, self.plan.path, model=self.model, models=models, loading=loading
        )
        self.answer(status, headers, body, action.code.value, [])

    @property
    def loads_model(self) -> bool:
        """Whether it has its model loaded: only who wants an answer does, not who looks around."""
        return self.request.method in (b"POST", b"PUT", b"PATCH")

    @property
    def streams(self) -> bool:
        """Whether its client wants a stream of events."""
        if self._streams is None:
            self._streams = self.plan.path in STREAM_PATHS and wants_stream(self.request.body)
        return self._streams

    @property
    def under_way(self) -> bool:
        """Whether a replica has it."""
        return self._attempt is not None

    @property
    def begun(self) -> bool:
        """Whether something of the engine's answer has reached the client: no other replica can
        be asked for it.
        """
        return self.request.started and not self.is_commenting

    def send_keepalive(self, now: float) -> None:
        """Send a comment, every few seconds at most; the first one after the head of a stream."""
        if not self.request.started:
            self.is_commenting = self.streamed = self._endless = True
            self.status = 200
            self.request.start_with(
                200, STREAM_LINES + b"x-skep: id=%b\r\n" % self.id.encode(), None
            )
        elif (
            not self.is_commenting
            or self.paused
            or now - self._comment_sent_at < self._proxy.timeouts.comment_every_s
        ):
            return
        self._comment_sent_at = now
        self.request.write(
            f": {self._waiting_words()}, {now - self.arrived_at:.0f} s\n\n".encode()
        )

    def _waiting_words(self) -> str:
        if self.model in self._proxy.unloaded.states:
            return self._proxy.unloaded.words(self.model)
        if self.under_way:
            return "the engine reads the prompt"
        return "waiting for a slot"

    @property
    def comment_after_s(self) -> float | None:
        """The seconds of silence after which its client gets a head and comments; None: they would
        not help.
        """
        timeouts = self._proxy.timeouts
        path = self.plan.path
        if timeouts.comment_after_s is None or not self.plan.heeds_comments or not self.streams:
            return None
        if path in COMMENT_PATHS:
            return timeouts.comment_after_s
        if path in LATE_COMMENT_PATHS:
            return max(timeouts.comment_after_s, timeouts.late_comment_after_s)
        return None

    @property
    def hears_of_loading(self) -> bool:
        """Whether its client gets a head and a comment as soon as its model has to be loaded."""
        return self.plan.path in COMMENT_PATHS and self.comment_after_s is not None

    def keep_alive(self, now: float) -> None:
        """Send a comment into a stream in which nothing has happened for some seconds. Called a
        few times a second.
        """
        if self.is_commenting:
            self.send_keepalive(now)
            return
        if self.request.started or self._held is not None:
            return
        after_s = self.comment_after_s
        if after_s is not None and now - self.arrived_at >= after_s:
            self.send_keepalive(now)

    def abandon_replica(self) -> None:
        """Give up on a replica that shows no sign of life."""
        if self.begun or not self.leased:
            self.cut("replica_lost", "the replica does not respond")
        else:
            self._break_call()
            self._proxy.carry_out(self._happened(Event.GAVE_UP, time.monotonic()))

    def check_time(self, now: float) -> None:
        """End an exchange whose replica takes too long. Called a few times a second."""
        limits = self._proxy.timeouts
        if self._attempt is None or self.outcome is not None:
            return
        is_answering = self.heard_at > self.granted_at
        silent_s = now - max(self.heard_at, self._resumed_at)
        if not is_answering and now - self.granted_at > limits.first_byte_s:
            why = f"the replica sent nothing for {limits.first_byte_s:g} s"
        elif is_answering and not self.paused and silent_s > limits.idle_s:
            why = f"the replica sent nothing for {limits.idle_s:g} s in the middle of its answer"
        elif now - self.granted_at > limits.total_s:
            why = f"the answer took longer than {limits.total_s:g} s"
        else:
            return
        self.cut("replica_timeout", why)

    def cut(self, code: str, why: str) -> None:
        """Wait for nothing more: refuse the request with this code, or break its answer off."""
        self._break_call()
        if self.begun:
            self._break_off(why)
            self._end("broken", self._give_back())
        else:
            self.refuse(code, why)

    # The replica's side

    def on_head(self, head: ResponseHead, at: float) -> None:
        admission = self._proxy.admission
        if self.leased:
            if head.status in RETRY_STATUSES and admission.may_retry(self.id, at):
                self._break_call()
                self._proxy.carry_out(
                    self._happened(Event.TURNED_AWAY, at, flag=head.status in ERROR_STATUSES)
                )
                return
            admission.answering(self.id, at, complaint=head.status in ERROR_STATUSES)
        self.heard_at = at
        self.status = head.status
        lines = self._handed_on(head)
        self._tail = deque(maxlen=TAIL_PIECES)
        if self.is_commenting:
            self.is_commenting = head.status != 200 or not self.streamed
            # What the client has is a stream, whatever the engine sends.
            self.streamed = True
            self._complaint = b""
            self.takes_chunks = not self.is_commenting and self.request.takes_chunks
            if not self.is_commenting:
                self._forget_body()
            return
        if head.status in CONTEXT_STATUSES and self.plan.path in CONTEXT_PATHS:
            self._held = head
            self._complaint = b""
            return
        self._begin_answer(head, lines)

    def _begin_answer(self, head: ResponseHead, lines: bytes) -> None:
        self.request.start_with(head.status, lines, head.length)
        if self.request.takes_chunks:
            self.takes_chunks = True
            # Of whole events few are enough, and stay in the cache.
            self._tail = deque(maxlen=TAIL_PIECES_OF_LONG)
        self._endless = head.length is None
        self._forget_body()

    def _forget_body(self) -> None:
        """Drop the request's body: the answer has begun, and no other replica is asked."""
        self._body = b""
        self.request.drop_body()

    def _handed_on(self, head: ResponseHead) -> bytes:
        """Return the answer's own headers, for the client, and ours.

        Notes whether the answer is a stream of events.
        """
        if head.memo.note is None:
            headers = [
                (name, value)
                for name, value in head.headers
                if name not in NOT_HANDED_ON and not name.startswith(_LEAVE)
            ]
            content_type = head.get(b"content-type") or b""
            head.memo.note = lines_of(headers), content_type.startswith(b"text/event-stream")
        lines: bytes
        lines, self.streamed = head.memo.note
        granted = self.granted
        assert granted is not None
        # One header: each costs a Python client 7 us. Mostly nothing was queued, and a figure
        # takes long to write.
        if granted.queued_s < 0.00005:
            queued_ms = "0.0"
        else:
            queued_ms = f"{granted.queued_s * 1000:.1f}"
        skep_line = (
            f"x-skep: id={self.id}; replica={granted.replica.name}; queue-ms={queued_ms}\r\n"
        ).encode()
        if granted.replica.simulated:
            return lines + skep_line + SIMULATED
        return lines + skep_line

    def _on_whole(self, head: ResponseHead, body: bytes, at: float) -> None:
        """Take a whole answer that came at once, with status 200."""
        if self.is_commenting:  # its client has a head already
            self.on_head(head, at)
            if body:
                self.on_body(body, at)
            self.on_end(at)
            return
        request = self.request
        request.send_whole(head.status, self._handed_on(head), body)
        self._attempt = self._call = None
        self.status = head.status
        self.heard_at = at
        self.response_bytes = len(body)
        if body:
            self.first_at = at
            if self.leased:  # a request that takes no slot has no tokens
                self._whole = body
            if self.streamed:
                self.events = body.count(b"data:")
        actions: list[Action] = []
        if self.leased:
            actions = self._proxy.admission.finished(self.id, at, answered=True)
        self._end("answered", actions)
        # Last: the client's next request may be waiting, and wants what this one had.
        request.carrier.finished(request)

    def on_body(self, data: bytes, at: float) -> None:
        if self.is_commenting:
            self.heard_at = at
            self._complaint += data[: ERROR_BYTES - len(self._complaint)]
            return
        if self._held is not None:
            self.heard_at = at
            self._complaint += data
            if len(self._complaint) > ERROR_BYTES:
                self._hand_on_held()
            return
        self.request.write(data)
        self.count_passed(at)
        self.heard_at = at
        if self.first_at is None:
            self.first_at = at
            self._first = data
        if self.streamed:
            self.events += data.count(b"data:")
        self.response_bytes += len(data)
        # The last pieces tell how many tokens it has. A request that takes no slot has none.
        if self.leased:
            self._tail.append((data,))
            if self.response_bytes > TAIL_BYTES:
                while len(self._tail) > TAIL_PIECES_OF_LONG:
                    self._tail.popleft()

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:
        request = self.request
        request.carrier.send(request, raw)
        if self._passed is None:
            self._pass_on()
        else:
            self.count_passed(at)
        self.heard_at = at
        if self.first_at is None:
            self.first_at = at
            self._first = strip_chunk_headers(raw)
        if self.streamed:
            self.events += raw.count(b"data:")
        self.response_bytes += carried
        self._tail.append(raw)

    def _pass_on(self) -> None:
        """Have the next chunks go from connection to connection."""
        carrier = self.request.carrier
        if (
            isinstance(carrier, ServerConnection)
            and carrier.transport is not None
            and self._call is not None
        ):
            self._passed = []
            self._call.pass_on(carrier.transport.write, self._passed)

    def count_passed(self, at: float) -> None:
        """Account for the chunks that went from connection to connection since the last time."""
        passed = self._passed
        if not passed:
            return
        self.heard_at = at
        lengths = [*map(len, passed)]
        if self.streamed:
            self.events += b"".join(passed).count(b"data:")
        self.response_bytes += sum(map(CARRIED.__getitem__, lengths))
        self._tail.extend(passed)
        carrier = self.request.carrier
        assert isinstance(carrier, ServerConnection)
        carrier.written += sum(lengths)
        passed.clear()

    def on_end(self, at: float) -> None:
        self._attempt = self._call = None
        if self.is_commenting:
            self._complain(at)
            return
        if self._held is not None:
            self._tell_held()
        self.request.on_gone = None
        self._end("answered", self._proxy.admission.finished(self.id, at) if self.leased else [])
        # Last: the client's next request may be waiting, and wants what this one had.
        self.request.finish()

    def on_failure(self, failure: WireFailure, at: float) -> None:
        self._attempt = self._call = None
        # We closed, because of its answer: the engine may work on.
        is_ours = failure.kind == "protocol"
        if self.begun:
            # "connection lost" is what some agents look for before they try again.
            self._break_off(
                f"connection lost: the replica stopped in the middle of its answer: {failure}"
            )
            if self.leased and not is_ours:
                actions = self._happened(Event.FINISHED, at)
            else:
                actions = self._give_back()
            self._end("broken", actions)
        elif self.leased and is_ours:
            self._proxy.carry_out(self._happened(Event.GAVE_UP, at))
        elif self.leased:
            # A refused connection costs no attempt: nothing was sent.
            counts = failure.kind != "connect"
            self._proxy.carry_out(self._happened(Event.FAILED, at, flag=counts))
        else:
            self.refuse("replica_lost", f"the replica could not be reached: {failure}")

    def _tell_held(self) -> None:
        """Hand a complaint on: one about the context in words that the client knows."""
        head = self._held
        body = self._complaint
        assert head is not None
        exceeded = context_exceeded(body)
        if exceeded is None:
            self._hand_on_held()
            return
        self._held = None
        changed = in_clients_words(body, exceeded, anthropic=speaks_anthropic(self.plan.path))
        self.status = CONTEXT_STATUS
        self.code = CONTEXT_EXCEEDED
        self.response_bytes = len(changed)
        self._forget_body()
        self.request.start_with(CONTEXT_STATUS, self._handed_on(head), len(changed))
        self.request.write(changed)

    def _hand_on_held(self) -> None:
        """Hand a complaint on as it is."""
        head = self._held
        complaint = self._complaint
        assert head is not None
        self._held = None
        self._complaint = b""
        self._begin_answer(head, self._handed_on(head))
        if complaint:
            self.on_body(complaint, self.heard_at)

    def _complain(self, at: float) -> None:
        """Send an error event: the engine's whole answer is no stream, and the client was promised
        one.
        """
        path = self.plan.path
        exceeded = context_exceeded(self._complaint) if path in CONTEXT_PATHS else None
        if exceeded is not None:
            if speaks_anthropic(path):
                why = exceeded.anthropic_words()
            else:
                why = exceeded.message
            body = error_body(CONTEXT_EXCEEDED, why, path)
            actions = self._happened(Event.FINISHED, at)
            self.answer(CONTEXT_STATUS, [], body, CONTEXT_EXCEEDED, actions)
            return
        document = json_object(self._complaint)
        if document:
            message = message_of(document)
        else:
            message = self._complaint.decode("utf-8", "replace")
        why = (
            f"the engine answered HTTP {self.status}: "
            f"{message[:ERROR_CHARACTERS] or 'no reason given'}"
        )
        body = error_body("engine_refused", why, path)
        self.answer(502, [], body, "engine_refused", self._happened(Event.FINISHED, at))

    def tokens(self) -> Tokens:
        """Return how many tokens the answer says it has."""
        if self.outcome not in ("answered", "broken", "hung_up"):
            return NO_COUNTS
        if not self._tail and not self._whole:
            return NO_COUNTS
        return tokens_of(self._first or self._whole, self._last_pieces(), streamed=self.streamed)

    def _last_pieces(self) -> list[bytes]:
        if self._whole:
            return [self._whole]
        return [
            piece[0] if isinstance(piece, tuple) else strip_chunk_headers(piece)
            for piece in self._tail
        ]

    def sketch_prompt(self) -> bool:
        """Make the sketch of the prompt, and return whether there was one to be made. Called when
        the request is on its way: it takes up to some milliseconds.
        """
        body = self._unsketched
        if not body:
            return False
        self._unsketched = b""
        if self.leased and self.plan.path in STREAM_PATHS:
            self._prompt = look_at_prompt(body)
        return True

    def session(self, tokens: Tokens) -> RequestSession | None:
        """Return which session the request belongs to, and what it adds to it; None: to none."""
        plan = self.plan
        summary = self.body_summary
        if self._unsketched:
            self.sketch_prompt()
        prompt = self._prompt
        name = plan.session if plan.session is not None else summary.session
        beginning = summary.conversation
        if beginning is None and prompt is not None:
            beginning = prompt.conversation
        if name is None and (beginning is None or self.request_bytes < SKETCHED_BYTES):
            return None
        conversation = conversation_in(name, plan.agent, beginning)
        if conversation is None or not self.leased or plan.path not in STREAM_PATHS:
            return None
        return RequestSession(
            name if name is not None else conversation,
            conversation,
            prompt.sketch if prompt is not None else None,
            self._calls_tool(),
            tokens.reasoning or 0,
        )

    def _calls_tool(self) -> bool | None:
        """Return whether the answer ends in the call of a tool; None: it has no end."""
        if self.outcome == "answered" and self.status == 200:
            return ends_in_tool_call(self._last_pieces())
        return None

    def forget(self) -> None:
        """Drop the pieces of the answer: it has been accounted for."""
        self._unsketched = b""
        self._tail = _NOTHING
        self._whole = b""
        self._first = b""

    # The client's side

    def _client_gone(self) -> None:
        self._break_call()
        self._end("hung_up", self._give_back())

    def _pause(self) -> None:
        self.paused = True
        if self._call is not None:
            self._call.pause()

    def _resume(self) -> None:
        self.paused = False
        self._resumed_at = time.monotonic()
        if self._call is not None:
            self._call.resume()

    # Inside

    def _break_call(self) -> None:
        call = self._call
        self._call = None
        self._attempt = None
        if call is not None:
            call.abort()

    def _give_back(self) -> list[Action]:
        """Put its slot into release: the engine may go on for a while."""
        if self.leased:
            return self._happened(Event.HUNG_UP, time.monotonic())
        return []

    def _happened(self, event: Event, at: float, *, flag: bool = False) -> list[Action]:
        return self._proxy.admission.happened(event, self.id, at, flag)

    def _break_off(self, why: str) -> None:
        """End an answer that began and will not be whole: with an event inside a stream, elsewhere
        by breaking the connection.
        """
        self.request.on_gone = None
        self.code = "stream_cut"
        if self.streamed and self._endless:
            self.request.keep_alive = False
            body = error_body("stream_cut", why, self.plan.path)
            self.request.write(event_of(body, self.plan.path))
            self.request.finish()
        else:
            self.request.cut()

    def refuse(self, code: str, why: str) -> None:
        body = error_body(code, why, self.plan.path)
        status = ERRORS[code][0]
        headers = retry_headers(1.0 if status == 429 or status >= 500 else None)
        self.answer(status, headers, body, code, self._give_back())

    def answer(
        self, status: int, headers: Headers, body: bytes, code: str, actions: list[Action]
    ) -> None:
        self.status = 200 if self.is_commenting else status
        self.code = code
        self.request.on_gone = None
        self._end("refused", actions)
        if self.is_commenting:
            self.request.write(event_of(body, self.plan.path))
            self.request.finish()
            return
        self.request.respond(status, [*headers, (b"x-skep", b"id=" + self.id.encode())], body)

    def _end(self, outcome: str, actions: list[Action]) -> None:
        assert self.outcome is None
        if self._passed:
            self.count_passed(self.heard_at)
        self.outcome = outcome
        if self._body:  # what is kept for the accounts must not keep megabytes
            self._body = b""
            self.request.drop_body()
        # No circle of references is left behind.
        self.request.on_gone = self.request.on_pause = self.request.on_resume = None
        self._proxy.ended(self, actions)
