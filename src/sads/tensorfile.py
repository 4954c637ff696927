"""Safetensors files that others may have written: nothing is read before its header is checked.

The format: eight bytes with the length of a header, the header, the numbers. The header is JSON:
for each tensor its type, its shape and its place, and words about all of them as `__metadata__`.
A tensor is read when it is asked for, into memory of its own. So a reader can refuse a file by its
metadata and its small tensors before the large ones take memory, and what was read does not change
if the file does. (A file that is mapped into memory kills the process if somebody cuts it.)

What is written goes to the file a tensor, or a piece of one, at a time: the library's own writer
copies all of them first, which doubles the memory of a process that has filled it.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sads.errors import OutputError, printable
from sads.untrusted import parse_json, size_of

if TYPE_CHECKING:
    from torch import Tensor

HEADER_BYTES = 8 << 20  # of a header at most; 80,000 tensors
MAX_AXES = 8
TYPES = {  # names in PyTorch, bytes of a number
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: what it is, and where."""

    dtype: str  # as PyTorch calls it
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Pieces:
    """A tensor to be written of which only a piece exists at a time."""

    dtype: str  # as PyTorch calls it
    shape: tuple[int, ...]
    make: Callable[[], Iterable["Tensor"]]  # its pieces, in order

    @classmethod
    def of(cls, tensor: "Tensor") -> "Pieces":
        """A tensor that exists, as its only piece."""
        name = str(tensor.dtype).removeprefix("torch.")
        return cls(name, tuple(tensor.shape), lambda: (tensor,))


class TensorFile(Mapping[str, "Tensor"]):
    """The tensors of an open safetensors file by name, each read when it is asked for.

    `ValueError` if the header does not fit the file. `metadata` and `entries` are known before
    anything is read.
    """

    metadata: dict[str, str]
    entries: dict[str, Entry]

    def __init__(self, file: BinaryIO):
        self._file = file
        size = size_of(file)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError("it ends before its header does")
        if length > HEADER_BYTES:  # before it is read
            raise ValueError(f"it says that its header has {length:,} bytes")
        header = parse_json(file.read(length), HEADER_BYTES)
        if not isinstance(header, dict):
            raise ValueError("its header is of another kind")
        self._begin = 8 + length
        self.metadata = _metadata(header.pop("__metadata__", {}))
        self.entries = {name: _entry(name, content) for name, content in header.items()}
        end = 0
        for entry in sorted(self.entries.values(), key=lambda e: (e.start, e.stop)):
            if entry.start != end:
                raise ValueError("its tensors overlap or leave gaps")
            end = entry.stop
        if self._begin + end != size:
            raise ValueError(f"its header speaks of {self._begin + end:,} bytes, it has {size:,}")

    def __getitem__(self, name: str) -> "Tensor":
        entry = self.entry(name)
        return self._read(entry.dtype, entry.shape, entry.start, entry.stop)

    def rows(self, name: str) -> Iterator["Tensor"]:
        """The rows of a tensor along its first axis, each read when it is asked for."""
        entry = self.entry(name)
        count = entry.shape[0]
        size = (entry.stop - entry.start) // max(1, count)
        for start in range(entry.start, entry.stop, max(1, size)):
            yield self._read(entry.dtype, entry.shape[1:], start, start + size)

    def _read(self, dtype: str, shape: tuple[int, ...], start: int, stop: int) -> "Tensor":
        import torch

        count = stop - start
        expect_room(count)
        content = torch.empty(count, dtype=torch.uint8)
        self._file.seek(self._begin + start)
        numbers: Any = content.numpy()
        if count and self._file.readinto(memoryview(numbers)) != count:  # type: ignore[attr-defined]
            raise ValueError("it was cut while it was read")
        if dtype == "bool":  # a byte of a bool may be any number in a damaged file
            return (content != 0).reshape(shape)
        return content.view(getattr(torch, dtype)).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def entry(self, name: str) -> Entry:
        """What the header says of a tensor."""
        if name not in self.entries:
            raise ValueError(f"it has no tensor {name!r}")
        return self.entries[name]

    def expect(self, name: str, dtype: str, *sizes: int | None) -> Entry:
        """What the header says of a tensor that must be of this type and of these sizes."""
        entry = self.entry(name)
        fits = len(entry.shape) == len(sizes) and all(
            size in (None, found) for size, found in zip(sizes, entry.shape, strict=True)
        )
        if entry.dtype != dtype or not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in sizes)
            raise ValueError(
                f"its tensor {printable(name)[:60]!r} is {entry.dtype} of shape "
                f"{entry.shape}, expected {dtype} of ({wanted})"
            )
        return entry


def write_tensors(
    path: Path, tensors: "Mapping[str, Tensor | Pieces]", metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file; beside the tensors it takes the memory of one piece."""
    import torch

    names = {dtype: (code, width) for code, (dtype, width) in TYPES.items()}
    whole = {n: t if isinstance(t, Pieces) else Pieces.of(t) for n, t in tensors.items()}
    for name, tensor in whole.items():
        if tensor.dtype not in names:
            raise OutputError(
                f"{printable(name)[:60]!r} is of type {tensor.dtype}, which our files do not hold; "
                f"convert it to one of {', '.join(names)} first"
            )
    # Wide numbers first, so that each begins at a multiple of its width.
    order = sorted(whole, key=lambda name: (-names[whole[name].dtype][1], name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        code, width = names[whole[name].dtype]
        start, end = end, end + width * math.prod(whole[name].shape)
        shape = list(whole[name].shape)
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_BYTES:
        raise OutputError(
            f"{len(header):,} tensors are more than our files hold: their header would have "
            f"{len(text):,} bytes; join some of them"
        )
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in order:
            for piece in whole[name].make():
                flat = piece.detach().to("cpu").contiguous().reshape(-1)
                content: Any = flat.view(torch.uint8).numpy()
                file.write(memoryview(content))
        if file.tell() != 8 + len(text) + end:
            raise ValueError(f"{path} was to have {end:,} bytes of numbers")


def _metadata(content: Any) -> dict[str, str]:
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        raise ValueError("its metadata are not words")
    return content


def _entry(name: str, content: Any) -> Entry:
    if not isinstance(content, dict) or content.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"its header does not describe {printable(name)[:60]!r}")
    dtype, shape, offsets = (content[key] for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in TYPES:
        raise ValueError(f"its tensor {printable(name)[:60]!r} is of a type that is not known")
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError(f"its tensor {printable(name)[:60]!r} has no shape or place")
    torch_name, width = TYPES[dtype]
    if len(shape) > MAX_AXES or len(offsets) != 2:
        raise ValueError(f"its tensor {printable(name)[:60]!r} has too many sizes")
    if offsets[1] - offsets[0] != width * math.prod(shape):
        raise ValueError(f"its tensor {printable(name)[:60]!r} is not as large as its shape says")
    return Entry(torch_name, tuple(shape), *offsets)


def expect_room(needed: int) -> None:
    """`ValueError` if a file wants more memory than there is."""
    from sads.environment import memory_shortage

    if needed > 1 << 24 and (shortage := memory_shortage(needed)):
        raise ValueError(f"it takes {shortage}")
