"""`skep`: from a command line to an exit code.

Nothing heavy is imported: each command imports what it needs.
"""

from __future__ import annotations

import os
import signal
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from skep import __version__
from skep.errors import SkepError, UserError

if TYPE_CHECKING:
    import click


def _read_toml(name: str) -> dict[str, Any]:
    """Return a file of this folder; `importlib.resources` and `pathlib` would take longer to
    load.
    """
    folder = os.path.dirname(__file__)  # noqa: PTH120
    path = os.path.join(folder, name)  # noqa: PTH118
    with open(path, "rb") as file:  # noqa: PTH123
        return tomllib.load(file)


NAMES = _read_toml("names.toml")
GROUPS: dict[str, dict[str, tuple[str, str]]] = NAMES["groups"]
PART_OF = {name: part for commands in GROUPS.values() for name, (part, _) in commands.items()}
PARTS = tuple(dict.fromkeys(PART_OF.values()))
ALIASES: dict[str, str] = NAMES["commands"]


def plain_words(words: Sequence[str]) -> list[str]:
    """Return a command line with the present names instead of other ones."""
    given = list(words)
    for count in (2, 1):
        if len(given) >= count and (name := ALIASES.get(" ".join(given[:count]))):
            given[:count] = name.split()
            break
    if len(given) > 1 and given[0] in PART_OF:
        given[1] = NAMES["below"].get(given[1], given[1])
    end = given.index("--") if "--" in given else len(given)
    names = NAMES["options"].get(given[0], {}) if given else {}
    for place in range(1, end):
        option, equals, value = given[place].partition("=")
        given[place] = f"{names.get(option, option)}{equals}{value}"
    return given


def closest(word: str) -> str | None:
    """Return the command that is most like the word."""
    import difflib

    close_words = difflib.get_close_matches(word, [*PART_OF, *ALIASES], n=1)
    return close_words[0] if close_words else None


def _hint_for_unknown(word: str) -> str:
    if instead := NAMES["expected"].get(word):
        return str(instead)
    pages = "`skep help --all` lists the commands, `skep help topics` the pages to read"
    near = closest(word)
    if near:
        return f"did you mean `skep {near}`? {pages}"
    return pages


def help_page(*, everything: bool) -> str:
    """Return what `skep --help` prints; `everything`: also the commands that few need."""
    lines = [
        "Usage: skep COMMAND [OPTIONS]",
        "",
        "  Plan, serve, measure, tune and monitor LLM inference on your own GPUs,",
        "  and run swarms of agents on it.",
    ]
    for title, commands in GROUPS.items():
        if title == "More" and not everything:
            continue
        lines += [
            "",
            f"{title}:",
            *(f"  {name:10} {line}" for name, (_, line) in commands.items()),
        ]
    lines += [
        "",
        "skep COMMAND --help explains a command"
        + ("." if everything else ", skep help --all lists the rest."),
        "Options: --version, --install-completion, -h/--help; guides: skep help topics",
        "Example: skep up -d && skep bench sweep --concurrency 1,2,4 && skep runs report",
    ]
    return "\n".join(lines)


def removed_options() -> dict[str, dict[str, str]]:
    """Return the options that are gone, by command, each with what to say of it."""
    return _read_toml("removed_options.toml")


def instead_of(words: Sequence[str]) -> str | None:
    """Return what to say of a command line that was not understood and names a removed option;
    None: it does not.
    """
    given = words[: words.index("--")] if "--" in words else words
    for command, options in removed_options().items():
        if list(given[: len(command.split())]) == command.split():
            return next(
                (options[name] for word in given if (name := word.split("=")[0]) in options), None
            )
    return None


HELP = ("-h", "--help")


def completion_line(shell: str) -> str:
    """Return the line that makes a shell complete skep's commands and options, and the file that
    it belongs in.
    """
    name = shell.rpartition("/")[2]
    if name == "fish":
        return "_SKEP_COMPLETE=fish_source skep > ~/.config/fish/completions/skep.fish"
    name = "zsh" if name == "zsh" else "bash"
    return f"""echo 'eval "$(_SKEP_COMPLETE={name}_source skep)"' >> ~/.{name}rc"""


def topic(words: Sequence[str]) -> str | None:
    """Return a page of the documentation; a command of that name wins, unless `--page` says
    otherwise.
    """
    from skep.paths import documentation

    pages = documentation()
    if list(words) == ["topics"]:
        return "\n".join(
            [
                *pages,
                "",
                "`skep help TOPIC` prints one; `--page` behind it if a command has the same name",
            ]
        )
    if not words or words[0] not in pages or (words[0] in PART_OF and "--page" not in words):
        return None
    return pages[words[0]].read_text(encoding="utf-8")


def tree_of(parts: Iterable[str]) -> click.Group:
    """Return the tree of the commands, with those of these modules."""
    for part in parts:
        import_module(f"skep.cli.{part}")
    from skep.cli.options import ROOT

    return ROOT


def _text_without_a_command(words: Sequence[str]) -> str | None:
    """Return the page of help, the version or a line for the shell, if that is all asked for."""
    asks_for_help = not words or words[0] in HELP or words == ["help", "--all"]
    a_shell_asks_for_words = "_SKEP_COMPLETE" in os.environ
    if asks_for_help and not a_shell_asks_for_words:
        return help_page(everything="--all" in words)
    if words[:1] == ["--version"]:
        return f"skep {__version__}"
    if words[:1] == ["--install-completion"]:
        return completion_line(os.environ.get("SHELL", ""))
    return None


def _refuse_unknown(words: Sequence[str]) -> None:
    removed = NAMES["removed"].get(" ".join(words[:2]))
    if removed:
        raise UserError(removed)
    if words[0] not in PART_OF and not words[0].startswith("-"):
        raise UserError(f"there is no command `{words[0]}`", hint=_hint_for_unknown(words[0]))


def run(words: Sequence[str]) -> int:
    """Carry a command line out and return its exit code. Raise SkepError for what its user should
    know.
    """
    words = plain_words(words)
    if words[:1] == ["help"] and words[1:] != ["--all"]:
        page = topic(words[1:])
        if page is not None:
            print(page)  # noqa: T201
            return 0
        words = [*words[1:], "--help"]
    text = _text_without_a_command(words)
    if text is not None:
        print(text)  # noqa: T201
        return 0
    if words and words != ["help", "--all"]:
        _refuse_unknown(words)
    if words and words[0] in PART_OF:
        parts: tuple[str, ...] = (PART_OF[words[0]],)
    else:
        parts = PARTS
    return _invoke(tree_of(parts), words)


def _invoke(tree: click.Group, words: Sequence[str]) -> int:
    import click

    from skep.report.terminal import speak_plainly

    speak_plainly()
    try:
        return tree.main(list(words), prog_name="skep", standalone_mode=False) or 0
    except click.Abort:
        from skep.cli.options import Interrupted

        raise Interrupted(hint=None) from None
    except click.ClickException as error:
        if removed := instead_of(words):
            raise UserError(removed) from None
        context = getattr(error, "ctx", None)
        if (
            context is not None
            and getattr(context.parent.command, "default", "") == context.info_name
        ):
            context = context.parent  # its name was left out
        path = "skep" if context is None else context.command_path
        if type(error) is click.BadParameter and error.param is not None:
            message = f"{max(error.param.opts, key=len)} {error.message}"
        else:
            message = error.format_message().rstrip(".").replace("'", "`")
        hint = f"`{path} --help` explains the command"
        if context is not None and any(
            (param.metavar or "").startswith("--") for param in context.command.params
        ):
            hint = f"arguments for the other program stand behind `--`; {hint}"
        raise UserError(f"{message[:1].lower()}{message[1:]}", hint=hint) from None


def main() -> int:
    _open_standard_files()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # As `nohup` sets it: the command is to go on.
        is_ignored = signal.getsignal(number) is signal.SIG_IGN
        if not is_ignored:
            signal.signal(number, _leave)
    try:
        return run(sys.argv[1:])
    except SkepError as error:
        say_error(error.message, error.hint)
        return error.exit_code
    except BrokenPipeError:
        # Nobody reads on: no second complaint at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f" `{error.filename}`" if error.filename else ""
        say_error(
            f"{error.strerror or error}{where}", "check the disk, the permissions and the path"
        )
        return 1
    except Exception as error:
        if os.environ.get("SKEP_DEBUG"):
            raise
        say_error(
            f"unexpected {type(error).__name__}: {error}",
            "SKEP_DEBUG=1 shows where; please report it",
        )
        return 1


def _leave(number: int, _frame: object) -> None:
    """Like Ctrl-C: what was started is stopped on the way out."""
    raise SystemExit(128 + number)


def _open_standard_files() -> None:
    """Started with stdin, stdout or stderr closed, the next file opened would take its number."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)
            setattr(
                sys, name, os.fdopen(descriptor, "r" if descriptor == 0 else "w", closefd=False)
            )


def say_error(message: str, hint: str | None) -> None:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    if hint:
        print(f"hint: {hint}", file=sys.stderr)  # noqa: T201
