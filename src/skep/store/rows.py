"""Records to rows and back. Knows columns; runs no statement."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from sqlite3 import Row
from typing import Any

from skep.errors import StoreError
from skep.store.records import EngineTimings, GatewayRequest, Request, RunState, StoredRun
from skep.store.writer_process import WriterProcess, is_alive


def insert(table: str, columns: Iterable[str]) -> str:
    names = tuple(columns)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608


_PLAIN = (
    "level", "repeat", "kind", "started_s", "ended_s", "first_byte_s", "first_token_s", "last_token_s",
    "prompt_tokens", "output_tokens", "status", "queued_ms", "traffic", "scheduled_s", "session", "turn",
)  # fmt: skip
_TEXTS = ("error_kind", "error", "finish_reason", "replica", "prompt", "answer", "reasoning")
_ENGINE = ("prompt_tokens", "cached_tokens", "prompt_ms", "output_tokens", "decode_ms", "decode_tok_s", "queue_ms")

REQUEST_COLUMNS = ("run_id", *_PLAIN, *_TEXTS, *(f"engine_{name}" for name in _ENGINE), "idx", "arrivals")

_RUN_PLAIN = tuple(
    field.name for field in fields(StoredRun) if field.name not in ("state", "simulated", "config", "host", "engine")
)
GATEWAY_COLUMNS = tuple(field.name for field in fields(GatewayRequest))
GATEWAY_ROWS_AT_ONCE = 50  # 1,000 values: far below SQLite's limit of 32,766 in one statement

_plain, _texts, _engine = attrgetter(*_PLAIN), attrgetter(*_TEXTS), attrgetter(*_ENGINE)
gateway_values = attrgetter(*GATEWAY_COLUMNS)


@dataclass(frozen=True, slots=True)
class ClientSample:
    """How the measuring process itself fared during one run of one level."""

    level: int
    repeat: int
    loop_lag_p99_ms: float | None
    loop_lag_max_ms: float | None
    cpu_share: float | None  # of one core; of the busiest process where there are several
    client_limited: bool
    delivered: float | None = None  # in flight while the level was full, as a share of what was asked for
    processes: int = 1


@dataclass(frozen=True, slots=True)
class LevelFact:
    """What belongs to one run of one level and is no request: energy, the engine's own counters."""

    level: int
    repeat: int
    name: str
    fact: Mapping[str, Any]


def request_row(run_id: str, request: Request) -> tuple[Any, ...]:
    """Values in the order of `REQUEST_COLUMNS`."""
    arrivals = struct.pack(f"<{len(request.arrivals_s)}d", *request.arrivals_s)
    texts = map(storable, _texts(request))
    return (run_id, *_plain(request), *texts, *_engine(request.engine), request.index, arrivals)


def request_of(row: Row) -> Request:
    return Request(
        index=row["idx"],
        arrivals_s=_arrivals(row["arrivals"]),
        engine=EngineTimings(**{name: row[f"engine_{name}"] for name in _ENGINE}),
        **{name: row[name] for name in (*_PLAIN, *_TEXTS)},
    )


def gateway_request_of(row: Row) -> GatewayRequest:
    values = dict(zip(GATEWAY_COLUMNS, row, strict=True))
    return GatewayRequest(**values | {"streamed": bool(row["streamed"])})


@cache
def insert_gateway_rows(count: int) -> str:
    """Several rows in one statement: 40 % quicker than one by one, and the GIL is taken once for all of them."""
    row = f"({', '.join('?' * len(GATEWAY_COLUMNS))})"
    return f"INSERT INTO gateway_requests ({', '.join(GATEWAY_COLUMNS)}) VALUES {', '.join([row] * count)}"  # noqa: S608


def run_of(row: Row) -> StoredRun:
    documents: dict[str, Any] = {column: _object(row, column) for column in ("config", "host", "engine")}
    plain = {name: row[name] for name in _RUN_PLAIN}
    return StoredRun(**plain, **documents, state=_state(row), simulated=bool(row["simulated"]))


def client_sample_of(row: Row) -> ClientSample:
    values = {field.name: row[field.name] for field in fields(ClientSample)}
    return ClientSample(**values | {"client_limited": bool(row["client_limited"])})


def level_fact_of(row: Row) -> LevelFact:
    return LevelFact(row["level"], row["repeat"], row["name"], json.loads(row["fact"]))


def json_text(value: Mapping[str, Any]) -> str:
    """ASCII only, so that any string survives."""
    return json.dumps(value, allow_nan=False, sort_keys=True)


def storable(text: str | None) -> str | None:
    """Halves of a surrogate pair, which engines send in two chunks, are joined; a lone half becomes U+FFFD."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _state(row: Row) -> RunState:
    if row["outcome"] is not None:
        return RunState(row["outcome"])
    writer = WriterProcess(row["writer_pid"], row["writer_start_ticks"], row["boot_id"])
    return RunState.RUNNING if is_alive(writer) else RunState.INCOMPLETE


def _object(row: Row, column: str) -> Mapping[str, Any]:
    try:
        value: Mapping[str, Any] = json.loads(row[column])
    except ValueError as error:
        raise StoreError(f"run `{row['id']}` has unreadable JSON in its column `{column}`: {error}") from error
    return value


def _arrivals(blob: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(blob) // 8}d", blob)
