"""The tables of `skep plan --formats`."""

from __future__ import annotations

from functools import partial

from skep.deploy.formats import FormatAnswer, FormatRow
from skep.report.columns import Column, as_count, plural, print_records
from skep.units import number

_MIB = 1024  # in a GiB
_text_column = partial(Column, right=False)
_HEAD: tuple[Column[FormatRow], ...] = (
    _text_column("engine", "ENGINE", lambda row: row.engine, rank=2),
    _text_column("kernel", "KERNEL", lambda row: row.kernel, rank=3),
    _text_column("layout", "LAYOUT", lambda row: row.layout, rank=1),
    Column("tok_s", "TOK/S", lambda row: row.tok_s, as_count),
    Column("context_each", "CONTEXT", lambda row: row.context_each, as_count, rank=1),
    _text_column("verdict", "VERDICT", lambda row: row.verdict),
    _text_column("why", "WHY", lambda row: row.why),
)
WEIGHTS_COLUMNS: tuple[Column[FormatRow], ...] = (
    _text_column("title", "WEIGHTS", lambda row: row.title),
    Column("size_gib", "GiB", lambda row: row.size_gib, partial(number, digits=1)),
    *_HEAD,
)
KV_COLUMNS: tuple[Column[FormatRow], ...] = (
    _text_column("title", "KV", lambda row: row.title),
    Column(
        "size_gib", "MiB/1000 TOKENS", lambda row: row.size_gib * _MIB, partial(number, digits=1)
    ),
    *_HEAD,
)


def print_formats(answer: FormatAnswer) -> None:
    agents = plural(answer.agents, "agent")
    print(  # noqa: T201
        f"{answer.model} on {answer.rig} for {agents}: nothing was measured, figures are the "
        "planner's"
    )
    print("\nWeight formats, each in its best layout")  # noqa: T201
    print_records(WEIGHTS_COLUMNS, answer.weights)
    print(f"\nKV cache types, with {answer.first} in its layout")  # noqa: T201
    print_records(KV_COLUMNS, answer.kv)
