"""The words prompts are made of: things a program handles, what is known of them, and wishes about the answer.

Changing anything here changes the prompts: raise `skep.workload.fingerprint.VERSION` with it.
"""

from __future__ import annotations

# singular, plural; of similar length, so that prompts are
THINGS = (
    ("order", "orders"), ("parcel", "parcels"), ("ticket", "tickets"), ("invoice", "invoices"),
    ("sensor", "sensors"), ("booking", "bookings"), ("recipe", "recipes"), ("player", "players"),
    ("market", "markets"), ("vessel", "vessels"), ("tenant", "tenants"), ("lesson", "lessons"),
    ("device", "devices"), ("planet", "planets"), ("report", "reports"), ("server", "servers"),
    ("worker", "workers"), ("garden", "gardens"), ("flight", "flights"), ("battery", "batteries"),
    ("camera", "cameras"), ("engine", "engines"), ("ledger", "ledgers"), ("member", "members"),
    ("module", "modules"), ("packet", "packets"), ("patient", "patients"), ("permit", "permits"),
    ("reading", "readings"), ("record", "records"), ("rental", "rentals"), ("sample", "samples"),
    ("season", "seasons"), ("signal", "signals"), ("station", "stations"), ("survey", "surveys"),
    ("train", "trains"), ("upload", "uploads"), ("vendor", "vendors"), ("voucher", "vouchers"),
)  # fmt: skip

FIELDS = (
    "price", "weight", "height", "score", "delay", "volume", "rating", "amount", "length", "budget",
    "load", "depth", "speed", "power", "width", "count", "margin", "charge", "demand", "energy",
    "tariff", "mileage", "output", "salary", "stock", "torque", "traffic", "usage", "value", "profit",
)  # fmt: skip

# Before a thing, in modules that need more names than there are things: `late_order`
ADJECTIVES = (
    "late", "open", "local", "daily", "spare", "rapid", "north", "south", "solid", "quiet", "major", "minor",
    "early", "final", "first", "heavy", "light", "mixed", "other", "prime", "rural", "urban", "short", "stale",
)  # fmt: skip

# Of one to five pieces: they fill what no wish fits
CLOSINGS = ("Please", "Thanks.", "Go ahead.", "Take your time.", "Thank you very much.")

WISHES = (
    "Be brief.",
    "Stay simple.",
    "No imports.",
    "Use type hints.",
    "Keep it readable.",
    "Mind the edge cases.",
    "Use plain functions.",
    "Mention the complexity.",
    "Prefer a single pass.",
    "Do not change the input.",
    "Raise ValueError on bad input.",
    "Assume the input may be empty.",
    "The input may hold duplicates.",
    "Return early where it helps.",
    "Name the cases that are not covered.",
    "Use only the standard library.",
    "It must run on Python 3.11 or newer.",
    "Keep every function under twenty lines.",
    "Say which part is likely to be slow.",
    "The caller may pass a generator instead of a list.",
    "Show one example call with its result.",
    "Keep the names of the arguments as they are.",
    "It is called about {number} times per second.",
    "A typical call handles {number} {things}.",
    "The {field} of one {thing} is never negative.",
    "Two {things} may share the same {field}.",
    "Missing values of {field} arrive as None.",
)
