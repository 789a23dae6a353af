"""What `skep plan` does between its flags and its output: read the model, read the rigs, choose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from skep.catalog.models import checkpoint_of
from skep.catalog.presets import DRAFT_METHODS
from skep.config.rigs import ResolvedRig, find_rig, parse_spec, rig_of_host
from skep.deploy.commands import command_lines, gateway_line, up_line
from skep.deploy.evidence import EVIDENCE, evidence
from skep.engines.discovery import engine_kinds, is_installed
from skep.errors import SkepError, UserError, WeightsError
from skep.planner.candidates import (
    AGENT_INPUT_TOKENS,
    AGENT_OUTPUT_TOKENS,
    ENGINES,
    USUAL_RAM_GIB,
    PinnedSizes,
    Pins,
    PlanGoal,
)
from skep.planner.choose import Plan, PlanChoice, account, choose, fits_nowhere
from skep.planner.memory import KV_POOL, memory, weights_bytes
from skep.planner.quants import QUANTS, Quant, find_kv, find_quant, known_quant
from skep.planner.ranking import BasisOf, Predicted, ranked
from skep.planner.rigs import of_machines
from skep.planner.rules import runs_cuda_kernels
from skep.planner.setup import Rig, Speculation
from skep.planner.step import TEXTS
from skep.units import format_bytes

if TYPE_CHECKING:
    from skep.catalog.models import Geometry

GOALS, SHAPES = ("throughput", "latency", "context"), ("steady", "burst", "mixed")
_QUANT_ENDINGS = ("awq", "gptq", "fp8", "nvfp4", "mxfp4", "autoround", "int4", "w4a16", "w8a8", "bf16")
_METHODS = {"modelopt": "fp8", "fbgemm_fp8": "fp8", "modelopt_fp4": "nvfp4", "awq_marlin": "awq", "gptq_marlin": "gptq"}
MOST_PRICE = 1e9
_NO_LIMIT = 1 << 40


class PlanFlags(PinnedSizes, frozen=True):
    """As they were typed."""

    model: str
    gpu: tuple[str, ...] = ()
    gpu_spec: tuple[str, ...] = ()
    link: str | None = None
    price: tuple[float, ...] = ()
    agents: int = 4
    goal: str = "throughput"
    slo: str | None = None
    input_tokens: int | None = None  # None: as an agent's
    output_tokens: int | None = None
    shape: str = "steady"
    engine: tuple[str, ...] = ()
    quant: str | None = None
    kv: str | None = None
    spec: str | None = None
    text: str = "mixed"
    no_graphs: bool = False
    vision: bool = False


class ModelFound(Struct, frozen=True):
    geometry: Geometry
    quant: Quant | None = None  # of the files, where they were read
    checkpoint: str | None = None  # where they lie
    notes: tuple[str, ...] = ()
    engine: str | None = None  # that reads them, where no other does
    unknown_quant: str | None = None  # what their configuration calls a format that is not known here


class PlanAnswer(Struct, frozen=True):
    flags: PlanFlags
    model: ModelFound
    goal: PlanGoal
    pins: Pins
    engines: tuple[str, ...]
    choices: tuple[PlanChoice, ...]  # one a rig, in the order of --gpu
    notes: tuple[str, ...]

    @property
    def ranked(self) -> list[tuple[PlanChoice, Plan]]:
        """All plans of all rigs, best first."""
        pairs = {id(plan.rated): (choice, plan) for choice in self.choices for plan in choice.plans}
        return [pairs[id(rated)] for rated in ranked(plan.rated for _, plan in pairs.values())]


def answer_plan(flags: PlanFlags, store: Path, *, files: bool = True) -> PlanAnswer:
    """`files`: the model may be a file or a folder of this machine."""
    model = read_model(flags.model) if files else model_by_name(flags.model)
    goal = goal_of(flags, model)
    rigs = read_rigs(flags, store)
    pins = pins_of(flags, model)
    elsewhere, quant = flags.gpu or flags.gpu_spec, pins.quant.id if pins.quant else None
    bases = [own_basis(store, model.geometry.id, quant, found.rig if elsewhere else None) for found in rigs]
    each = [engines_of(flags, model, found) for found in rigs]
    engines = tuple(dict.fromkeys(name for names in each for name in names))
    # in another format than those that were named, the files are others, yet to be made
    same = flags.quant is None or model.quant is None or model.quant.family == find_quant(flags.quant).family
    checkpoint = model.checkpoint if same else None
    for found in rigs:
        check_flags(found.rig, goal, pins, model.geometry)
    choices = tuple(
        choose(model.geometry, found.rig, goal, pins, engines=names, basis_of=basis_of, checkpoint=checkpoint)
        for found, names, basis_of in zip(rigs, each, bases, strict=True)
    )
    notes = [
        *model.notes,
        *(n for found in rigs for n in found.notes),
        *(basis_of(name).note for basis_of in bases for name in engines),
    ]
    notes += evidence(choices, goal.agents)
    return PlanAnswer(flags, model, goal, pins, engines, choices, tuple(dict.fromkeys(filter(None, notes))))


def nothing_fits(found: PlanAnswer) -> SkepError | None:
    """Where no rig has a plan; exit 3 wins over exit 2."""
    if any(choice.plans for choice in found.choices):
        return None
    tried = [(one, one.rejected[0].engine if one.rejected else found.engines[0]) for one in found.choices]
    errors = (fits_nowhere(found.model.geometry, one, found.goal, found.pins, engine) for one, engine in tried)
    return max(errors, key=lambda error: error.exit_code)


def goal_of(flags: PlanFlags, model: ModelFound) -> PlanGoal:
    """Return what is wanted; where nobody says how long a task is, an agent's, as far as the context is enough."""
    _one_of("--goal", flags.goal, GOALS)
    _one_of("--shape", flags.shape, SHAPES)
    _one_of("--text", flags.text, TEXTS)
    limits: tuple[tuple[str, float], ...] = ()
    if flags.slo is not None:
        from skep.stats.slo import SloLimits

        limits = tuple((limit.name, limit.ms) for limit in SloLimits.parse(flags.slo).limits)
    most = min(flags.context or _NO_LIMIT, model.geometry.max_context or _NO_LIMIT)
    output = flags.output_tokens or min(AGENT_OUTPUT_TOKENS, max(1, most // 8))
    prompt = flags.input_tokens or min(AGENT_INPUT_TOKENS, max(1, most - output))
    return PlanGoal(flags.goal, flags.agents, prompt, output, flags.shape, limits)


def check_flags(rig: Rig, goal: PlanGoal, pins: Pins, model: Geometry | None = None) -> None:
    """Refuse flags that cannot all be meant, or not of this model."""
    if model is not None and model.max_context is not None:
        most, made_for = model.max_context, f"that {model.id} was made for"
        if (pins.context or 0) > most:
            hint = f"use --context {most} at most, or a config.json with rope scaling"
            raise UserError(f"--context {pins.context} is beyond the {most} tokens {made_for}", hint=hint)
        if goal.need_tokens > most:
            hint = "lower --prompt-tokens or --output-tokens, or name a config.json with rope scaling"
            raise UserError(f"a task of {goal.need_tokens} tokens is beyond the {most} {made_for}", hint=hint)
    needed = (pins.tp or 1) * (pins.pp or 1) * (pins.replicas or 1)
    if needed > len(rig.cards):
        there = f"{len(rig.cards)} card{'s' if len(rig.cards) > 1 else ''}"
        hint = "the cards are TP x PP x replicas; leave one out and skep chooses it"
        raise UserError(f"{pins.layout_words} needs {needed} cards, `{rig.title}` has {there}", hint=hint)
    if pins.context is not None and pins.context < goal.need_tokens:
        hint = "raise --context, or lower --prompt-tokens and --output-tokens"
        raise UserError(f"--context {pins.context} is less than a task's {goal.need_tokens} tokens", hint=hint)


def pins_of(flags: PlanFlags, model: ModelFound) -> Pins:
    if flags.utilization is not None and not 0 < flags.utilization <= 1:
        raise UserError(f"--memory-share {flags.utilization:g} is not a share of a card", hint="write it as 0.9")
    quant = find_quant(flags.quant) if flags.quant else model.quant
    known = model.quant
    if quant is not None and known is not None and known.family not in ("half", quant.family):
        raise UserError(f"--quant {quant.id} contradicts `{flags.model}`, which is {known.title}",
                        hint="leave --quant out, or name the checkpoint in that format")  # fmt: skip
    if quant is None and model.unknown_quant is not None:
        raise UserError(f"`{flags.model}` is quantized with `{model.unknown_quant}`, which skep does not know",
                        hint="name the nearest format with --quant: " + ", ".join(QUANTS))  # fmt: skip
    spec, no_spec = _speculation(flags.spec, flags.text)
    sizes = {name: getattr(flags, name) for name in PinnedSizes.__struct_fields__}
    kv = find_kv(flags.kv) if flags.kv else None
    return Pins(
        quant=quant, kv=kv, spec=spec, no_spec=no_spec, text=flags.text, graphs=not flags.no_graphs,
        vision=flags.vision, **sizes,
    )  # fmt: skip


def engines_of(flags: PlanFlags, model: ModelFound, rig: ResolvedRig) -> tuple[str, ...]:
    """GGUF, Apple's chips and NVIDIA's oldest are llama.cpp's, folders the others'; else all that load one may win."""
    words = (name.strip().lower().replace("llama.cpp", "llamacpp") for each in flags.engine for name in each.split(","))
    named = tuple(dict.fromkeys(words))
    if "all" in named:
        return ENGINES
    for name in named:
        _one_of("--engine", name, ENGINES)
    if named:
        return named
    pinned = find_quant(flags.quant) if flags.quant else model.quant
    gguf = pinned is not None and pinned.family == "gguf"
    if gguf or model.engine == "llamacpp" or not any(runs_cuda_kernels(card) for card in rig.rig.cards):
        return ("llamacpp",)
    return ENGINES if pinned is None and model.checkpoint is None else ("vllm", "sglang")


def read_rigs(flags: PlanFlags, store: Path) -> tuple[ResolvedRig, ...]:
    known = {spec.id: spec for spec in map(parse_spec, flags.gpu_spec)}
    names = flags.gpu or tuple(known)
    if len(flags.price) > 1 and len(flags.price) != len(names):
        what = f"{len(flags.price)} --price-card for {len(names)} --gpu"
        raise UserError(what, hint="give one for all, or one for each")
    wrong = next((price for price in flags.price if not 0 < price < MOST_PRICE), None)
    if wrong is not None:
        raise UserError(f"--price-card {wrong:g} is not a price", hint="write it as --price-card 800")
    if not names:
        from skep.deploy.stored_calibration import calibrated_rig
        from skep.host.facts import read_host

        host = read_host()
        if not host.gpus and (rig := calibrated_rig(store, host)) is not None:
            return (ResolvedRig(rig, ("no GPU here: planned for the CPU as `skep calibrate` measured it",)),)
        return (rig_of_host(host, flags.link, price=flags.price[0] if flags.price else None),)
    prices: tuple[float | None, ...] = flags.price or (None,) * len(names)
    if len(flags.price) == 1:  # for the rigs that say none themselves
        own = len(names) > 1 and any("@" not in name for name in names)
        prices = tuple(None if own and "@" in name else flags.price[0] for name in names)
    found = [find_rig(name, flags.link, price=price, known=known) for name, price in zip(names, prices, strict=True)]
    titles = [one.rig.title for one in found]
    apart: list[ResolvedRig] = []
    for one, name in zip(found, names, strict=True):
        title = one.rig.title
        if titles.count(title) > 1:  # rigs of the same cards are called as they were written
            _, colon, links = name.partition(":")
            price = re.search(r"@\s*([\d.]+)", name)
            title += f"@{price[1]}" if price else ""
            title += f": {links.strip()}" if colon and links.strip() else ""
        while any(other.rig.title == title for other in apart):
            title += " again"
        apart.append(replace(one, rig=replace(one.rig, title=title)))
    return tuple(apart)


def read_model(name: str) -> ModelFound:
    """A path wins where it looks like one: `qwen3-8b` is a name even beside a folder of that name."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return _read_gguf(path, name)
    # `models/mine` with a configuration in it: with a slash, so it is no name of the catalogue
    is_folder = len(path.parts) > 1 and (path / "config.json").is_file()
    if path.suffix == ".json" or name.startswith((".", "/", "~")) or is_folder:
        return _read_folder(path)
    from skep.catalog.models import find_geometry

    if path.is_dir() and find_geometry(name) is None:
        return _read_folder(path)
    return model_by_name(name)


def model_by_name(name: str) -> ModelFound:
    """Return a model of the catalogue. Reads no file: whoever may not know what files there are learns nothing."""
    from skep.catalog.models import geometry

    known = geometry(name)
    words = re.split(r"[\s_-]+", name.lower())
    if words[-1] == "gguf":
        return ModelFound(known, notes=(f"{name} is taken as GGUF for llama.cpp, by its name",), engine="llamacpp")
    word = next((word for word in words if word in _QUANT_ENDINGS), None)
    if word is None or known.id == name.lower():
        return ModelFound(known)
    quant = find_quant(word)
    return ModelFound(known, quant, name if "/" in name else None, (f"{name} is taken as {quant.title}, by its name",))


def _read_gguf(path: Path, name: str) -> ModelFound:
    from skep.weights.gguf import read_header
    from skep.weights.gguf_geometry import geometry_of

    try:
        header = read_header(path)
    except WeightsError as error:
        raise UserError(error.message, hint=error.hint) from None
    geometry = geometry_of(header)
    if any(tensor.type_name == "MXFP4" for tensor in header.tensors):
        return ModelFound(geometry, QUANTS["gguf_mxfp4"], name, (f"{path.name} holds MXFP4",))
    word = re.search(r"(?:^|[.\-_])(I?Q\d(?:_\w+)?|BF16|F16)$", path.stem, re.IGNORECASE)  # `Model-Q4_K_M`
    quant, by = known_quant(word[1]) if word else None, "name"
    if quant is None or quant.family != "gguf":
        by_size = (q for q in QUANTS.values() if q.family == "gguf" and q.id != "gguf_mxfp4")
        bits = path.stat().st_size * 8 / geometry.params_total
        quant, by = min(by_size, key=lambda q: abs(q.bits - bits)), "size"
    return ModelFound(geometry, quant, name, (f"{path.name} is taken as {quant.title}, by its {by}",))


def _read_folder(path: Path) -> ModelFound:
    from skep.weights.config_json import read_config, read_quantization

    geometry, said = read_config(path), read_quantization(path)
    where = str(path.parent if path.suffix == ".json" else path)
    if said is None:
        return ModelFound(geometry, QUANTS["bf16"], where)
    found = _named_quant(said.method, said.bits, floats=said.floats)
    if found is None:
        return ModelFound(geometry, None, where, unknown_quant=said.method)
    return ModelFound(geometry, found, where, (f"the configuration says {found.title}",))


def _named_quant(method: str, bits: float | None, *, floats: bool | None = None) -> Quant | None:
    """Of a `quantization_config`; None where it is none of those that are known."""
    if method in ("compressed-tensors", "modelopt", "quark") and (floats or bits == 4.5):
        return QUANTS["fp8"] if bits == 8 else QUANTS["nvfp4"] if bits in (4, 4.5) else None
    method = _METHODS.get(method, method)
    found = next(filter(None, map(known_quant, (method, method.replace("-", "_"), method.replace("_", "-")))), None)
    return QUANTS["int8"] if found is not None and bits == 8 and found.nominal == 4 else found


def _speculation(asked: str | None, text: str) -> tuple[Speculation | None, bool]:
    """`mtp:3`, with an acceptance `mtp:3:0.8`, or `none`. `text`: what the model is to write."""
    if asked is None or asked.strip().lower() == "none":
        return None, asked is not None
    method, _, rest = asked.strip().lower().partition(":")
    depth, _, acceptance = rest.partition(":")
    hint = "write it as --spec mtp:3, or with the share of accepted drafts, --spec mtp:3:0.8"
    try:
        found = Speculation(method, int(depth), float(acceptance) if acceptance else None, text)
    except ValueError:
        raise UserError(f"--spec `{asked}` has no depth", hint=hint) from None
    if method not in DRAFT_METHODS or not 1 <= found.depth <= 64 or not 0 < (found.acceptance or 0.5) <= 1:
        raise UserError(f"--spec `{asked}` is not understood", hint=f"{hint}; methods: {', '.join(DRAFT_METHODS)}")
    return found, False


def _one_of(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{flag} `{value}` is not known", hint="known: " + ", ".join(known))


def document(found: PlanAnswer, *, explain: bool = False) -> dict[str, Any]:
    """Return the JSON of docs/plan.md."""
    return {
        "model": found.model.geometry.id,
        "goal": {**to_builtins(found.goal), "limits": dict(found.goal.limits)},
        "rigs": [_rig_document(choice) for choice in found.choices],
        "plans": [plan_document(found, choice, plan, explain=explain) for choice, plan in found.ranked],
        "rejected": [
            {"rig": choice.rig.title, **_renamed(rejected)} for choice in found.choices for rejected in choice.rejected
        ],
        "runner_up": [
            {"rig": choice.rig.title, "topology": to_builtins(r.plan.setup.layout), "quant": r.plan.setup.quant.id,
             "behind": round(r.behind, 4), "why": r.why, "wins_if": r.wins_if, "tried": r.tried}
            for choice in found.choices if (r := choice.runner_up) is not None
        ],
        "further_cards": [
            {"rig": choice.rig.title, **_renamed(further)} for choice in found.choices for further in choice.further
        ],
        "notes": found.notes,
    }  # fmt: skip


def _rig_document(choice: PlanChoice) -> dict[str, Any]:
    rig, link = choice.rig, to_builtins(choice.rig.default_link) if choice.rig.default_link else None
    pairs = [{"cards": [choice.order[a], choice.order[b]], **to_builtins(one)} for a, b, one in rig.pairs]
    cards = {"cards": [card.id for card in rig.cards], "numbers": choice.order}
    return {"rig": rig.title, **cards, "link": link, "pairs": pairs, "price": rig.price}


def _renamed(record: Any) -> dict[str, Any]:
    """Return a record of the planner with the keys of the document."""
    names = {"layout": "topology", "name": "term"}
    return {names.get(key, key): value for key, value in to_builtins(record).items()}


def _rounded(point: Predicted) -> dict[str, float]:
    return {key: round(n, 2 if key == "ttft_ms" else 4) for key, n in to_builtins(point).items() if key != "band_why"}


def rests_on(plan: Plan) -> str:
    """Return what its figures rest on, in one word: a calibration, a sweep in the store, or published measurements."""
    return plan.rated.prospect.step.tuning.rests_on


def plan_document(found: PlanAnswer, choice: PlanChoice, plan: Plan, *, explain: bool = False) -> dict[str, Any]:
    setup, held = plan.setup, plan.memory
    at = plan.rated.outcome.effective_tok_s
    watts = watts_of(plan)
    made: dict[str, Any] = {
        "rig": choice.rig.title, "engine": setup.engine, "topology": to_builtins(setup.layout), "quant": setup.quant.id,
        "kv_dtype": setup.kv.id, "slots": setup.slots,
        "spec": f"{setup.spec.method}:{setup.spec.depth}" if setup.spec else None,
        "context": setup.context, "utilization": setup.utilization, "graphs": setup.graphs,
        "memory": [_renamed(term) for term in held.terms],
        "card_bytes": held.usable_bytes,
        "largest_context": plan.largest_context,
        "largest_slots": plan.largest_slots,
        "predicted": [_rounded(point) for point in plan.predicted],
        "rests_on": rests_on(plan),
        "meets_slo": plan.rated.over_limit <= 1.0 if found.goal.limits else None,
        "checkpoint": plan.checkpoint,
        "published": plan.rated.published,
        "keeps_promise": keeps_promise(plan),
        "caveats": caveats(found, plan),
        "up": start_line(found, plan),
        "launch": commands_of(plan),
        "gateway": gateway_line(setup, plan.rated.rig),
        "why": plan.why,
        "rules": [to_builtins(finding) for finding in plan.rated.findings],
        "price": choice.rig.price,
        "tok_s_per_price": round(at / choice.rig.price, 4) if choice.rig.price else None,
        "tok_s_per_watt": round(at / watts, 4) if watts else None,
    }  # fmt: skip
    if explain:
        levels = dict.fromkeys((1, found.goal.agents))
        made["explain"] = [to_builtins(account(plan.rated.prospect, found.goal, level)) for level in levels]
    return made


def start_line(found: PlanAnswer, plan: Plan) -> str | None:
    """Return the `skep up` of a plan; None where its cards are in several machines."""
    if of_machines(plan.rated.rig):
        return None
    return up_line(found.flags.model, plan.setup, plan.checkpoint, found.goal.agents)


def download_bytes(plan: Plan) -> int:
    """As the catalogue knows it, else counted from the model's geometry."""
    known = checkpoint_of(plan.checkpoint) if plan.checkpoint else None
    if known is not None and known.disk_gb is not None:
        return int(known.disk_gb * 1e9)
    return weights_bytes(plan.setup.model, plan.setup.quant)


def keeps_promise(plan: Plan) -> bool:
    """Within --slo, with room for the whole task of every agent, and not on paper only."""
    return plan.rated.over_limit <= 1.0 and plan.rated.holds_all and not plan.rated.on_paper


def caveats(found: PlanAnswer, plan: Plan) -> list[str]:
    """Return what a user must know before the start, what matters most first."""
    rated, setup, goal = plan.rated, plan.setup, found.goal
    said: list[str] = []
    known = checkpoint_of(plan.checkpoint) if plan.checkpoint else None
    if not rated.published:
        said.append(f"{setup.quant.title} of {setup.model.id} would be best, but no such checkpoint is known")
    elif plan.checkpoint is None:
        said.append(f"skep knows no checkpoint of {setup.model.id}: name yours with --checkpoint")
    if not rated.holds_all:
        at_once = (setup.slots or 1) * setup.layout.replicas
        said.append(f"memory is enough for {at_once} of {goal.agents} agents at once, the others wait")
    if rated.on_paper:
        said.append("it fits on paper only: less than the larger of 1 GiB and 5 % of a card is left")
    if setup.cpu_moe:
        ram = "" if rated.rig.ram_gib else f" ({USUAL_RAM_GIB} GiB are assumed)"
        layers = f"{setup.cpu_moe} of {setup.model.expert_layers} layers"
        said.append(f"experts of {layers} stay in system memory{ram}: how fast they are is least certain")
    if not found.flags.gpu and not found.flags.gpu_spec and not is_installed(setup.engine):
        said.append(f"{setup.engine} is not installed here: {engine_kinds()[setup.engine].install}")
    if known is not None and known.gated:
        said.append(f"{known.hub} is gated: accept its licence on its page, and set HF_TOKEN")
    if known is not None and known.origin.confidence == "C":
        said.append(f"the checkpoint {known.hub} is not confirmed")
    said += [line for line in found.notes if line.startswith(f"{EVIDENCE}{rated.rig.title}:")]
    spared = vision_bytes(plan)
    if spared:
        said.append(f"image input is off, which saves {format_bytes(spared)} a card; --vision turns it on")
    said += [f.sentence for f in rated.findings if f.verdict == "costs"]
    said += [f.sentence for f in rated.findings if f.verdict == "depends"]
    return said


def vision_bytes(plan: Plan) -> int:
    """Return what the vision tower would take of a card, where it is left out."""
    setup, card = plan.setup, plan.rated.card
    if setup.vision or not setup.model.vision_params:
        return 0
    sizes = (memory(replace(setup, vision=on), card, context=setup.context or 0) for on in (True, False))
    with_tower, without = (sum(t.bytes for t in one.terms if t.name != KV_POOL) for one in sizes)
    return with_tower - without


def commands_of(plan: Plan) -> tuple[str, ...]:
    """Return one command a replica, or a machine."""
    return command_lines(plan.setup, plan.rated.rig, checkpoint=plan.checkpoint, order=plan.order)


def watts_of(plan: Plan) -> float | None:
    """Of the cards in use, by their data sheets."""
    cards = plan.rated.rig.cards[: plan.setup.layout.cards]
    known = [card.tdp_w for card in cards if card.tdp_w is not None]
    return sum(known) if len(known) == len(cards) else None


def own_basis(store: Path, model_id: str, quant_id: str | None, rig: Rig | None = None) -> BasisOf:
    """Return the nearest calibration on this machine, or with a rig on such cards, if any; its sentence goes with
    every plan."""
    from skep.deploy.stored_calibration import calibrated_basis
    from skep.host.facts import read_host

    return calibrated_basis(store, rig or read_host(), model_id, quant_id)
