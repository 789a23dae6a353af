"""The mixed workload: one coding conversation of three turns, and four short tasks that come beside it.

The tasks, levels, lengths and limits are those of a published measurement on an RTX 4090; its prompts were not
published, so these are others that ask for the same. What a prompt asks for is what its checker looks at, no more.
"""

from __future__ import annotations

from skep.workload.coding_sources import (
    AROUND_BINARY_SEARCH,
    AROUND_PAGINATE,
    AROUND_PRICING,
    AROUND_READ_NOTES,
    BINARY_SEARCH,
    PAGINATE,
    PRICING,
    PRICING_MAY,
    PRICING_MUST,
    READ_NOTES,
    changed,
)
from skep.workload.items import Checker, Item

TEMPERATURE = 0.2
PRIMARY_TOKENS, SIDE_TOKENS = 1024, 512
# How many side tasks run beside the conversation, and what the level is called.
LEVELS = ((0, "P1"), (1, "P1+S1"), (2, "P1+S1-S2"), (4, "P1+S1-S4"))
SIDE_TITLES = {"S1": "docstring", "S2": "tests", "S3": "bug", "S4": "async"}

_SYSTEM = (
    "You are a careful Python programmer. Answer with complete code that runs as it is, in one fenced Python block, "
    "and at most two sentences beside it."
)
_TURNS = (
    """\
Write a FastAPI application in one file, with the application object named `app`.
It has one endpoint, POST /users. The request body is JSON with exactly these fields, all of them required: \
`name` (text), `email` (text) and `age` (whole number); use a Pydantic model for it. Each new user gets a UUID \
as its `id`. The endpoint answers with status 201 and a JSON body that has `id`, `name`, `email` and `age`. \
A body that lacks a field, or has one of the wrong type, is refused with status 422.
Give the complete, runnable file.""",
    """\
Now make the validation strict. `name` must have 1 to 100 characters and must not be blank (only white space). \
`email` must be a valid email address such as ana@example.com. `age` must be from 0 to 150, both included. \
Whatever breaks a rule is refused with status 422; a valid user is still created with status 201 as before.
Give the complete, updated file.""",
    """\
Now keep the users: store each new one in a dict in memory, by its id. Add the endpoint GET /users/{user_id}, \
which answers with status 200 and the user with the same `id`, `name`, `email` and `age`, or with status 404 if \
there is no user with that UUID. POST /users and all of its rules stay as they are.
Give the complete, updated file.""",
)
_KEYWORDS = (
    ("FastAPI", "BaseModel", "post", "uuid", "201"),
    ("BaseModel", "name", "email", "age"),
    ("get", "user_id", "404"),
)


def _turn(number: int) -> Item:
    said = {"role": "user", "content": _TURNS[number - 1]}
    messages = ({"role": "system", "content": _SYSTEM}, said) if number == 1 else (said,)
    keywords = _KEYWORDS[number - 1]
    return Item(f"P1.{number}", messages, Checker("fastapi", {"turn": number}), PRIMARY_TOKENS, keywords, "primary")


def _side(name: str, prompt: str, checker: Checker, *keywords: str) -> Item:
    return Item(name, ({"role": "user", "content": prompt},), checker, SIDE_TOKENS, keywords, "side")


def _fenced(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def _docstring() -> Item:
    around = AROUND_BINARY_SEARCH.replace("{function}", BINARY_SEARCH)
    prompt = (
        f"This is a module of ours:\n\n{_fenced(around)}\n\n"
        "Write a Google-style docstring for the function `binary_search`: one line that says what it does, a section "
        "`Args:` with each argument (say that the items must be sorted, and what the target is), and a section "
        "`Returns:` (the index, and what comes back if the target is not there). Answer with the function "
        "`binary_search` alone, its code unchanged, in one Python block."
    )
    values = {"entry_point": "binary_search", "arguments": ["items", "target"], "source": BINARY_SEARCH}
    return _side("S1", prompt, Checker("docstring", values), "sorted", "index", "target", "Args", "Returns")


def _tests() -> Item:
    prompt = (
        f"The module `pricing` is this:\n\n{_fenced(PRICING)}\n\n{_fenced(AROUND_PRICING)}\n\n"
        "Write three pytest tests for `calculate_discount`: one for an ordinary discount, one for a limit of what is "
        "allowed, and one for input that raises ValueError. Begin with `import pytest` and "
        "`from pricing import calculate_discount`. Answer with the complete test file, in one Python block, and do not "
        "repeat the code under test."
    )
    values = {
        "module": "pricing",
        "entry_point": "calculate_discount",
        "right": PRICING,
        "must": {name: changed(PRICING, change) for name, change in PRICING_MUST.items()},
        "may": {name: changed(PRICING, change) for name, change in PRICING_MAY.items()},
        "fewest_tests": 3,
    }
    return _side("S2", prompt, Checker("mutants", values), "def test_", "pytest", "assert")


def _page(items: list[str], page: int, pages: int, *, more: bool) -> dict[str, object]:
    return {"items": items, "page": page, "total_pages": pages, "has_next": more}


def _bug() -> Item:
    prompt = (
        f"There is an off-by-one bug in `paginate` of the module `paging`:\n\n{_fenced(PAGINATE)}\n\n"
        f"It is used like this:\n\n{_fenced(AROUND_PAGINATE)}\n\n"
        "Users report that articles are missing: with 25 articles and 10 on a page, the last page with the remainder "
        "cannot be reached. Say in one sentence what is wrong, then give the complete corrected function `paginate` in "
        "one Python block. Keep its name, its arguments and the keys of its result."
    )
    five, four = ["a", "b", "c", "d", "e"], ["a", "b", "c", "d"]
    cases = [
        [[five, 1, 2], _page(["a", "b"], 1, 3, more=True)],
        [[five, 2, 2], _page(["c", "d"], 2, 3, more=True)],
        [[five, 3, 2], _page(["e"], 3, 3, more=False)],
        [[five, 4, 2], _page([], 4, 3, more=False)],
        [[five, 0, 2], _page([], 0, 3, more=False)],
        [[five, 1, 10], _page(five, 1, 1, more=False)],
        [[four, 1, 2], _page(["a", "b"], 1, 2, more=True)],
        [[four, 2, 2], _page(["c", "d"], 2, 2, more=False)],
        [[four, 3, 2], _page([], 3, 2, more=False)],
        [[["a"], 1, 1], _page(["a"], 1, 1, more=False)],
        [[[], 1, 10], _page([], 1, 0, more=False)],
    ]
    values = {"entry_point": "paginate", "cases": cases, "raises": [[five, 1, 0]]}
    return _side("S3", prompt, Checker("cases", values), "ceil", "last page", "remainder")


def _async() -> Item:
    prompt = (
        f"The module `notes` has this function:\n\n{_fenced(READ_NOTES)}\n\n"
        f"It is used here:\n\n{_fenced(AROUND_READ_NOTES)}\n\n"
        "Make `read_notes` asynchronous with the package `aiofiles`: an `async def` of the same name with the same "
        "argument, which returns the same notes and raises the same error, and does not block the event loop while it "
        "reads. Answer with the complete module `notes` alone, its imports included, in one Python block."
    )
    values = {"entry_point": "read_notes", "sync": READ_NOTES}
    return _side("S4", prompt, Checker("async-reader", values), "async def", "await", "aiofiles")


PRIMARY: tuple[Item, ...] = tuple(_turn(number) for number in (1, 2, 3))
SIDE: tuple[Item, ...] = (_docstring(), _tests(), _bug(), _async())
