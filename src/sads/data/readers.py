"""Readers of images, one a format or a place, in an open list.

Each reader yields `(name, images)` until its source is read, in order: the images a NumPy array or
a tensor `(number, channels, *spatial)`, or a `Found` with what is known of them, one at a time
where they are separate files, or a `Skipped` with the reason if one cannot be read. A source that
cannot be read at all is a `DataError`. No reader unpickles anything.

To read another format, register a reader for a suffix or for a prefix of the source:

    from sads.data.readers import register_reader

    def read_h5(path):
        with h5py.File(path) as file:
            yield path.name, file["images"][:]     # (N, channels, height, width)

    register_reader(".h5", read_h5)
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sads.checked import checked
from sads.data.arrays import load_idx, open_images_array
from sads.data.digits import load_digits
from sads.data.picture_files import PICTURES, Found, Items, Skipped, read_picture
from sads.data.rows import Array
from sads.data.sources import reading_file
from sads.errors import DataError, InvalidArgumentError, printable
from sads.untrusted import first_line, open_regular

__all__ = ["Array", "Found", "Items", "Skipped", "reader_of", "register_reader"]


ADDED_BY_SYSTEMS = ("__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini")


def read_numpy(path: Path) -> Items:
    """The array of an npy file; of an npz file `images`, or its only array."""
    with open_images_array(path) as rows:
        yield path.name, Found(rows, laid_out=False)


def read_idx(path: Path) -> Items:
    """The format of MNIST's files, also gzipped; with three axes they are N x H x W."""
    array = load_idx(path)
    yield path.name, Found(array, laid_out=False, layout="NHW" if array.ndim == 3 else None)


def read_digits() -> Items:
    """Scikit-learn's bundled 1,797 handwritten digits of 8x8 pixels, values 0 to 16."""
    images, _ = load_digits()
    yield "digits", images[:, None] / 16


def read_folder(folder: Path) -> Items:
    """Every picture below a folder, in the order of their paths; other files are skipped."""
    paths, links = _walk(folder)
    for path in sorted(paths | links):
        name = str(path.relative_to(folder))
        if path in links:
            yield name, Skipped("a link to a folder, not followed")
        elif path.suffix.lower() in PICTURES:
            yield from read_picture(name, path)
        else:
            yield name, Skipped("not a picture")


def _walk(folder: Path) -> tuple[set[Path], set[Path]]:
    """All files below a folder, and links to folders, to any depth, but what is hidden.

    Hidden are names that begin with a dot, and folders that systems add: copies and thumbnails.
    """
    paths: set[Path] = set()
    links: set[Path] = set()
    waiting = [str(folder)]
    while waiting:
        top = waiting.pop()
        try:
            with os.scandir(top) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or entry.name in ADDED_BY_SYSTEMS:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        linked = entry.is_symlink() and os.path.isdir(entry.path)
                        (links if linked else paths).add(Path(entry.path))
        except OSError as error:
            where = printable(error.filename or folder)
            raise DataError(f"cannot read the folder {where}: {error.strerror}") from error
    return paths, links


def read_parquet(path: Path) -> Items:
    """The images of a Parquet file as the hub writes them: encoded files in a column of bytes."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise _missing("Parquet files") from error
    with reading_file(path, ArrowException), open_regular(path) as file:
        table = parquet.ParquetFile(file)
        column = _bytes_column(table.schema_arrow)
        if column is None:
            raise DataError(
                f"{printable(path)} has no column of encoded images, only "
                f"{printable(', '.join(table.schema_arrow.names))}; expected bytes or "
                "{bytes, path}"
            )
        number = 0
        for batch in table.iter_batches(batch_size=256, columns=[column]):
            for cell in batch.column(column).to_pylist():
                content = cell["bytes"] if isinstance(cell, dict) else cell
                name = f"{path.name}[{number}]"
                yield from read_picture(name, content) if content else _empty(name)
                number += 1


def _empty(name: str) -> Items:
    yield name, Skipped("empty")


def _bytes_column(schema: Any) -> str | None:
    from pyarrow import types

    for field in schema:
        kind = field.type
        if types.is_struct(kind):
            inner = kind.get_field_index("bytes")
            kind = kind.field(inner).type if inner >= 0 else kind
        if types.is_binary(kind) or types.is_large_binary(kind):
            return str(field.name)
    return None


def read_hub(text: str) -> Items:
    """`NAME` or `NAME:SPLIT` of a data set on the Hugging Face hub; the split is train if not."""
    try:
        import datasets
    except ImportError as error:
        raise _missing("data sets of the hub") from error
    name, _, split = text.partition(":")
    try:
        rows = datasets.load_dataset(name, split=split or "train", streaming=True)
        columns = rows.features or {}
        column = next(k for k, v in columns.items() if isinstance(v, datasets.Image))
        rows = rows.select_columns(column).cast_column(column, datasets.Image(decode=False))
        for number, row in enumerate(rows):
            cell = row[column]
            yield from read_picture(f"{name}[{number}]", cell["bytes"] or Path(cell["path"]))
    except StopIteration as error:
        raise DataError(
            f"the data set {name!r} has no column of images, only {', '.join(columns)}"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"cannot read {text!r} from the hub: {first_line(error)}; check the name and the "
            "split, or download its Parquet file and give that"
        ) from error


def _missing(what: str) -> DataError:
    return DataError(f"{what} need the datasets extra: pip install 'sads[datasets]'")


def _read_one_picture(path: Path) -> Items:
    return read_picture(path.name, path)


BY_SUFFIX: dict[str, Callable[[Path], Items]] = {
    ".npz": read_numpy,
    ".npy": read_numpy,
    ".parquet": read_parquet,
    **dict.fromkeys(PICTURES, _read_one_picture),
}
BY_PREFIX: dict[str, Callable[[str], Items]] = {"hub:": read_hub}


@checked
def register_reader(name: str, read: Callable[[Any], Items]) -> None:
    """Add a reader of images; everything that takes a source then takes its sources, too.

    Args:
        name: a suffix such as `.h5`, whose files it reads, or a prefix such as `zarr:`.
        read: takes the path of a file, or the text after the prefix, and yields images as the head
            of this module says. It replaces a reader of the same name.
    """
    if not isinstance(name, str) or not callable(read):
        raise InvalidArgumentError(
            f"a reader is a function for a suffix such as '.h5', got {name!r} and "
            f"{type(read).__name__}"
        )
    if name.startswith(".") and len(name) > 1:
        BY_SUFFIX[name.lower()] = read
    elif name.endswith(":") and len(name) > 1 and name not in ("rank-one:", "sphere:"):
        BY_PREFIX[name] = read
    else:
        raise InvalidArgumentError(
            f"a reader is for a suffix such as '.h5' or a prefix such as 'zarr:', got {name!r}"
        )


def reader_of(source: str | Path) -> Callable[[], Items]:
    """The reader of a source, by its name."""
    text = str(source)
    if not text.strip():
        raise DataError("the data have no name; give digits, a file, a folder or hub:NAME")
    if text == "digits":
        return read_digits
    for prefix, read_text in BY_PREFIX.items():
        if text.startswith(prefix):
            return lambda: read_text(text.removeprefix(prefix))
    path = Path(source)
    if os.path.isdir(path):
        return lambda: read_folder(path)
    read = BY_SUFFIX.get(path.suffix.lower(), read_idx)
    return lambda: read(path)
