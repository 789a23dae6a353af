"""The items that the sample answers beside this file were written for."""

from skep.quality.mixed_figures import PRIMARY, SIDE
from skep.workload.items import Checker, Item

TESTS = """
for arguments, want in (((0, 10), 0), ((1, 10), 1), ((10, 10), 1), ((11, 10), 2), ((100, 7), 15)):
    have = page_count(*arguments)
    assert type(have) is int and have == want, f"gave {have}, not {want}"
try:
    page_count(5, 0)
except Exception:
    pass
else:
    raise AssertionError("it does not raise")
"""
PAGES = Item(
    "pages",
    ({"role": "user", "content": "Mend `page_count`."},),
    Checker("python", {"entry_point": "page_count", "tests": TESTS}),
)
ITEMS = dict(zip(("fastapi1", "fastapi2", "fastapi3"), PRIMARY, strict=True))
ITEMS |= dict(zip(("docstring", "mutants", "bug", "reader"), SIDE, strict=True))
ITEMS["cases"] = PAGES
