"""`skep`: from a command line to the one place where an error becomes a line and an exit code.

Nothing heavy is imported here: `skep --help` answers at once, each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from skep import __version__
from skep.cli.names import PART_OF, PARTS, closest, help_page, instead_of, plain_words
from skep.errors import SkepError, UserError

if TYPE_CHECKING:
    import typer

HELP = ("-h", "--help")
COMPLETION = "_SKEP_COMPLETE"  # set by a shell that asks for the words that may follow


def app_of(parts: Iterable[str]) -> typer.Typer:
    """Return the tree of the commands of these modules."""
    import typer

    made = typer.Typer(
        name="skep",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    made.callback()(lambda: None)  # a tree also where it has one command
    for part in parts:
        import_module(f"skep.cli.{part}").register(made)
    return made


@cache
def command_of(parts: tuple[str, ...]) -> Any:
    from typer.main import get_command

    return get_command(app_of(parts))


def run(words: Sequence[str]) -> int:
    """Carry a command line out and return its exit code. Raise SkepError for what its user should know."""
    words = plain_words(words)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"] if words[1:] != ["--all"] else words
    if not words or words[0] in HELP or words == ["help", "--all"]:
        if COMPLETION not in os.environ:
            print(help_page(everything="--all" in words))  # noqa: T201
            return 0
    elif words[0] == "--version":
        print(f"skep {__version__}")  # noqa: T201
        return 0
    elif removed := instead_of(words):
        raise UserError(removed)
    elif words[0] not in PART_OF and not words[0].startswith("-"):
        near = closest(words[0])
        also = "`skep help --all` lists the commands"
        raise UserError(
            f"there is no command `{words[0]}`", hint=f"did you mean `skep {near}`? {also}" if near else also
        )
    parts = (PART_OF[words[0]],) if words and words[0] in PART_OF else PARTS
    return _invoke(command_of(parts), words)


def _invoke(tree: Any, words: Sequence[str]) -> int:
    from typer import BadParameter

    wrong: Any = BadParameter.__mro__[2]  # ClickException, wherever this Typer has it
    try:
        return tree.main(list(words), prog_name="skep", standalone_mode=False) or 0
    except wrong as error:
        context = getattr(error, "ctx", None)
        path = "skep" if context is None else context.command_path
        raise UserError(_usage_message(error, words), hint=f"`{path} --help` explains the command") from None


def _usage_message(error: Any, words: Sequence[str]) -> str:
    """Return what is wrong with a command line, with the value that is wrong."""
    names = getattr(getattr(error, "param", None), "opts", ())
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in names and "should" in error.message:
            value = value if equals else "".join(words[place + 1 : place + 2])
            reason = error.message.replace("Input should be", "should be").partition(", unable")[0]
            return f"{option} `{value}` {reason.replace('a valid integer', 'a whole number')}"
    message = error.format_message().rstrip(".").replace("'", "`")
    return f"{message[:1].lower()}{message[1:]}"


def main() -> int:
    _open_standard_files()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` sets it: the command is to go on
            signal.signal(number, _leave)
    try:
        return run(sys.argv[1:])
    except SkepError as error:
        say_error(error.message, error.hint)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on: no second complaint at exit
        return 1
    except OSError as error:
        where = f" `{error.filename}`" if error.filename else ""
        say_error(f"{error.strerror or error}{where}", "check the disk, the permissions and the path")
        return 1
    except Exception as error:
        if os.environ.get("SKEP_DEBUG"):
            raise
        say_error(f"unexpected {type(error).__name__}: {error}", "SKEP_DEBUG=1 shows where; please report it")
        return 1


def _leave(number: int, _frame: object) -> None:
    """Like Ctrl-C: what was started is stopped on the way out."""
    raise SystemExit(128 + number)


def _open_standard_files() -> None:
    """Started with stdin, stdout or stderr closed, the next file opened would take its number."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, "r" if descriptor == 0 else "w", closefd=False))


def say_error(message: str, hint: str | None) -> None:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    if hint:
        print(f"hint: {hint}", file=sys.stderr)  # noqa: T201
