"""Small Python functions with holes for names and numbers: each can be asked for, tested, mended or documented.

`{thing}`, `{things}`, `{field}` and `{number}` are filled in by the caller. `bug` is a text of the code and what it
becomes in the broken version. Changing anything here changes the prompts: raise `fingerprint.VERSION` with it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Idea:
    name: str
    summary: str  # completes "a Python function that ..."
    code: str
    bug: tuple[str, str]

    @property
    def broken_code(self) -> str:
        return self.code.replace(*self.bug, 1)


TINY = (
    Idea(
        "total_{field}",
        "sums the {field} of all {things} above {number}",
        "def total_{field}({things}):\n    return sum(x.{field} for x in {things} if x.{field} > {number})",
        ("> {number}", "< {number}"),
    ),
    Idea(
        "top_{things}",
        "returns the {number} {things} with the highest {field}",
        "def top_{things}({things}):\n    by = lambda x: x.{field}\n    return sorted({things}, key=by)[-{number}:]",
        ("[-{number}:]", "[:{number}]"),
    ),
    Idea(
        "mean_{field}",
        "averages the {field} of {things}, or gives {number} for none",
        "def mean_{field}({things}):\n    n = len({things})\n"
        "    return sum(x.{field} for x in {things}) / n if n else {number}",
        ("/ n if n", "/ n if not n"),
    ),
    Idea(
        "clip_{field}",
        "limits the {field} of one {thing} to between 0 and {number}",
        "def clip_{field}({thing}):\n    {field} = {thing}.{field}\n    return max(0, min({field}, {number}))",
        ("max(0, min", "min(0, max"),
    ),
    Idea(
        "count_{things}",
        "counts the {things} whose {field} is at least {number}",
        "def count_{things}({things}):\n    n = 0\n    for x in {things}:\n"
        "        n += x.{field} >= {number}\n    return n",
        ("n += x", "n = x"),
    ),
    Idea(
        "first_{thing}",
        "finds the first of the {things} whose {field} exceeds {number}",
        "def first_{thing}({things}):\n    for x in {things}:\n        if x.{field} > {number}:\n            return x",
        ("            return x", "            return {things}"),
    ),
    Idea(
        "group_{things}",
        "groups {things} by {field} in steps of {number}",
        "def group_{things}({things}):\n    d = {{}}\n    for x in {things}:\n"
        "        d.setdefault(x.{field} // {number}, []).append(x)\n    return d",
        ("    return d", "        return d"),
    ),
    Idea(
        "page_of_{things}",
        "returns page k of a list of {things}, {number} to a page",
        "def page_of_{things}({things}, k):\n    start = k * {number}\n    return {things}[start : start + {number}]",
        ("start + {number}]", "{number}]"),
    ),
)

FULL = (
    Idea(
        "merge_{things}",
        "merges {things} whose time spans overlap or lie less than {number} seconds apart",
        """def merge_{things}({things}, gap_s={number}):
    merged = []
    for start, end in sorted({things}):
        if merged and start - merged[-1][1] < gap_s:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
""",
        ("max(end, merged[-1][1])", "end"),
    ),
    Idea(
        "parse_{thing}",
        "reads one {thing} from a line such as `name;{field}={number}` and names the line when it is malformed",
        """def parse_{thing}(line, default_{field}={number}):
    name, _, rest = line.strip().partition(";")
    values = dict(part.split("=", 1) for part in rest.split(",") if "=" in part)
    if not name:
        raise ValueError(f"{thing} without a name: {{line!r}}")
    return {{"name": name, "{field}": float(values.get("{field}", default_{field}))}}
""",
        ("if not name", "if name"),
    ),
    Idea(
        "moving_{field}",
        "gives the moving average of the {field} of {things} over the last {number} of them",
        """def moving_{field}({things}, window={number}):
    recent, total, averages = [], 0.0, []
    for {thing} in {things}:
        recent.append({thing}.{field})
        total += {thing}.{field}
        if len(recent) > window:
            total -= recent.pop(0)
        averages.append(total / len(recent))
    return averages
""",
        ("recent.pop(0)", "recent.pop()"),
    ),
    Idea(
        "{thing}_cache",
        "keeps the {number} {things} used last and forgets the others",
        """class {Thing}Cache:
    def __init__(self, load, capacity={number}):
        self.load, self.capacity, self.kept = load, capacity, {{}}

    def get(self, key):
        value = self.kept.pop(key, None) or self.load(key)
        self.kept[key] = value
        if len(self.kept) > self.capacity:
            self.kept.pop(next(iter(self.kept)))
        return value
""",
        ("next(iter(self.kept))", "key"),
    ),
    Idea(
        "retry_{thing}",
        "sends one {thing} again after a timeout, up to {number} times, doubling the pause",
        """def retry_{thing}(send, {thing}, sleep, attempts={number}):
    pause_s = 0.1
    for attempt in range(attempts):
        try:
            return send({thing})
        except TimeoutError:
            if attempt == attempts - 1:
                raise
            sleep(pause_s)
            pause_s *= 2
""",
        ("attempts - 1", "attempts"),
    ),
    Idea(
        "find_{thing}",
        "finds by bisection where one {thing} with a given {field} belongs among sorted {things}",
        """def find_{thing}({things}, {field}, start=0):
    low, high = start, len({things})
    while low < high:
        middle = (low + high) // 2
        if {things}[middle].{field} < {field}:
            low = middle + 1
        else:
            high = middle
    return low
""",
        ("low = middle + 1", "low = middle"),
    ),
    Idea(
        "split_{things}",
        "splits {things} into batches whose {field} together stays within {number}",
        """def split_{things}({things}, limit={number}):
    batch, used = [], 0
    for {thing} in {things}:
        if batch and used + {thing}.{field} > limit:
            yield batch
            batch, used = [], 0
        batch.append({thing})
        used += {thing}.{field}
    if batch:
        yield batch
""",
        ("batch, used = [], 0\n        batch", "batch = []\n        batch"),
    ),
    Idea(
        "order_{things}",
        "puts {things} into an order in which each comes after those it depends on",
        """def order_{things}(depends_on):
    done, ordered = set(), []

    def visit({thing}, path=()):
        if {thing} in path:
            raise ValueError(f"{things} in a circle: {{path}}")
        if {thing} not in done:
            for other in depends_on.get({thing}, ()):
                visit(other, (*path, {thing}))
            done.add({thing})
            ordered.append({thing})

    for {thing} in depends_on:
        visit({thing})
    return ordered
""",
        ("if {thing} not in done", "if {thing} in done"),
    ),
    Idea(
        "{field}_report",
        "formats a table of {things} with their {field}, the largest first, and a line with the sum",
        """def {field}_report({things}, width={number}):
    rows = sorted({things}.items(), key=lambda item: item[1], reverse=True)
    lines = [f"{{name:<{{width}}}}{{value:>10.2f}}" for name, value in rows]
    lines.append("-" * (width + 10))
    lines.append(f"{{'{field}':<{{width}}}}{{sum({things}.values()):>10.2f}}")
    return "\\n".join(lines)
""",
        ("reverse=True", "reverse=False"),
    ),
    Idea(
        "diff_{things}",
        "compares two mappings of {things} and tells which were added, removed or changed in {field}",
        """def diff_{things}(before, after, tolerance={number}):
    added = sorted(after.keys() - before.keys())
    removed = sorted(before.keys() - after.keys())
    changed = [
        key
        for key in sorted(before.keys() & after.keys())
        if abs(before[key].{field} - after[key].{field}) > tolerance
    ]
    return added, removed, changed
""",
        ("after.keys() - before.keys()", "before.keys() - after.keys()"),
    ),
    Idea(
        "limit_{things}",
        "lets at most {number} {things} through per second and tells the others how long to wait",
        """class {Thing}Limit:
    def __init__(self, clock, per_second={number}):
        self.clock, self.per_second = clock, per_second
        self.tokens, self.at = float(per_second), clock()

    def wait_s(self):
        now = self.clock()
        self.tokens = min(self.per_second, self.tokens + (now - self.at) * self.per_second)
        self.at = now
        if self.tokens >= 1:
            self.tokens -= 1
            return 0.0
        return (1 - self.tokens) / self.per_second
""",
        ("        self.at = now\n", ""),
    ),
    Idea(
        "{field}_histogram",
        "counts {things} by {field} in bins of width {number}",
        """def {field}_histogram({things}, width={number}):
    bins = {{}}
    for {thing} in {things}:
        start = {thing}.{field} // width * width
        bins[start] = bins.get(start, 0) + 1
    return [(start, start + width, bins[start]) for start in sorted(bins)]
""",
        ("bins.get(start, 0) + 1", "bins.get(start, 1) + 1"),
    ),
)  # fmt: skip
