"""The items that the sample answers beside this file were written for."""

from skep.quality.mixed_figures import PRIMARY, SIDE
from skep.workload.items import Checker, Item

PAGES = Item(
    "pages",
    ({"role": "user", "content": "Mend `page_count`."},),
    Checker(
        "cases",
        {
            "entry_point": "page_count",
            "cases": [[[0, 10], 0], [[1, 10], 1], [[10, 10], 1], [[11, 10], 2], [{"total": 100, "size": 7}, 15]],
            "raises": [[5, 0]],
        },
    ),
)
ITEMS = dict(zip(("fastapi1", "fastapi2", "fastapi3"), PRIMARY, strict=True))
ITEMS |= dict(zip(("docstring", "mutants", "bug", "reader"), SIDE, strict=True))
ITEMS["cases"] = PAGES
