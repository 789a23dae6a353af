"""The rules of `rules.toml`, read when the first setup is checked, the facts they compare, and
what they find.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import combinations
from typing import Any, Literal

import msgspec

from skep.catalog.drivers import need_of
from skep.catalog.engines import kind_of
from skep.catalog.gpus import Device
from skep.catalog.models import Geometry
from skep.planner import memory
from skep.planner.published import DraftFailure, draft_failure
from skep.planner.setup import CardLink, Rig, Setup
from skep.units import format_bytes

OLDEST_CC = 7.0  # vLLM documentation: "compute capability 7.0 or higher"
MARLIN_CC = 7.5  # vllm pull 45306: "its layers run on Marlin, which needs only cc >= 7.5"
MOST_RUNGS = 64
DRAFTS_FAIL = "drafts-fail"  # the finding that a preset of the same rig did not start with drafts
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "%": lambda whole, part: whole % part != 0,
    "has": operator.contains,
    "starts": str.startswith,
}


def capability(card: Device) -> float | None:
    if card.vendor == "nvidia":
        return card.compute_capability
    return None


def has_marlin(card: Device) -> bool:
    cc = capability(card) or 0
    return cc >= MARLIN_CC


def runs_cuda_kernels(card: Device) -> bool:
    """Return whether vLLM and SGLang are built for the card: for no CPU and no chip of Apple, and
    of NVIDIA's for Volta and newer.
    """
    if card.vendor in ("apple", "cpu"):
        return False
    cc = capability(card)
    return cc is None or cc >= OLDEST_CC


def used_cards(setup: Setup, rig: Rig) -> tuple[Device, ...]:
    """Return the cards the layout takes, in the rig's order; all of them where it needs more."""
    count = max(1, setup.layout.cards)
    return rig.cards[:count]


def valid_rungs(model: Geometry) -> tuple[int, ...]:
    """Return the tensor-parallel sizes that divide all heads of the model."""
    largest = min(model.heads, MOST_RUNGS)
    sizes = range(1, largest + 1)
    return tuple(tp for tp in sizes if not what_does_not_divide(model, tp))


def what_does_not_divide(model: Geometry, tp: int) -> str:
    """Return what tensor parallel of this size cannot divide; empty where it divides all.

    KV heads may be fewer than cards if they can be copied evenly. Compressed KV is copied whole.
    """
    if model.heads % tp:
        return f"{tp} does not divide the {model.heads} attention heads"
    if model.mla_rank:
        kv_kinds: tuple[int, ...] = ()
    else:
        kv_kinds = (model.kv_heads, model.full_kv_heads or model.kv_heads)
    for kv in kv_kinds:
        if kv and kv % tp and tp % kv:
            return f"{tp} cards cannot share {kv} KV heads evenly"
    linear_heads = ((model.linear_k_heads, "key"), (model.linear_v_heads, "value"))
    for count, kind in linear_heads:
        if count > 1 and count % tp:  # a single one, of Mamba, is copied
            return f"{tp} does not divide the {count} linear-attention {kind} heads"
    return ""


class Facts:
    """The facts of one setup on a rig, those of `_WORKED_OUT` when they are first asked for."""

    def __init__(self, setup: Setup, rig: Rig) -> None:
        self.setup = setup
        self.rig = rig
        self.model = setup.model
        self.quant = setup.quant
        self.kv = setup.kv
        self.layout = setup.layout
        self.engine = setup.engine
        self.spec = setup.spec
        self.used = used_cards(setup, rig)
        self.cards_in_rig = len(rig.cards)
        self.gpu_engine = kind_of(setup.engine).has_pool  # kernels by format, graphs
        self.gguf_engine = kind_of(setup.engine).reads_gguf

    def __getattr__(self, name: str) -> Any:
        if name not in _WORKED_OUT:
            raise AttributeError(name)
        value = _WORKED_OUT[name](self)
        setattr(self, name, value)
        return value

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def take_card(self, name: str) -> None:
        """Let `card`, `cc` and `level` be about the card that this fact names."""
        self.card: Device | None = getattr(self, name)
        self.cc = capability(self.card) if self.card else None
        if self.cc:
            self.level = f"SM {self.cc:g}"
        elif self.card:
            self.level = self.card.vendor
        else:
            self.level = ""

    def first(self, matches: Callable[[Device], bool]) -> Device | None:
        """Return the first card in use that matches."""
        matching = filter(matches, self.used)
        return next(matching, None)


def _link(facts: Facts) -> CardLink | None:
    """Return the slowest link inside the first tensor-parallel group; None: nobody told."""
    size = min(facts.layout.tp, facts.cards_in_rig)
    pairs = combinations(range(size), 2)
    links = [facts.rig.link(a, b) for a, b in pairs]
    known_links = [link for link in links if link is not None]
    if known_links and len(known_links) == len(links):
        return min(known_links, key=lambda link: (link.p2p, link.gbs))
    return None


def _width(facts: Facts) -> int:
    """Return the width of what tensor parallel cuts; 0: nothing."""
    if facts.model.is_moe:
        if facts.layout.ep > 1:
            return 0
        return facts.model.expert_intermediate
    return facts.model.intermediate


def _kinds(facts: Facts) -> str:
    """Return the names of the cards in use, where they differ."""
    names = dict.fromkeys(card.id for card in facts.used)
    if len(names) > 1:
        return " and ".join(names)
    return ""


def _nearest_gguf(facts: Facts) -> str:
    if facts.quant.family == "half":
        return "f16"
    if facts.quant.nominal == 8:
        return "q8_0"
    return "q4_k_m"


def _lacks_int8(card: Device) -> bool:
    """Return whether vLLM has no INT8 kernels for the card: they are for Turing to Hopper."""
    if "int8" not in card.formats:
        return True
    cc = capability(card) or MARLIN_CC
    return not MARLIN_CC <= cc < 10


_WORKED_OUT: Mapping[str, Callable[[Facts], Any]] = {
    # cards
    "first_card": lambda f: f.used[0],
    "unfit": lambda f: f.first(lambda card: not runs_cuda_kernels(card)),
    "without_bf16": lambda f: f.first(lambda card: "bf16" not in card.formats),
    "without_fp8": lambda f: f.first(lambda card: "fp8" not in card.formats),
    "without_fp4": lambda f: f.first(lambda card: "fp4" not in card.formats),
    "without_nvfp4": lambda f: f.without_fp4 or f.not_nvidia,
    "without_int8": lambda f: f.first(_lacks_int8),
    # newer vLLM has it for 7.5
    "without_marlin": lambda f: f.first(lambda card: (capability(card) or 0) < 8.0),
    "not_nvidia": lambda f: f.first(lambda card: card.vendor != "nvidia"),
    "nvidia": lambda f: f.first(lambda card: card.vendor == "nvidia"),
    "sm_86": lambda f: f.first(lambda card: capability(card) == 8.6),
    "ampere": lambda f: f.first(lambda card: card.family == "ampere"),
    "smallest": lambda f: min(f.used, key=memory.usable_bytes),
    "slowest": lambda f: min(f.used, key=lambda card: card.bandwidth_gbs),
    "kinds": _kinds,
    # links
    "link": _link,
    "link_name": lambda f: f.link.title or {"nvlink": "NVLink"}.get(f.link.kind, "PCIe"),
    "bridged": lambda f: any(
        f.rig.link(a, b) == named_link and named_link.kind == "nvlink"
        for a, b, named_link in f.rig.pairs
    ),
    # version of the engine
    "version": lambda f: memory.version_of(f.setup.version),
    "engine_title": lambda f: kind_of(f.engine).title,
    "driver_need": lambda f: need_of(f.engine, f.setup.version),
    "cuda": lambda f: f.driver_need and f.driver_need.cuda,
    "driver": lambda f: f.driver_need.driver,
    # vLLM 0.17.1 is 17, 1.2 is 1002
    "release": lambda f: f.version and f.version[0] * 1000 + (*f.version, 0)[1],
    # heads, experts, widths, layers
    "rungs": lambda f: valid_rungs(f.model),
    "rungs_listed": lambda f: ", ".join(str(n) for n in f.rungs),
    "nearest_rung": lambda f: max(
        (n for n in f.rungs if n <= min(f.layout.tp, f.cards_in_rig)), default=1
    ),
    "undivided": lambda f: what_does_not_divide(f.model, f.layout.tp),
    "heads_each": lambda f: f.model.heads // f.layout.tp,
    "kv_heads": lambda f: f.model.full_kv_heads or f.model.kv_heads,
    "kv_copies": lambda f: f.layout.tp // f.kv_heads,
    "expert_groups": lambda f: (f.layout.tp,),
    "experts_each": lambda f: f.model.experts // f.layout.ep,
    "width": _width,
    "width_of": lambda f: "expert" if f.model.is_moe else "MLP",
    "part": lambda f: f.width // f.layout.tp,
    "uncut": lambda f: (
        f"--ep {f.layout.tp} keeps experts whole" if f.model.is_moe else "a smaller --tp"
    ),
    "stage": lambda f: f.model.layers // f.layout.pp,
    "fuller_stage": lambda f: f.stage + 1,
    # formats
    "nearest_gguf": _nearest_gguf,
    # what the engine takes where nothing is said, and what follows from it
    "default": lambda f: memory.defaults(f.engine, f.first_card),
    "slots": lambda f: f.setup.slots or f.default.slots,
    "batched_tokens": lambda f: f.setup.batched_tokens or f.default.batched_tokens,
    "utilization": lambda f: f.setup.utilization or f.default.utilization,
    "spare_percent": lambda f: (1 - f.utilization) * 100,
    "tokens_each": lambda f: 1 + memory.drafts(f.setup),
    "step_tokens": lambda f: f.slots * f.tokens_each,
    "slots_recorded": lambda f: memory.LARGEST_CAPTURE // f.tokens_each,
    "recorded": lambda f: memory.capture_sizes(f.slots, memory.drafts(f.setup)),
    "sizes_recorded": lambda f: len(f.recorded),
    "largest_recorded": lambda f: f.recorded[-1],
    "graphs_size": lambda f: format_bytes(memory.graph_bytes(f.setup, f.first_card, f.slots)),
    "scratch_size": lambda f: format_bytes(
        memory.scratch_bytes(f.setup, f.slots, f.batched_tokens)
    ),
}


Answer = Literal["refused", "costs", "depends", "fine"]
_Condition = Callable[[Facts], object]  # what it returns is true or false


class Finding(msgspec.Struct, frozen=True):
    """`sentence` is one line that names the values; `remedy` what to do about it."""

    rule: str
    verdict: Answer
    sentence: str
    source: str
    remedy: str | None = None


class RuleCase(msgspec.Struct, frozen=True):
    """One thing that a rule may say. Texts are templates over the facts."""

    rule: str
    when: _Condition
    verdict: Answer
    sentence: str
    source: str
    example: str
    remedy: str | None = None

    def finding(self, facts: Facts) -> Finding:
        if self.remedy is None:
            remedy = None
        else:
            remedy = self.remedy.format_map(facts)
        sentence = self.sentence.format_map(facts)
        return Finding(self.rule, self.verdict, sentence, self.source, remedy)


class Rule(msgspec.Struct, frozen=True):
    """Several cases, of which the first that holds counts.

    `card` names the fact that they are about.
    """

    id: str
    card: str | None
    when: _Condition
    cases: tuple[RuleCase, ...]

    def find(self, facts: Facts) -> RuleCase | None:
        """Return the case that holds; None where the rule has nothing to say."""
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
    """Return all rules by id, in the file's order."""
    import tomllib
    from importlib.resources import files

    file = files("skep.planner").joinpath("rules.toml")
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    by_id = {}
    for entry in table["rule"]:
        name = entry["id"]
        cases = []
        for case in entry["case"]:
            read = {
                "when": _condition(case.get("when")),
                "source": case["source"].format_map(table["sources"]),
            }
            cases.append(RuleCase(name, **{**case, **read}))
        by_id[name] = Rule(
            id=name,
            card=entry.get("card"),
            when=_condition(entry.get("when")),
            cases=tuple(cases),
        )
    return by_id


def check(setup: Setup, rig: Rig) -> tuple[Finding, ...]:
    """Return the findings of all rules that apply, in the table's order."""
    facts = Facts(setup, rig)
    findings = []
    if setup.spec is not None and facts.cards_in_rig:
        failure = draft_failure(setup, rig)
        if failure is not None:
            findings.append(_no_start(setup, failure))
    findings += [case.finding(facts) for case in _cases(facts, rules())]
    return tuple(findings)


def _no_start(setup: Setup, failure: DraftFailure) -> Finding:
    where = f"{failure.engine} on {failure.cards}"
    sentence = f"{setup.spec} did not start in {where}, says {failure.source}: {failure.why}"
    return Finding(DRAFTS_FAIL, "costs", sentence, failure.source, "--spec none")


def find_first(
    verdict: Answer,
    setup: Setup,
    rig: Rig,
    only: Iterable[str] | None = None,
) -> Finding | None:
    """Return the first finding with that verdict, of all rules or those named."""
    facts = Facts(setup, rig)
    ids = only
    if ids is None:
        ids = _with_verdict(verdict)
    for case in _cases(facts, ids):
        if case.verdict == verdict:
            return case.finding(facts)
    return None


def refusal(setup: Setup, rig: Rig) -> Finding | None:
    """Return the first finding that forbids the setup."""
    return find_first("refused", setup, rig)


@lru_cache(maxsize=4)
def _with_verdict(verdict: Answer) -> tuple[str, ...]:
    """Return the ids of the rules with a case of that verdict."""
    table = rules()
    cases = [case for rule in table.values() for case in rule.cases]
    ids = [case.rule for case in cases if case.verdict == verdict]
    return tuple(dict.fromkeys(ids))


def _cases(facts: Facts, ids: Iterable[str]) -> Iterator[RuleCase]:
    """Yield the cases that hold; without cards only the one that says so."""
    table = rules()
    if not facts.cards_in_rig:
        ids = ("cards",)
    for rule_id in ids:
        case = table[rule_id].find(facts)
        if case is not None:
            yield case


def _condition(written: str | list[str] | None) -> _Condition:
    """Return the test of a `when`: all comparisons of one string, any string of a list, always
    where there is none.
    """
    if written is None:
        return lambda _: True
    if isinstance(written, list):
        choices = [_condition(condition) for condition in written]
        return lambda facts: any(holds(facts) for holds in choices)
    tests = [_comparison(comparison.split()) for comparison in written.split(",")]
    if len(tests) == 1:
        return tests[0]
    return lambda facts: all(holds(facts) for holds in tests)


def _comparison(words: list[str]) -> _Condition:
    if words[0] == "not":
        test = _comparison(words[1:])
        return lambda facts: not test(facts)
    left_fact = operator.attrgetter(words[0])
    if len(words) == 1:
        return left_fact
    name, right = words[1:]
    if name in ("=", "!="):
        values = {_value(word) for word in right.split("|")}
        is_expected = name == "="
        return lambda facts: (left_fact(facts) in values) is is_expected
    compare = _COMPARED[name]
    if right.startswith("{"):
        right_fact = operator.attrgetter(right.strip("{}"))
        return _fact_comparison(left_fact, compare, right_fact)
    return _value_comparison(left_fact, compare, _value(right))


def _value_comparison(
    fact: _Condition, compare: Callable[[Any, Any], bool], value: str | float
) -> _Condition:
    """Return the test of a fact against a value; it does not hold where the fact is not known."""

    def holds(facts: Facts) -> bool:
        known = fact(facts)
        return known is not None and compare(known, value)

    return holds


def _fact_comparison(
    left_fact: _Condition, compare: Callable[[Any, Any], bool], right_fact: _Condition
) -> _Condition:
    """Return the test of one fact against another; it does not hold where one is not known."""

    def holds(facts: Facts) -> bool:
        left = left_fact(facts)
        if left is None:
            return False
        right = right_fact(facts)
        return right is not None and compare(left, right)

    return holds


def _value(word: str) -> str | float:
    try:
        return float(word)
    except ValueError:
        return word
