"""Says what a file that is no GGUF looks like, from its first bytes."""

from __future__ import annotations

_AGAIN = "delete it and pull it again"
_OTHER = "name a .gguf file"

_BINARY = (
    (b"PK\x03\x04", "it is a zip archive or a PyTorch checkpoint", _OTHER),
    (b"\x1f\x8b", "it is a gzip archive", _OTHER),
    (b"\x28\xb5\x2f\xfd", "it is a zstd archive", _OTHER),
    (b"lmgg", "it is a GGML file from before GGUF", _OTHER),
    (b"fmgg", "it is a GGML file from before GGUF", _OTHER),
    (b"tjgg", "it is a GGML file from before GGUF", _OTHER),
    (b"\x7fELF", "it is a program", _OTHER),
)
_TEXT = (
    (b"<!doctype html", "it is an HTML page: a download was answered with a web page", _AGAIN),
    (b"<html", "it is an HTML page: a download was answered with a web page", _AGAIN),
    (b"<?xml", "it is an XML page: a download was answered with an error page", _AGAIN),
    (b"version https://git-lfs", "it is a git-lfs pointer, not the file it points to", "run `git lfs pull`"),
    (b"{", "it is JSON text", _OTHER),
)


def looks_like(start: bytes) -> tuple[str, str]:
    """The end of a sentence about the file, and a hint. `start`: its first bytes, up to a few hundred."""
    if not start:
        return "it is empty", _AGAIN
    for magic, what, hint in _BINARY:
        if start.startswith(magic):
            return what, hint
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:
        return "it is a safetensors file", _OTHER
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for opening, what, hint in _TEXT:
        if text.startswith(opening):
            return what, hint
    if not start.strip(b"\0"):
        return "it starts with zeros: a download reserved it and did not fill it", _AGAIN
    return f"it starts with {start[:8]!r}, not with `GGUF`", _OTHER
