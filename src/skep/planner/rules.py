"""The rules of `rules.toml`, read when the first setup is checked, and what they find."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Literal

from skep.planner.facts import Facts
from skep.planner.setup import Rig, Setup

Answer = Literal["refused", "costs", "depends", "fine"]
_Condition = Callable[[Facts], object]  # what it returns is true or false


@dataclass(frozen=True, slots=True)
class Finding:
    """`sentence` is one line that names the values; `remedy` what to do about it."""

    rule: str
    verdict: Answer
    sentence: str
    source: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class RuleCase:
    """One thing that a rule may say. Texts are templates over the facts."""

    rule: str
    when: _Condition
    verdict: Answer
    sentence: str
    source: str
    example: str
    remedy: str | None = None

    def finding(self, facts: Facts) -> Finding:
        remedy = None if self.remedy is None else self.remedy.format_map(facts)
        return Finding(self.rule, self.verdict, self.sentence.format_map(facts), self.source, remedy)


@dataclass(frozen=True, slots=True)
class Rule:
    """Several cases, of which the first that holds counts. `card` names the fact that they are about."""

    id: str
    card: str | None
    when: _Condition
    cases: tuple[RuleCase, ...]

    def find(self, facts: Facts) -> RuleCase | None:
        if not self.when(facts):
            return None
        if self.card is not None:
            facts.take_card(self.card)
        for case in self.cases:
            if case.when(facts):
                return case
        return None


@lru_cache(maxsize=1)
def rules() -> Mapping[str, Rule]:
    """All of them by id, in the file's order."""
    import tomllib
    from importlib.resources import files

    table = tomllib.loads(files("skep.planner").joinpath("rules.toml").read_text(encoding="utf-8"))
    return {entry["id"]: _rule(entry, table["sources"]) for entry in table["rule"]}


def check(setup: Setup, rig: Rig) -> tuple[Finding, ...]:
    """Return the findings of all rules that apply, in the table's order."""
    facts = Facts(setup, rig)
    return tuple(case.finding(facts) for case in _cases(facts, rules()))


def find_first(verdict: Answer, setup: Setup, rig: Rig, only: Iterable[str] | None = None) -> Finding | None:
    """Return the first finding with that verdict, of all rules or those named."""
    facts = Facts(setup, rig)
    for case in _cases(facts, _with_verdict(verdict) if only is None else only):
        if case.verdict == verdict:
            return case.finding(facts)
    return None


def refusal(setup: Setup, rig: Rig) -> Finding | None:
    """Return the first finding that forbids the setup."""
    return find_first("refused", setup, rig)


@lru_cache(maxsize=4)
def _with_verdict(verdict: Answer) -> tuple[str, ...]:
    return tuple(rule.id for rule in rules().values() if any(case.verdict == verdict for case in rule.cases))


def _cases(facts: Facts, ids: Iterable[str]) -> Iterator[RuleCase]:
    """Without cards there is nothing more to say than that."""
    table = rules()
    for rule_id in ids if facts.there else ("cards",):
        case = table[rule_id].find(facts)
        if case is not None:
            yield case


def _rule(entry: Mapping[str, Any], sources: Mapping[str, str]) -> Rule:
    cases = tuple(_case(entry["id"], case, sources) for case in entry["case"])
    return Rule(entry["id"], entry.get("card"), _condition(entry.get("when")), cases)


def _case(rule: str, entry: Mapping[str, Any], sources: Mapping[str, str]) -> RuleCase:
    worked_out = {"when": _condition(entry.get("when")), "source": entry["source"].format_map(sources)}
    return RuleCase(rule, **{**entry, **worked_out})


def _condition(written: str | list[str] | None) -> _Condition:
    """Return the test of a `when`: all comparisons of one string, any string of a list, always where there is none."""
    if written is None:
        return lambda _: True
    if isinstance(written, list):
        return reduce(_either, (_condition(each) for each in written))
    return reduce(_both, (_comparison(each.split()) for each in written.split(",")))


def _both(one: _Condition, other: _Condition) -> _Condition:
    return lambda facts: one(facts) and other(facts)


def _either(one: _Condition, other: _Condition) -> _Condition:
    return lambda facts: one(facts) or other(facts)


_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "%": lambda whole, part: whole % part != 0,
    "has": operator.contains,
    "starts": str.startswith,
}


def _comparison(words: list[str]) -> _Condition:
    if words[0] == "not":
        test = _comparison(words[1:])
        return lambda facts: not test(facts)
    of = operator.attrgetter(words[0])
    if len(words) == 1:
        return of
    name, right = words[1:]
    if name in ("=", "!="):
        values, wanted = {_value(each) for each in right.split("|")}, name == "="
        return lambda facts: (of(facts) in values) is wanted
    compare, value = _COMPARED[name], _value(right)
    if not right.startswith("{"):
        return lambda facts: (a := of(facts)) is not None and compare(a, value)
    other = operator.attrgetter(right.strip("{}"))
    return lambda facts: (a := of(facts)) is not None and (b := other(facts)) is not None and compare(a, b)


def _value(word: str) -> str | float:
    try:
        return float(word)
    except ValueError:
        return word
