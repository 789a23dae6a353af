"""What is judged of an answer: said aloud, or thought; and which code is meant."""

import time

import pytest

from skep.workload.extraction import Block, code_blocks, has_gaps, python_blocks, split_answer

F = "```"


@pytest.mark.parametrize(
    ("answer", "reasoning", "text", "thought"),
    [
        ("plain\n", None, "plain\n", ""),
        ("plain", "hm", "plain", "hm"),
        ("<think>hm</think>\n\nyes", None, "yes", "hm"),
        ("<thought>hm</thought>yes", None, "yes", "hm"),
        ("[THINK]hm[/THINK]yes", None, "yes", "hm"),
        ("<|channel>thought\nhm<channel|>yes", None, "yes", "hm"),
        ("hm</think>yes", None, "yes", "hm"),
        ("<think>for ever", None, "", "for ever"),
        ("<think>a<think>b</think>c", None, "c", "a<think>b"),
        ("a <think>b</think>c <think>d</think>e", None, "a c e", "b\nd"),
        ("<think>b</think>c", "a", "c", "a\nb"),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>",
            None, "yes", "hm",
        ),
        ("<|channel|>analysis<|message|>hm", None, "", "hm"),
        ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>", None, "", "{}"),
        ("<|start|>assistant<|channel|>final<|message|>yes", None, "yes", ""),
        ("", None, "", ""),
    ],
)  # fmt: skip
def test_reasoning_is_kept_apart(answer, reasoning, text, thought):
    """Beside the answer, in tags, in a channel of its own, unclosed, or opened by the prompt."""
    said = split_answer(answer, reasoning)
    assert (said.text, said.reasoning) == (text, thought)


def test_halves_of_characters_can_be_written_down():
    said = split_answer("\ud800x \ud83d\ude00", None).text
    assert said == "\ufffdx \U0001f600"
    assert said.encode()


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        (f"a\n{F}python\nx = 1\n{F}\nb", [Block("python", "x = 1\n")]),
        (f"{F}Python3 title=a.py\r\nx = 1\r\n{F}\r\n", [Block("python", "x = 1\n")]),
        (f"{F}py:main.py\nx = 1\n{F}", [Block("python", "x = 1\n")]),
        (f"{F}{{.python}}\nx = 1\n{F}", [Block("python", "x = 1\n")]),
        (f"{F}main.py\nx = 1\n{F}", [Block("python", "x = 1\n")]),
        (f"{F}JSON\n1\n{F}\n{F}\n2\n{F}", [Block("json", "1\n"), Block("", "2\n")]),
        (f"~~~python\n{F}\n~~~", [Block("python", f"{F}\n")]),
        (f"````md\n{F}python\nx\n{F}\n````", [Block("md", f"{F}python\nx\n{F}\n")]),
        (f"{F}md\n{F}python\nx\n{F}\n{F}", [Block("md", f"{F}python\nx\n{F}\n")]),
        (f"{F}python\nx = 1", [Block("python", "x = 1\n", closed=False)]),
        (f"{F}python\nx\n{F}python\ny\n{F}", [Block("python", "x\n", closed=False), Block("python", "y\n")]),
        (f"1. a\n   {F}python\n   if x:\n       y\n   {F}", [Block("python", "if x:\n    y\n")]),
        (f"- {F}python\n  x\n  {F}", [Block("python", "x\n")]),
        (f"> {F}python\n> x\n> {F}\n", [Block("python", "x\n")]),
        (f"{F}python x = 1{F}", [Block("python", "x = 1\n")]),
        (f"{F}python\n{F}", [Block("python", "")]),
        (f"say {F} and {F}", []),
        (F, []),
        ("<code>x = 1</code>", []),
    ],
)
def test_fences_are_found(text, blocks):
    """As in CommonMark, with what models do besides."""
    assert code_blocks(text) == blocks


def python_of(text):
    """The blocks in one piece; None: there is none."""
    blocks = python_blocks(text)
    return "\n\n".join(code.strip("\n") for code in blocks) + "\n" if blocks else None


def fenced(*codes):
    return "Some words.\n\n".join(f"{F}python\n{code}\n{F}\n" for code in codes)


SHELL = f"{F}bash\npip install x\n{F}\n{F}json\n{{}}\n{F}\n{F}text\nx = 1\n{F}\n{F}\nHello there, friend.\n{F}\n"
DOCSTRING = f'def f():\n    """One.\n\n    {F}python\n    f()\n    {F}\n    """\n    return 1\n'
F1, F2 = (f"def f():\n    return {number}" for number in (1, 2))
CODE = {
    "a fence in a docstring, four columns deeper, does not end the block": (f"Here:\n{fenced(DOCSTRING)}", DOCSTRING),
    "blocks are joined in order": (
        fenced("import a", "def f(): ...", "print(f())"), "import a\n\ndef f(): ...\n\nprint(f())\n",
    ),
    "a later definition takes the place of an earlier one": (fenced(F1, F2), f"{F2}\n"),
    "also of an asynchronous one": (
        fenced("class A: ...\nasync def f(): ...", f"async {F2}"),
        f"class A: ...\nasync def f(): ...\n\nasync {F2}\n",
    ),
    "a line quoted again": (fenced("class A:\n    age: int", "    age: int"), "class A:\n    age: int\n"),
    "a line quoted with the next": (fenced("x = 1", "x = 1\ny = 2"), "x = 1\ny = 2\n"),
    "other languages are left out": (SHELL + fenced("x = 1"), "x = 1\n"),
    "nothing but other languages": (SHELL, None),
    "no language, but it looks like code": (
        f"{F}\nfor i in range(3):\n    print(i)\n{F}", "for i in range(3):\n    print(i)\n",
    ),
    "prompts of the interpreter are taken off": (
        fenced(">>> def f():\n...     return 1\n...\n>>> f()\n1"), f"{F1}\n\nf()\n",
    ),
    "a session that only shows what was defined": (fenced(F1, ">>> f()\n1"), f"{F1}\n"),
    "a document in a block": (f"````markdown\n# Title\n{F}python\nx = 1\n{F}\n````\n", "x = 1\n"),
    "without fences": ("def f(x):\n    return x", "def f(x):\n    return x\n"),
    "between words": (
        "Sure:\n\nimport os\n\ndef f(x):\n    # hi\n\n    return x\n\nprint(f(1))\n\nThat is it.\n",
        "import os\n\ndef f(x):\n    # hi\n\n    return x\n\nprint(f(1))\n",
    ),
    "a body alone": ("    return x + 1\n", "    return x + 1\n"),
    "the longest run of lines": (f"x = 1\nNow something longer:\n\n{F1}\n", f"{F1}\n"),
    "a session without a fence": (">>> x = 1\n>>> print(x)\n1\n", "x = 1\nprint(x)\n"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "code"), CODE.values(), ids=CODE)
def test_the_code_of_an_answer_is_found_and_the_fixed_one_meant_where_the_fault_is_shown_first(text, code):
    assert python_of(text) == code


@pytest.mark.parametrize(
    "text",
    ["", "No code here.", "For example: this.\n\nImport taxes are high.", "# Title\n\nA paragraph (with a remark).",
     "1. One\n2. Two\n", "\x00\x01\ufffd" * 100, f"{F}\n{F}"],
)  # fmt: skip
def test_prose_is_not_code(text):
    assert python_of(text) is None


@pytest.mark.parametrize(
    "unit",
    ["`", "```\n", "```a\n", "```markdown\n", "~", " ", "\n", "> ", "- ```x`\n", "<think>", "</think>", "<|channel|>",
     "def f(x):\n", "(\n", "x = ", "a.b.", '"""', ">>> \n", "\x00\xff\ufffd", "import a, "],
)  # fmt: skip
def test_50_kb_of_anything_take_no_time(unit):
    text = unit * (50_000 // len(unit))
    began = time.process_time()
    said = split_answer(text, None)
    code_blocks(said.text or text)
    python_of(text)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("code", "gaps"),
    [
        ("def f(x):\n    ...\n    return x", True),
        ("def f(x):\n    y = 1\n    ...", True),
        ("def f(x): ...", True),
        ("def f(\n    x,\n) -> int:\n    ...", True),
        ("def f(x):\n    # ... rest unchanged\n    return x", True),
        ("def f(x):\n    # existing code\n    return x", True),
        ("def f(x):\n    # ... and back again\n    return x", False),
        ("class A(Protocol):\n    def f(self):\n        ...\n    def g(self): ...\n\ndef h():\n    return 1", False),
        ("class E(Exception):\n    ...", False),
        ('def f():\n    """\n    ...\n    """\n    return a[..., 1]', False),
    ],
)  # fmt: skip
def test_gaps_are_told_from_stubs(code, gaps):
    assert has_gaps(code) is gaps


def test_a_block_with_gaps_replaces_nothing_that_is_whole():
    whole, hint = "def f():\n    return 1", "def f():\n    ...\n    return 2"
    assert python_blocks(fenced(whole, hint)) == [f"{whole}\n"]
    assert python_blocks(fenced(hint, whole)) == [f"{whole}\n"]
    assert python_blocks(fenced(hint)) == [f"{hint}\n"]
    both = fenced(whole, f"{hint}\n\ndef g():\n    return 3")
    assert python_of(both).endswith("return 3\n")


def test_what_was_given_replaces_nothing_that_is_new():
    given, new = "def f():\n    return 1", "def f():\n    return 2"
    assert python_blocks(fenced(new, given), f"Mend this:\n{given}\n") == [f"{new}\n"]
    assert python_blocks(fenced(new, given)) == [f"{given}\n"]
    assert python_blocks(fenced(given), given) == [f"{given}\n"]
