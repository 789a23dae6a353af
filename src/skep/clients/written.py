"""Settings merged into a client's own files, with a backup of each, and taken out again.

A record below skep's state folder lists what was written where. A file that nobody changed since
comes back byte by byte; in one that somebody changed, only the values that skep wrote go back to
what they were."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from skep.clients.catalog import NO_KEY, Client, EndpointFacts, first_path, leaves
from skep.clients.edits import edited, parsed, value_at
from skep.errors import UserError
from skep.files import write_whole
from skep.paths import make_private

Values = dict[tuple[str, ...], Any]
BY_HAND = "it is unchanged; `--print` shows what to set by hand"


class WrittenFile(msgspec.Struct, frozen=True):
    """One file as skep left it.

    `backup` None: there was no file. `digest`: of the text that skep wrote last.
    """

    path: str
    format: str
    backup: str | None
    mode: int  # before the first write
    digest: str
    values: list[tuple[list[str], Any]]
    is_touched: bool = False  # somebody else changed it between two writes of skep

    def value_by_path(self) -> Values:
        return {tuple(names): value for names, value in self.values}


class FileChange(msgspec.Struct, frozen=True):
    """A file before and after. None: there is no file."""

    path: Path
    before: str | None
    after: str | None
    mode_before: int
    mode: int


def write_settings(
    client: Client, facts: EndpointFacts, record_path: Path, env: Mapping[str, str]
) -> list[WrittenFile]:
    """Merge what the client needs into its files: all of them, or none."""
    records = {file.path: file for file in _read_record(record_path)}
    has_key = facts.key != NO_KEY
    changes: list[FileChange] = []
    written: list[WrittenFile] = []
    for file in client.files:
        path = Path(os.path.realpath(first_path(file.paths, env)))  # a link to the file stays
        before = _text_at(path)
        mode = _mode_of(path, before)
        values = dict(leaves(client.written_values(file, facts)))
        after = edited(before or "", file.format, str(path), values)
        earlier = records.get(str(path))
        if earlier is None:
            record = _first_record(path, file.format, before=before, after=after, values=values)
            if record.backup is not None:
                changes.append(FileChange(Path(record.backup), None, before, mode, mode))
            origin = before
        else:
            record = _next_record(earlier, before=before, after=after, values=values)
            origin = _origin_of(earlier, record_path)
        _edited_back(record, after, origin)  # raises: what cannot be taken out is not written
        mode_after = mode & 0o700 if has_key else mode
        changes.append(FileChange(path, before, after, mode_before=mode, mode=mode_after))
        records[str(path)] = record
        written.append(record)
    _apply([*changes, _record_change(record_path, [*records.values()])])
    return written


def _text_at(path: Path) -> str | None:
    """Return what a file holds, with its own line ends; None: there is no file.

    Raise UserError where skep cannot or must not replace it.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"`{path}` is not a regular file", hint=BY_HAND)
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"`{path}` cannot be read: {error.strerror}", hint=BY_HAND) from None
    except UnicodeDecodeError:
        raise UserError(f"`{path}` is not text in UTF-8", hint=BY_HAND) from None
    if status.st_uid != os.geteuid():
        raise UserError(f"`{path}` belongs to another user", hint=BY_HAND)
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)):
        raise UserError(f"`{path}` cannot be written: no permission", hint=BY_HAND)
    return text


def _mode_of(path: Path, text: str | None) -> int:
    if text is None:
        return 0o600
    return stat.S_IMODE(path.stat().st_mode)


def _first_record(
    path: Path,
    kind: str,
    *,
    before: str | None,
    after: str,
    values: Values,
) -> WrittenFile:
    return WrittenFile(
        path=str(path),
        format=kind,
        backup=None if before is None else str(_free_name(path)),
        mode=_mode_of(path, before),
        digest=_digest(after),
        values=_pairs(values),
    )


def _next_record(
    earlier: WrittenFile,
    *,
    before: str | None,
    after: str,
    values: Values,
) -> WrittenFile:
    return msgspec.structs.replace(
        earlier,
        digest=_digest(after),
        values=_pairs({**earlier.value_by_path(), **values}),
        is_touched=earlier.is_touched or earlier.digest != _digest(before or ""),
    )


def _pairs(values: Values) -> list[tuple[list[str], Any]]:
    return [(list(path), value) for path, value in values.items()]


def _free_name(path: Path) -> Path:
    """Return a name for the backup of a file that nothing has yet."""
    backup = path.with_name(f"{path.name}.before-skep")
    numbers = count(2)
    while os.path.lexists(backup):
        backup = path.with_name(f"{path.name}.before-skep-{next(numbers)}")
    return backup


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _apply(changes: Sequence[FileChange]) -> None:
    """Make all changes, or none of them."""
    begun: list[FileChange] = []
    try:
        for change in changes:
            begun.append(change)
            _put(change.path, change.after, change.mode)
    except BaseException as error:
        unrestored_path = _take_back(begun)
        if not isinstance(error, OSError):
            raise
        hint = "nothing was changed; `--print` needs no file"
        if unrestored_path is not None:
            hint = (
                f"`{unrestored_path}` has what skep wrote; what stood there before lies beside it"
            )
        message = f"`{begun[-1].path}` cannot be written: {error.strerror}"
        raise UserError(message, hint=hint) from None


def _put(path: Path, text: str | None, mode: int) -> None:
    if text is None:
        path.unlink(missing_ok=True)
        return
    make_private(path.parent)
    write_whole(path, text, mode)


def _take_back(begun: Sequence[FileChange]) -> Path | None:
    """Undo changes, the last one first: a backup is removed after its file is restored.

    Return the path that cannot be restored; None: all are.
    """
    for change in reversed(begun):
        try:
            if _text_at(change.path) != change.before:
                _put(change.path, change.before, change.mode_before)
        except (OSError, UserError):
            return change.path
    return None


def undo_settings(client: Client, record_path: Path) -> list[str]:
    """Take out of the client's files what skep wrote. Return what was done to each, in words."""
    records = _read_record(record_path)
    if not records:
        hint = f"`skep agent {client.program} --write`"
        raise UserError(f"skep has written nothing for {client.title}", hint=hint)
    changes: list[FileChange] = []
    backups: list[FileChange] = []
    sentences: list[str] = []
    for file in records:
        path = Path(file.path)
        present = _text_at(path)
        origin = _origin_of(file, record_path)
        text = _undone_text(file, present, origin)
        changes.append(FileChange(path, present, text, _mode_of(path, present), file.mode))
        sentences.append(_sentence(path, text, origin))
        if file.backup is not None:
            backups.append(FileChange(Path(file.backup), origin, None, file.mode, file.mode))
    _apply([*changes, *backups, _record_change(record_path, [])])
    return sentences


def _origin_of(file: WrittenFile, record_path: Path) -> str | None:
    """Return what stood in a file before the first write."""
    if file.backup is None:
        return None
    text = _text_at(Path(file.backup))
    if text is None:
        hint = f"take what skep wrote out of `{file.path}` by hand, then remove `{record_path}`"
        raise UserError(f"the backup `{file.backup}` is gone", hint=hint)
    return text


def _undone_text(file: WrittenFile, present: str | None, origin: str | None) -> str | None:
    """Return what the file is to hold without skep's values; None: it is to be removed."""
    if present is None:
        return origin
    is_unchanged = not file.is_touched and _digest(present) == file.digest
    if is_unchanged:
        return origin
    return _edited_back(file, present, origin)


def _edited_back(file: WrittenFile, text: str, origin: str | None) -> str:
    """Return the text in which the values that skep wrote, and that still stand, are as before."""
    earlier = parsed(origin or "", file.format, str(file.backup))
    present = parsed(text, file.format, file.path)
    changes = {
        path: value_at(earlier, path)
        for path, value in file.value_by_path().items()
        if value_at(present, path) == value
    }
    return edited(text, file.format, file.path, changes)


def _sentence(path: Path, text: str | None, origin: str | None) -> str:
    if text is None:
        return f"{path} is gone: there was none before"
    if text == origin:
        return f"{path} is as it was"
    return f"{path} has what was changed since, without what skep wrote"


def _record_change(record_path: Path, records: Sequence[WrittenFile]) -> FileChange:
    """Return the change of the record; a record of no file is removed."""
    before = None
    if record_path.exists():
        before = record_path.read_text(encoding="utf-8")
    after = msgspec.json.encode(records).decode() if records else None
    return FileChange(record_path, before, after, 0o600, 0o600)


def _read_record(record_path: Path) -> list[WrittenFile]:
    if not record_path.exists():
        return []
    try:
        return msgspec.json.decode(record_path.read_bytes(), type=list[WrittenFile])
    except msgspec.DecodeError:
        raise UserError(
            f"`{record_path}` is broken", hint="remove it; the backups stand beside the files"
        ) from None
