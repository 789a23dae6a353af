"""The mixed workload: what the published one said of itself holds here, and the tasks are what their checkers think."""

import asyncio
import types

import pytest

from skep.workload.coding_sources import PAGINATE, PAGINATE_FAULT, PRICING, changed
from skep.workload.coding_tasks import LEVELS, PRIMARY, SIDE, SIDE_TITLES, TEMPERATURE
from skep.workload.items import EXECUTED, item_from_json, item_json
from skep.workload.lengths import pieces

SIDE_BY_ID = {item.id: item for item in SIDE}


def loaded(code):
    module = types.ModuleType("given")
    exec(compile(code, "given.py", "exec"), module.__dict__)
    return module


def called(function, arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return type(error)


def test_levels_limits_and_temperature_are_the_published_ones():
    assert LEVELS == ((0, "P1"), (1, "P1+S1"), (2, "P1+S1-S2"), (4, "P1+S1-S4"))
    assert TEMPERATURE == 0.2
    assert [item.id for item in PRIMARY] == ["P1.1", "P1.2", "P1.3"]
    assert [item.id for item in SIDE] == ["S1", "S2", "S3", "S4"] == list(SIDE_TITLES)
    assert {item.max_tokens for item in PRIMARY} == {1024}
    assert {item.max_tokens for item in SIDE} == {512}
    assert SIDE_BY_ID["S3"].keywords == ("ceil", "last page", "remainder")


@pytest.mark.parametrize(("name", "tokens"), [("S1", 500), ("S2", 1000), ("S3", 800), ("S4", 1000)])
def test_side_prompts_have_the_published_length(name, tokens):
    """A piece is about a token."""
    (message,) = SIDE_BY_ID[name].messages
    assert pieces(message["content"]) == pytest.approx(tokens, rel=0.2)


def test_a_turn_has_its_own_message_and_the_first_the_system_message_too():
    assert [[one["role"] for one in item.messages] for item in PRIMARY] == [["system", "user"], ["user"], ["user"]]
    assert [item.checker.values["turn"] for item in PRIMARY] == [1, 2, 3]
    asked = [item.messages[-1]["content"] for item in PRIMARY]
    assert all(word in asked[0] for word in ("POST /users", "`name`", "`email`", "`age`", "`id`", "201", "422", "UUID"))
    assert all(word in asked[1] for word in ("1 to 100", "0 to 150", "blank", "422", "201"))
    assert all(word in asked[2] for word in ("GET /users/{user_id}", "dict", "200", "404"))


@pytest.mark.parametrize("item", [*PRIMARY, *SIDE], ids=lambda item: item.id)
def test_items_can_be_stored(item):
    assert item.checker.kind in EXECUTED
    assert item.keywords
    assert item_from_json(item_json(item)) == item


def test_binary_search_is_right_and_its_arguments_are_named():
    values = SIDE_BY_ID["S1"].checker.values
    search = loaded(values["source"]).binary_search
    assert list(search.__code__.co_varnames[: search.__code__.co_argcount]) == values["arguments"]
    assert search.__doc__ is None
    assert [search([1, 3, 5], one) for one in (1, 2, 5, 9)] == [0, -1, 2, -1]
    assert values["source"].strip() in SIDE_BY_ID["S1"].messages[0]["content"]


# Three tests as anybody would write them: an ordinary discount, a limit, a refusal.
SENSIBLE = ((100, 10), (80, 0), (100, 100), (50, 25), (-1, 10), (100, 101), (100, 10, True), (100, 100, True), (0, 5))
SUBTLE = (*SENSIBLE, (100, -1), (19.99, 15))


def test_gross_faults_are_seen_by_any_ordinary_discount():
    values = SIDE_BY_ID["S2"].checker.values
    right = loaded(values["right"]).calculate_discount
    assert len(values["must"]) == 3
    for code in values["must"].values():
        faulty = loaded(code).calculate_discount
        for arguments in ((100, 10), (100, 50), (200, 25), (59.9, 15), (100, 20, True)):
            assert called(faulty, arguments) != called(right, arguments)


def test_every_subtle_fault_shows_somewhere_and_not_everywhere():
    values = SIDE_BY_ID["S2"].checker.values
    right = loaded(values["right"]).calculate_discount
    assert len(values["may"]) >= 3
    for name, code in values["may"].items():
        faulty = loaded(code).calculate_discount
        differs = [called(faulty, arguments) != called(right, arguments) for arguments in SUBTLE]
        assert any(differs), name
        assert called(faulty, (100, 10)) == called(right, (100, 10)), name


def test_the_module_under_test_is_the_one_in_the_prompt():
    values = SIDE_BY_ID["S2"].checker.values
    prompt = SIDE_BY_ID["S2"].messages[0]["content"]
    assert PRICING.strip() in prompt
    assert f"from {values['module']} import {values['entry_point']}" in prompt


def failing_cases(code):
    values = SIDE_BY_ID["S3"].checker.values
    function = loaded(code).paginate
    wrong = [arguments for arguments, want in values["cases"] if called(function, arguments) != want]
    return wrong + [arguments for arguments in values["raises"] if called(function, arguments) is not ValueError]


def test_the_fixed_pagination_passes_all_cases_and_the_faulty_one_does_not():
    """The last page with the remainder is what is lost; full pages are right either way."""
    prompt = SIDE_BY_ID["S3"].messages[0]["content"]
    assert PAGINATE.strip() in prompt
    assert failing_cases(changed(PAGINATE, PAGINATE_FAULT)) == []
    by_ceil = "import math\n" + changed(PAGINATE, ("len(items) // per_page", "math.ceil(len(items) / per_page)"))
    assert failing_cases(by_ceil) == []
    lost = failing_cases(PAGINATE)
    assert [len(items) for items, _, _ in lost] == [5] * 6
    always_one_more = changed(PAGINATE, ("len(items) // per_page", "len(items) // per_page + 1"))
    assert failing_cases(always_one_more)


def test_the_reader_reads_and_an_async_one_can_do_the_same(tmp_path):
    aiofiles = pytest.importorskip("aiofiles")
    values = SIDE_BY_ID["S4"].checker.values
    read = loaded(values["sync"]).read_notes
    file = tmp_path / "a.txt"
    file.write_text("one two\n\n  drei \n", encoding="utf-8")
    want = [{"line": 1, "text": "one two", "words": 2}, {"line": 3, "text": "drei", "words": 1}]
    assert read(file) == want
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.txt")
    code = values["sync"].replace("def read", "async def read").replace("with open", "async with aiofiles.open")
    code = code.replace("for number, line in enumerate(file, start=1)", "for number, line in await numbered(file)")

    async def numbered(lines):
        return list(enumerate([line async for line in lines], start=1))

    module = loaded(code)
    module.aiofiles, module.numbered = aiofiles, numbered
    assert asyncio.run(module.read_notes(file)) == want
