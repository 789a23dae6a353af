"""Settings merged into a client's own files, with a backup of each, and taken out again.

A record below skep's state folder says what was written where. A file that nobody changed since comes back byte by
byte; in one that somebody changed, only the values that skep wrote go back to what they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from skep.clients.catalog import NO_KEY, Client, EndpointFacts, first_path, leaves
from skep.clients.edits import edited, parsed, value_at
from skep.errors import UserError
from skep.files import check_place, read_user_text, write_secret, write_whole


class WrittenFile(msgspec.Struct, frozen=True):
    """One file as skep left it. `backup` None: there was no file. `digest`: of the text that skep wrote last."""

    path: str
    format: str
    backup: str | None
    mode: int  # before the first write
    digest: str
    values: list[tuple[list[str], Any]]
    is_touched: bool = False  # somebody else changed it between two writes of skep


class FileDraft(msgspec.Struct, frozen=True):
    """A text that is about to be written. `before` None: there is no file."""

    path: Path
    text: str
    mode: int
    before: str | None
    record: WrittenFile


def write_settings(
    client: Client, facts: EndpointFacts, record_path: Path, env: Mapping[str, str]
) -> list[WrittenFile]:
    """Merge what the client needs into its files: all of them, or none."""
    earlier = {file.path: file for file in _read_record(record_path)}
    drafts = []
    for file in client.files:
        path = first_path(file.paths, env).resolve()
        changes = dict(leaves(client.written_values(file, facts)))
        drafts.append(_draft(path, file.format, changes, earlier.get(str(path)), is_secret=facts.key != NO_KEY))
    records = {**earlier, **{str(draft.path): draft.record for draft in drafts}}
    done: list[FileDraft] = []
    try:
        for draft in drafts:
            done.append(draft)
            _write_draft(draft, earlier.get(str(draft.path)))
        write_secret(record_path, msgspec.json.encode([*records.values()]).decode())
    except OSError as error:
        for draft in done:
            _take_back(draft, earlier.get(str(draft.path)))
        raise _cannot_be_written(error) from None
    return [draft.record for draft in drafts]


def _draft(
    path: Path, kind: str, changes: dict[tuple[str, ...], Any], earlier: WrittenFile | None, *, is_secret: bool
) -> FileDraft:
    before = read_user_text(path) if path.exists() else None
    text = edited(before or "", kind, str(path), changes)
    mode = 0o600 if before is None else path.stat().st_mode & 0o777
    if before is not None:
        check_place(path, "the file")
    if earlier is None:
        backup = None if before is None else str(_free_name(path))
        record = WrittenFile(str(path), kind, backup, mode, _digest(text), _values_of(changes))
    else:
        kept = {tuple(names): value for names, value in earlier.values}
        record = msgspec.structs.replace(
            earlier,
            digest=_digest(text),
            values=_values_of({**kept, **changes}),
            is_touched=earlier.is_touched or earlier.digest != _digest(before or ""),
        )
    return FileDraft(path, text, mode & 0o700 if is_secret else mode, before, record)


def _values_of(changes: Mapping[tuple[str, ...], Any]) -> list[tuple[list[str], Any]]:
    return [(list(path), value) for path, value in changes.items()]


def _free_name(path: Path) -> Path:
    names = (f"{path.name}.before-skep{'' if number == 1 else f'-{number}'}" for number in count(1))
    return next(place for name in names if not (place := path.with_name(name)).exists())


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _write_draft(draft: FileDraft, earlier: WrittenFile | None) -> None:
    draft.path.parent.mkdir(parents=True, exist_ok=True)
    if earlier is None and draft.record.backup is not None:
        write_whole(Path(draft.record.backup), draft.before or "", draft.record.mode)
    write_whole(draft.path, draft.text, draft.mode)


def _take_back(draft: FileDraft, earlier: WrittenFile | None) -> None:
    """Leave everything as it was before a write that failed."""
    try:
        if draft.before is None:
            draft.path.unlink(missing_ok=True)
        elif draft.path.read_text(encoding="utf-8") != draft.before:
            write_whole(draft.path, draft.before, draft.record.mode)
        if earlier is None and draft.record.backup is not None:
            Path(draft.record.backup).unlink(missing_ok=True)
    except OSError:  # the backup stays
        return


def _cannot_be_written(error: OSError) -> UserError:
    name = f"`{error.filename}`" if error.filename else "a file"
    return UserError(f"{name} cannot be written: {error.strerror}", hint="nothing was changed; `--print` needs no file")


def undo_settings(client: Client, record_path: Path) -> list[str]:
    """Take out of the client's files what was written, and return what was done to each."""
    records = _read_record(record_path)
    if not records:
        raise UserError(f"skep has written nothing for {client.title}", hint=f"`skep agent {client.program} --write`")
    try:
        drafts = [(file, _undone_text(file)) for file in records]
        sentences = [_restore(file, text) for file, text in drafts]
        for file in records:
            if file.backup is not None:
                Path(file.backup).unlink(missing_ok=True)
        record_path.unlink()
    except OSError as error:
        raise _cannot_be_written(error) from None
    return sentences


def _undone_text(file: WrittenFile) -> str | None:
    """Return what belongs into the file; None: there is to be none."""
    path = Path(file.path)
    before = read_user_text(Path(file.backup)) if file.backup is not None else None
    if not path.exists():
        return before
    now = read_user_text(path)
    if not file.is_touched and _digest(now) == file.digest:
        return before
    earlier, present = parsed(before or "", file.format, str(file.backup)), parsed(now, file.format, file.path)
    ours = [(tuple(names), value) for names, value in file.values]
    changes = {path: value_at(earlier, path) for path, value in ours if value_at(present, path) == value}
    return edited(now, file.format, file.path, changes)


def _restore(file: WrittenFile, text: str | None) -> str:
    path = Path(file.path)
    is_whole = text is None or (file.backup is not None and text == read_user_text(Path(file.backup)))
    if text is None:
        path.unlink(missing_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_place(path, "the file")
        write_whole(path, text, file.mode)
    if text is None:
        return f"{path} is gone: there was none before"
    return f"{path} is as it was" if is_whole else f"{path} has what was changed since, without what skep wrote"


def _read_record(record_path: Path) -> list[WrittenFile]:
    if not record_path.exists():
        return []
    try:
        return msgspec.json.decode(record_path.read_bytes(), type=list[WrittenFile])
    except msgspec.DecodeError:
        raise UserError(f"`{record_path}` is broken", hint="remove it; the backups stand beside the files") from None
