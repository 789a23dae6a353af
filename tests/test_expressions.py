"""No regular expression that sees outside input takes longer than in proportion to it.

Expressions are found, not listed: those that the modules of the tree hold, with the data files
that they compile, and those in calls of `re`. What is made while it runs is listed with what
bounds it."""

import ast
import importlib
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from re import _constants as codes
from re import _parser as parser

import msgspec
import pytest

from expression_attacks import costly_text, slow_text

SOURCE = Path(__file__).parents[1] / "src" / "skep"
FUNCTIONS = ("match", "search", "fullmatch", "findall", "finditer", "sub", "subn", "split")
CALL = re.compile(rf"\bre\.(?:compile|{'|'.join(FUNCTIONS)})\(|= *map\(re\.compile")
USE = re.compile(rf"(\w+)(?:\[\w+\])?\.({'|'.join(FUNCTIONS)})\b")
HELD = {"prefixes": {"match"}}  # how a table of expressions is used; others are searched for
# Tables of expressions that a function reads on its first use.
READ_ON_USE = ("skep.engines.diagnosis.rule_file",)

# Expressions that see nothing from outside, by module or by the name they have there.
OWN = {
    "skep.report.page._LINE_BREAK": "templates of this package",
    "skep.report.svg": "pictures that the installed Vega has drawn; it escapes the texts in them",
    "skep.web.run_cache._LEAD": "pages that skep has written; it escapes the texts in them",
    "skep.web.run_cache._STYLED": "pages that skep has written; it escapes the texts in them",
    "skep.testing.fake_answers": "answers of the fake engine, a part of the tests",
}
# Expressions that look at short texts only, and the characters of the longest.
BOUNDED = {
    "skep.engines.diagnosis": (1203, "four lines of a log, 300 characters of each"),
    "skep.workload.extraction._STRONG": (400, "the beginning of a line"),
    "skep.workload.extraction._WEAK": (400, "the beginning of a line"),
}
ONE = r"(?:Paris|Rome)(?!\w)"
# Calls whose expression is made while they run: examples of it, or what bounds its time.
IN_CHILD = "a process of its own that is ended after its time"
MADE = {
    "skep.testing.agent_script: expression": "rules of the scripted engine, a part of the tests",
    "skep.deploy.resolve: f'\\\\b{engine}>=([0-9.]+[0-9])'": "texts of the packaged catalogue",
    "skep.engines.diagnosis: text": "the rules, which `rule_file` holds",
    "skep.engines.diagnosis: says_nothing": "likewise",
    "skep.quality.harness: function": IN_CHILD,
    "skep.quality.harness: pattern": IN_CHILD,
    "skep.web.context: _PUBLIC[name]": "the expressions that the module holds",
    "skep.workload.banks: value": "is only compiled, to see whether it can be",
}
MADE_LIKE = {
    "skep.workload.reading_checks: f'(?<!\\\\w){option}'": [rf"(?<!\w){ONE}"],
    """skep.workload.reading_checks: f\"\"\"[\\\\s*_`\\\\"'“‘(\\\\[]{{0,8}}({option})\"\"\"""": [
        rf"[\s*_`\"'“‘(\[]{{0,8}}({ONE})"
    ],
}


def sources():
    """Return the texts of the modules by name."""
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "__main__.py"]
    names = [path.relative_to(SOURCE.parent).with_suffix("").parts for path in paths]
    return {".".join(name): path.read_text() for name, path in zip(names, paths, strict=True)}


def held_in(value, variable, depth=0):
    """Yield the expressions in a value, however deep, each with the variable or field it is in."""
    parts = ()
    if isinstance(value, re.Pattern):
        yield variable, value
    elif isinstance(value, msgspec.Struct):
        parts = [(field, getattr(value, field)) for field in value.__struct_fields__]
    elif isinstance(value, dict):
        parts = [(variable, part) for part in value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = [(variable, part) for part in value]
    for name, part in parts if depth < 4 else ():
        yield from held_in(part, name, depth + 1)


def methods_by_name(texts):
    """Return the methods that are called on each name, anywhere."""
    uses = defaultdict(set)
    for text in texts:
        for name, method in USE.findall(text):
            uses[name].add(method)
    return uses


def calls_of_re(tree):
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=method)):
                if method in ("compile", *FUNCTIONS):
                    yield node, method


def flags_of(node, method, names):
    place = {"sub": 4, "subn": 4, "split": 3, "compile": 1}.get(method, 2)
    given = next((key.value for key in node.keywords if key.arg == "flags"), None)
    given = given or (node.args[place] if len(node.args) > place else None)
    if given is None:
        return 0
    return value_of(given, names)


def value_of(node, names):
    """Return what an expression of Python stands for, in its module.

    NameError where it needs more than that.
    """
    return eval(compile(ast.Expression(node), "source", "eval"), dict(names))


class Collection:
    """The expressions of the tree with the methods they are used by, and the calls that make one
    while they run.
    """

    def __init__(self):
        self.places = {}
        self.methods = defaultdict(set)
        self.made = []
        texts = sources()
        used = methods_by_name(texts.values())
        for name, text in texts.items():
            if CALL.search(text):
                methods = methods_by_name([text])
                names = vars(importlib.import_module(name))
                self.add_module(
                    name,
                    text,
                    names,
                    lambda variable, own=methods: own[variable] or used[variable],
                )

    def add(self, expression, place, methods):
        self.places.setdefault(expression, place)
        self.methods[expression] |= methods

    def add_module(self, name, text, names, used):
        held = set()
        for variable, value in names.items():
            if f"{name}.{variable}" in READ_ON_USE:
                value = value()  # noqa: PLW2901
            for table, expression in held_in(value, variable):
                held.add(expression.pattern)
                if isinstance(value, re.Pattern):
                    methods = used(variable)
                else:
                    methods = HELD.get(table)
                self.add(expression, f"{name}.{variable}", methods or {"search"})
        for node, method in calls_of_re(ast.parse(text)):
            try:
                pattern = value_of(node.args[0], names)
                expression = re.compile(pattern, flags_of(node, method, names))
            except NameError:
                self.made.append(f"{name}: {ast.unparse(node.args[0])}")
                continue
            if method != "compile" or pattern not in held:
                self.add(expression, name, {method} if method in FUNCTIONS else {"search"})


@cache
def collection():
    return Collection()


def reason_for(place, table):
    return table.get(place) or table.get(place.rpartition(".")[0])


def unbounded():
    tables = (OWN, BOUNDED)
    return [
        expression
        for expression, place in collection().places.items()
        if not any(reason_for(place, table) for table in tables)
    ]


def slow_ones(expressions):
    slow = {
        expression.pattern: slow_text(expression, sorted(collection().methods[expression]))
        for expression in expressions
    }
    return {pattern: text for pattern, text in slow.items() if text is not None}


def test_no_expression_takes_longer_than_in_proportion_to_the_text():
    expressions = unbounded()
    assert len(expressions) > 100
    assert slow_ones(expressions) == {}


def test_an_expression_for_short_texts_takes_little_time_on_the_longest():
    slow = {}
    for expression, place in collection().places.items():
        if (bound := reason_for(place, BOUNDED)) is not None:
            slow[expression.pattern] = costly_text(
                expression, sorted(collection().methods[expression]), bound[0]
            )
    assert len(slow) > 150
    assert {pattern: text for pattern, text in slow.items() if text is not None} == {}


def test_an_expression_that_is_made_while_it_runs_is_like_one_that_is_tried_here():
    assert set(collection().made) == {*MADE, *MADE_LIKE}
    examples = [
        re.compile(pattern, re.MULTILINE)
        for patterns in MADE_LIKE.values()
        for pattern in patterns
    ]
    assert {example.pattern: slow_text(example, ["search"]) for example in examples} == {
        example.pattern: None for example in examples
    }


@pytest.mark.parametrize("table", [OWN, BOUNDED])
def test_an_exception_stands_for_an_expression_that_is_there(table):
    places = set(collection().places.values())
    assert [name for name in table if not any(place.startswith(name) for place in places)] == []


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(a+)+b", "match"),
        (r"(?:a|a?)+b", "search"),
        (r"\s*(\d+)\s*([a-z]*)\s*", "fullmatch"),
        (r"\s+$", "search"),
        (r'\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}', "search"),
        (r"<b>.*?</b>", "findall"),
        (r"[\s`]*(?:json)?\s*[{\[]", "match"),
        (rb"x*x*y", "match"),
    ],
)
def test_a_slow_expression_is_found(pattern, method):
    """Exponential, quadratic from one place, quadratic from every place."""
    assert slow_text(re.compile(pattern), [method]) is not None


@pytest.mark.parametrize(
    "pattern", [r"[a-z]+\d*", r"a.*b", r'"(?:[^"\\]++|\\.)*+"', r"(?:ab|cd)+$", r"\w{1,9} x"]
)
def test_an_expression_in_proportion_to_the_text_is_no_slow_one(pattern):
    assert slow_text(re.compile(pattern), ["match"]) is None


def possessive_groups(parts):
    """Yield the possessive repeats whose repeated part is more than one character."""
    for code, argument in parts:
        if code is codes.POSSESSIVE_REPEAT:
            _, _, repeated = argument
            if [code for code, _ in repeated if code not in CHARACTER_CODES] or len(repeated) > 1:
                yield argument
        for nested in nested_parts(argument):
            yield from possessive_groups(nested)


CHARACTER_CODES = {codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY, codes.CATEGORY}


def nested_parts(argument):
    if isinstance(argument, parser.SubPattern):
        yield argument
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from nested_parts(part)


def test_no_group_is_possessive_because_older_pythons_match_it_wrongly():
    """Python 3.11.2, which Debian 12 has, did not find a conversation in any large body
    (gh-106052).
    """
    wrong = [
        place
        for expression, place in collection().places.items()
        if list(possessive_groups(parser.parse(expression.pattern, expression.flags)))
    ]
    assert wrong == []


def test_a_possessive_group_is_found():
    assert list(possessive_groups(parser.parse(r"a(?:bc?|d)*+")))
    assert not list(possessive_groups(parser.parse(r"[a-z]*+\d++(?>(?:ab)*)")))
