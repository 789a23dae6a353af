"""What `skep plan` does between its flags and its output: read the model, read the rigs, choose, make a document."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep.errors import SkepError, UserError
from skep.planner.candidates import ENGINES, Goal, Pins
from skep.planner.choice import Choice, Plan, choose, fits_nowhere
from skep.planner.explain import account
from skep.planner.quants import QUANTS, Quant, find_kv, find_quant
from skep.planner.ranking import BasisOf, published_basis
from skep.planner.rig_words import Found, parse_rig, parse_spec, rig_of_host
from skep.planner.setup import Layout, Speculation

if TYPE_CHECKING:
    from skep.catalog.geometry import Geometry

GOALS, SHAPES = ("throughput", "latency", "context"), ("steady", "burst", "mixed")
_QUANT_ENDINGS = ("awq", "gptq", "fp8", "nvfp4", "mxfp4", "autoround", "int4", "w4a16", "w8a8", "bf16")
METHODS = ("mtp", "ngram", "draft", "eagle", "dflash")


@dataclass(frozen=True, slots=True)
class Flags:
    """As they were typed."""

    model: str
    gpu: tuple[str, ...] = ()
    gpu_spec: tuple[str, ...] = ()
    link: str | None = None
    price: tuple[float, ...] = ()
    agents: int = 4
    goal: str = "throughput"
    slo: str | None = None
    input_tokens: int = 1024
    output_tokens: int = 512
    shape: str = "steady"
    engine: tuple[str, ...] = ()
    quant: str | None = None
    kv: str | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    replicas: int | None = None
    slots: int | None = None
    context: int | None = None
    utilization: float | None = None
    spec: str | None = None
    no_graphs: bool = False
    batched_tokens: int | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFound:
    geometry: Geometry
    quant: Quant | None = None  # of the files, where they were read
    checkpoint: str | None = None  # where they lie
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    flags: Flags
    model: ModelFound
    goal: Goal
    pins: Pins
    engines: tuple[str, ...]
    choices: tuple[Choice, ...]  # one a rig, in the order of --gpu
    notes: tuple[str, ...]

    @property
    def ranked(self) -> list[tuple[Choice, Plan]]:
        """All plans of all rigs, best first."""
        pairs = [(choice, plan) for choice in self.choices for plan in choice.plans]
        return sorted(pairs, key=lambda pair: pair[1].rated.key, reverse=True)


def answer(flags: Flags, *, basis_of: BasisOf = published_basis) -> Answer:
    goal = goal_of(flags)
    model = read_model(flags.model)
    rigs = read_rigs(flags)
    pins = pins_of(flags, model)
    engines = engines_of(flags, model, rigs[0])
    others = tuple(name for name in ENGINES if name not in engines) if not flags.engine and len(rigs) == 1 else ()
    if model.checkpoint or any(card.vendor != "nvidia" for found in rigs for card in found.rig.cards):
        others = ()
    choices = tuple(
        choose(model.geometry, found.rig, goal, pins, engines=engines, others=others, basis_of=basis_of,
               checkpoint=model.checkpoint)
        for found in rigs
    )  # fmt: skip
    basis_notes = [basis_of(engine).note for engine in engines]
    notes = (
        *model.notes,
        *(n for found in rigs for n in found.notes),
        *basis_notes,
        *(n for c in choices for n in c.notes),
    )
    return Answer(flags, model, goal, pins, engines, choices, tuple(dict.fromkeys(n for n in notes if n)))


def nothing_fits(found: Answer) -> SkepError | None:
    """Where no rig has a plan; exit 3 wins over exit 2."""
    if any(choice.plans for choice in found.choices):
        return None
    errors = [
        fits_nowhere(found.model.geometry, choice, found.goal, found.pins, found.engines[0]) for choice in found.choices
    ]
    return max(errors, key=lambda error: error.exit_code)


def goal_of(flags: Flags) -> Goal:
    _one_of("--goal", flags.goal, GOALS)
    _one_of("--shape", flags.shape, SHAPES)
    limits: tuple[tuple[str, float], ...] = ()
    if flags.slo is not None:
        from skep.bench.limits import Limits

        limits = tuple((limit.name, limit.ms) for limit in Limits.parse(flags.slo).limits)
    return Goal(flags.goal, flags.agents, flags.input_tokens, flags.output_tokens, flags.shape, limits)


def pins_of(flags: Flags, model: ModelFound) -> Pins:
    if flags.utilization is not None and not 0 < flags.utilization <= 1:
        raise UserError(f"--utilization {flags.utilization:g} is no share of a card", hint="write it as 0.9")
    quant = find_quant(flags.quant) if flags.quant else model.quant
    spec, no_spec = _speculation(flags.spec)
    return Pins(
        quant, find_kv(flags.kv) if flags.kv else None, flags.tp, flags.pp, flags.ep, flags.replicas, flags.slots,
        flags.context, flags.utilization, spec, no_spec, not flags.no_graphs, flags.batched_tokens, flags.version,
    )  # fmt: skip


def engines_of(flags: Flags, model: ModelFound, first: Found) -> tuple[str, ...]:
    """GGUF and Apple's chips are llama.cpp's; everything else is vLLM's unless said."""
    named = tuple(dict.fromkeys(name.strip().lower() for each in flags.engine for name in each.split(",")))
    if "all" in named:
        return ENGINES
    for name in named:
        _one_of("--engine", {"llama.cpp": "llamacpp"}.get(name, name), ENGINES)
    if named:
        return tuple({"llama.cpp": "llamacpp"}.get(name, name) for name in named)
    pinned = find_quant(flags.quant) if flags.quant else model.quant
    gguf = pinned is not None and pinned.family == "gguf"
    return ("llamacpp",) if gguf or all(card.vendor == "apple" for card in first.rig.cards) else ("vllm",)


def read_rigs(flags: Flags) -> tuple[Found, ...]:
    known = {spec.id: spec for spec in map(parse_spec, flags.gpu_spec)}
    names = flags.gpu or tuple(known)
    if len(flags.price) > 1 and len(flags.price) != len(names):
        raise UserError(f"{len(flags.price)} --price for {len(names)} --gpu", hint="give one for all, or one for each")
    prices = flags.price if len(flags.price) > 1 else (flags.price or (None,)) * max(1, len(names))
    if not names:
        from skep.host.facts import read_host

        return (rig_of_host(read_host(), flags.link, price=prices[0]),)
    return tuple(
        Found(parse_rig(name, flags.link, price=price, known=known))
        for name, price in zip(names, prices, strict=True)
    )  # fmt: skip


def read_model(name: str) -> ModelFound:
    """A path wins only where it looks like one: `qwen3-8b` is a name even beside a folder of that name."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        from skep.weights.gguf import read_header
        from skep.weights.gguf_geometry import geometry_of

        geometry = geometry_of(read_header(path))
        quant = _gguf_quant(path.stat().st_size * 8 / geometry.params_total)
        return ModelFound(geometry, quant, name, (f"{path.name} is taken as {quant.title}, by its size",))
    if path.suffix == ".json" or name.startswith((".", "/", "~")):
        from skep.weights.config_json import read_config, read_quantization

        geometry, said = read_config(path), read_quantization(path)
        found = None if said is None else _named_quant(said.method, said.bits)
        where = str(path.parent if path.suffix == ".json" else path)
        notes = (f"the configuration says {found.title}",) if found else ()
        return ModelFound(geometry, found or QUANTS["bf16"], where, notes)
    from skep.catalog.models import geometry as by_name

    known = by_name(name)
    word = next((word for word in re.split(r"[\s_-]+", name.lower()) if word in _QUANT_ENDINGS), None)
    if word is None or known.id == name.lower():
        return ModelFound(known)
    quant = find_quant(word)
    return ModelFound(known, quant, name if "/" in name else None, (f"{name} is taken as {quant.title}, by its name",))


def _gguf_quant(bits: float) -> Quant:
    return min((q for q in QUANTS.values() if q.family == "gguf"), key=lambda q: abs(q.bits - bits))


def _named_quant(method: str, bits: float | None) -> Quant | None:
    """Of a `quantization_config`; None where it is none of those that are known."""
    for name in (method, method.replace("-", "_"), method.replace("_", "-")):
        try:
            found = find_quant(name)
        except UserError:
            continue
        eight = bits == 8 and found.nominal == 4
        return QUANTS["int8"] if eight else found
    return None


def _speculation(text: str | None) -> tuple[Speculation | None, bool]:
    """`mtp:3`, with an acceptance `mtp:3:0.8`, or `none`."""
    if text is None or text.strip().lower() == "none":
        return None, text is not None
    method, _, rest = text.strip().lower().partition(":")
    depth, _, acceptance = rest.partition(":")
    hint = "write it as --spec mtp:3, or with the share of accepted drafts, --spec mtp:3:0.8"
    try:
        found = Speculation(method, int(depth), float(acceptance) if acceptance else None)
    except ValueError:
        raise UserError(f"--spec `{text}` has no depth", hint=hint) from None
    if method not in METHODS or not 1 <= found.depth <= 64 or not 0 < (found.acceptance or 0.5) <= 1:
        raise UserError(f"--spec `{text}` is not understood", hint=f"{hint}; methods: {', '.join(METHODS)}")
    return found, False


def _one_of(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{flag} `{value}` is not known", hint="known: " + ", ".join(known))


def document(found: Answer, *, explain: bool = False) -> dict[str, Any]:
    """The JSON of docs/plan.md."""
    runner = [choice.runner_up for choice in found.choices]
    return {
        "model": found.model.geometry.id,
        "goal": {**asdict(found.goal), "limits": dict(found.goal.limits)},
        "rigs": [rig_document(choice) for choice in found.choices],
        "plans": [plan_document(found, choice, plan, explain=explain) for choice, plan in found.ranked],
        "rejected": [
            {"rig": choice.rig.title, "topology": topology(r.layout), "engine": r.engine, "quants": list(r.quants),
             "rule": r.rule, "reason": r.reason, "remedy": r.remedy}
            for choice in found.choices for r in choice.rejected
        ],
        "runner_up": [
            {"rig": choice.rig.title, "topology": topology(r.plan.setup.layout), "quant": r.plan.setup.quant.id,
             "behind": round(r.behind, 4), "wins_if": list(r.wins_if), "tried": list(r.tried)}
            for choice, r in zip(found.choices, runner, strict=True) if r is not None
        ],
        "further_cards": [
            {"rig": choice.rig.title, "cards": f.cards, "topology": topology(f.layout) if f.layout else None,
             "effective_tok_s": f.effective_tok_s, "share": f.share}
            for choice in found.choices for f in choice.further
        ],
        "other_engines": [plan_document(found, c, p, explain=explain) for c in found.choices for p in c.others],
        "notes": list(found.notes),
    }  # fmt: skip


def rig_document(choice: Choice) -> dict[str, Any]:
    rig = choice.rig
    return {
        "rig": rig.title,
        "cards": [card.id for card in rig.cards],
        "numbers": list(choice.order),
        "link": asdict(rig.default_link) if rig.default_link else None,
        "pairs": [{"cards": [choice.order[a], choice.order[b]], **asdict(link)} for a, b, link in rig.pairs],
        "price": rig.price,
    }


def topology(layout: Layout) -> dict[str, int]:
    return {"tp": layout.tp, "pp": layout.pp, "ep": layout.ep, "replicas": layout.replicas}


def plan_document(found: Answer, choice: Choice, plan: Plan, *, explain: bool = False) -> dict[str, Any]:
    setup, memory = plan.setup, plan.memory
    at = plan.rated.outcome.effective_tok_s
    watts = watts_of(plan)
    made: dict[str, Any] = {
        "rig": choice.rig.title,
        "engine": setup.engine,
        "topology": topology(setup.layout),
        "quant": setup.quant.id,
        "kv_dtype": setup.kv.id,
        "slots": setup.slots,
        "spec": f"{setup.spec.method}:{setup.spec.depth}" if setup.spec else None,
        "context": setup.context,
        "utilization": setup.utilization,
        "graphs": setup.graphs,
        "memory": [{"term": t.name, "bytes": t.bytes, "how": t.how, "inside": t.inside} for t in memory.terms],
        "card_bytes": memory.usable_bytes,
        "largest_context": plan.largest_context,
        "largest_slots": plan.largest_slots,
        "predicted": [
            {"concurrency": p.concurrency, "effective_tok_s": round(p.effective_tok_s, 4),
             "task_tok_s": round(p.task_tok_s, 4), "ttft_ms": round(p.ttft_ms, 2), "tpot_ms": round(p.tpot_ms, 4),
             "low": round(p.low, 4), "high": round(p.high, 4)}
            for p in plan.predicted
        ],
        "meets_slo": plan.rated.over_limit <= 1.0 if found.goal.limits else None,
        "launch": list(plan.launch),
        "gateway": plan.gateway,
        "why": list(plan.why),
        "rules": [asdict(finding) for finding in plan.rated.findings],
        "price": choice.rig.price,
        "tok_s_per_price": round(at / choice.rig.price, 4) if choice.rig.price else None,
        "tok_s_per_watt": round(at / watts, 4) if watts else None,
    }  # fmt: skip
    if explain:
        levels = dict.fromkeys((1, found.goal.agents))
        made["explain"] = [asdict(account(plan.rated.prospect, found.goal, level)) for level in levels]
    return made


def watts_of(plan: Plan) -> float | None:
    """Of the cards in use, by their data sheets."""
    cards = plan.rated.rig.cards[: plan.setup.layout.cards]
    known = [card.tdp_w for card in cards if card.tdp_w is not None]
    return sum(known) if len(known) == len(cards) else None


def write_page(found: Answer, path: Path) -> None:
    from skep.cli.output import note
    from skep.report.plan import plan_page

    path.write_text(plan_page(document(found, explain=True)), encoding="utf-8")
    note(f"wrote {path}")
