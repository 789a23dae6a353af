"""Texts in pieces, and which files there are at all."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.errors import UserError
from skep.swarm.ask.split import LARGEST_BYTES, find_sources, pieces_of, read_text

CODE = "\n".join(f"def f{n}():\n    x = {n}\n\n    return x\n\n" for n in range(40)) + "\n"


def lines_in(piece):
    first, _, last = piece.ref.partition(" ")[0].rpartition(":")[2].partition("-")
    return int(last) - int(first)


@given(st.text(alphabet="ab \n#\t", max_size=400), st.integers(5, 120))
@settings(max_examples=80, deadline=None)
def test_pieces_cover_a_text_in_order_and_none_is_too_long(text, most):
    """Only blank stretches may be left out."""
    pieces = pieces_of("a.md", text, most)
    assert all(len(piece.text) <= most + 80 for piece in pieces)  # a long line is cut at a space nearby
    got = "".join(piece.text for piece in pieces)
    assert "".join(got.split()) == "".join(text.split())


def test_code_is_cut_between_functions():
    pieces = pieces_of("a.py", CODE, 500)
    assert len(pieces) > 2
    assert all(piece.text.startswith("def ") for piece in pieces)


def test_markdown_is_cut_at_headings_and_not_inside_a_fence():
    text = "".join(f"# Chapter {n}\n\n" + "Some words here.\n" * 6 + "```sh\n\n# no heading\n```\n" for n in range(6))
    pieces = pieces_of("a.md", text, 320)
    assert len(pieces) > 2
    assert all(piece.text.startswith("# Chapter") for piece in pieces)


def test_pieces_are_about_equally_long():
    sizes = [lines_in(piece) for piece in pieces_of("a.txt", "word\n" * 1000, 3000)]
    assert len(sizes) == 2
    assert max(sizes) - min(sizes) < 50


def test_a_line_longer_than_a_piece_is_cut_at_spaces():
    text = "short\n" + "word " * 500 + "\nshort\n"
    pieces = [piece for piece in pieces_of("a.txt", text, 1000) if piece.ref.endswith(")")]
    assert [piece.ref for piece in pieces] == [f"a.txt:2-2 ({n}/3)" for n in (1, 2, 3)]
    assert {word for piece in pieces for word in piece.text.split()} == {"word"}


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    for name in ("a.py", "sub/b.py", "sub/deep/c.py", "node_modules/x.py", ".hidden/y.py", ".env", "notes.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"text of {name}\n")
    (root / "picture.py").write_bytes(b"\x00\x01")
    (tmp_path / "outside.py").write_text("secret")
    (root / "link.py").symlink_to(tmp_path / "outside.py")
    return root


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.py", ["a.py"]),
        ("**/*.py", ["a.py", "sub/b.py", "sub/deep/c.py"]),
        ("sub", ["sub/b.py", "sub/deep/c.py"]),
        ("sub/*", ["sub/b.py"]),
        ("[an]*.??", ["a.py", "notes.md"]),
        ("./sub/deep/c.py", ["sub/deep/c.py"]),
        (".", ["a.py", "notes.md", "sub/b.py", "sub/deep/c.py"]),
        (".env", [".env"]),
    ],
)
def test_patterns_name_text_files_under_the_root(tree, pattern, names):
    """Hidden ones only where the pattern says so, installed packages never."""
    assert list(find_sources(tree, [pattern]).texts) == names


def test_what_is_left_out_is_told_with_its_reason(tree):
    assert dict(find_sources(tree, ["*.py"]).left_out) == {"link.py": "outside of the root", "picture.py": "no text"}


@pytest.mark.parametrize("pattern", ["../*.py", "/etc/passwd", "nothing-*.py", "[z-a].py"])
def test_patterns_that_lead_out_or_nowhere_are_refused(tree, pattern):
    with pytest.raises(UserError, match=r"leads out|names no text file"):
        find_sources(tree, [pattern])


def test_odd_files_are_refused_in_one_line(tree):
    os.mkfifo(tree / "pipe")
    (tree / "huge.txt").write_bytes(b"x" * (LARGEST_BYTES + 1))
    for name in ("pipe", "sub", "huge.txt", "picture.py", "link.py", "absent", "a\0b", "../outside.py"):
        with pytest.raises(UserError):
            read_text(tree, name)


def test_odd_bytes_are_read_all_the_same(tree):
    (tree / "odd.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\xff\r\n")
    assert read_text(tree, "odd.txt") == "one\ntwo\ufffd\n"
