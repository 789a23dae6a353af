"""Pages from the Jinja2 templates of `templates/`: reports, which refer to no other file, and
pieces for the dashboard.

What a template shows is escaped; only `Markup` is let through. Imported late: Jinja2 takes longer
than most commands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from markupsafe import Markup

from skep import units
from skep.bench.stored_run import kept_words
from skep.report import theme
from skep.report.columns import Column, Record, present
from skep.report.svg import picture

_LINE_BREAK = re.compile(r"(\A|>)?\s*\n\s*(?=(<|\Z)?)")
_FILTERS = (
    "fact_list", "milliseconds", "moment", "number", "percent", "public_url", "seconds",
    "shortened", "times",
)  # fmt: skip


class JoinedLines(Extension):
    """A line break beside a tag or an expression is not content, so that templates can be
    indented.
    """

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        for token in stream:
            joined = token.value
            if token.type == "data":
                joined = _LINE_BREAK.sub(
                    lambda line_break: (
                        " " if line_break[1] is line_break[2] is None else line_break[1] or ""
                    ),
                    token.value,
                )
            yield Token(token.lineno, token.type, joined)


def make_environment(*packages: str) -> Environment:
    """Return what renders the templates of these packages, those of the first before those of the
    next.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        extensions=[JoinedLines],
    )
    environment.globals |= {"theme": theme, "present": present, "column_groups": column_groups}
    environment.filters |= {name: getattr(units, name) for name in _FILTERS}
    environment.tests["known"] = units.known
    return environment


@cache
def _reports() -> Environment:
    environment = make_environment("skep.report")
    package = files("skep.report")
    sheet = (package / "style.css").read_text(encoding="utf-8").replace("FONT", theme.FONT)
    environment.globals |= {
        "kept_words": kept_words,
        "style": Markup(f"{theme.style_rules()}\n{sheet}"),  # noqa: S704
        "terms_of": tomllib.loads((package / "terms.toml").read_text(encoding="utf-8")),
        "picture": picture,
    }
    return environment


def render(template: str, **values: Any) -> Markup:
    return Markup(_reports().get_template(template).render(values))  # noqa: S704


def render_text(template: str, **values: Any) -> str:
    """Return plain text for a terminal; a line of a template that has only tags is none of the
    text.
    """
    loader = PackageLoader("skep.report")
    environment = Environment(  # noqa: S701
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(values).rstrip("\n")


def html_table(
    caption: str,
    columns: Sequence[Column[Record]],
    records: Sequence[Record],
    best: Sequence[int] = (),
) -> Markup:
    """Return the table of records; the first column names the row."""
    pieces: Any = _reports().get_template("pieces.html").module
    markup: Markup = pieces.records(caption, columns, records, best)
    return markup


def column_groups(columns: Sequence[Column[Any]]) -> list[tuple[str | None, list[Column[Any]]]]:
    """Return neighbours under one head, with their unit in it; columns without a head are under
    None.
    """
    heads = groupby(
        columns,
        key=lambda column: (
            column.group and f"{column.group[0]}{column.unit and f',{column.unit}'}"
        ),
    )
    return [(head, list(group)) for head, group in heads]


def _printable(value: object) -> object:
    """Return what an expression of a template writes; markup is left as it is, None is nothing."""
    if hasattr(value, "__html__"):
        return value
    if value is None:
        return ""
    return units.printable(str(value))
