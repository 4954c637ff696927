"""Rotated data for a training loop that is not ours: a wrapped data set, or a collate function."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from sads.arguments import check_type
from sads.checked import checked
from sads.errors import InvalidArgumentError
from sads.rotations.rotation import Rotation

Key = str | int | None
ROTATION_HINT = "give one that sads.rotation or sads.load_rotation returned"


@checked
class RotatedDataset(Dataset[Any]):
    """A data set whose images are rotated as they are read, one at a time.

    Args:
        dataset: anything with `len` and `[]` whose items are images, tuples or lists that hold
            one, or dictionaries.
        key: where in an item the image is; the first entry of a tuple or list if not given.

    Rotating whole batches is faster: see `rotate_collate`.
    """

    def __init__(self, dataset: Any, rotation: Rotation, key: Key = None):
        check_type(rotation, Rotation, "the rotation", ROTATION_HINT)
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise InvalidArgumentError(
                f"a data set has len() and [], {type(dataset).__name__} has not; for batches see "
                "rotate_collate"
            )
        self.dataset, self.rotation, self.key = dataset, rotation, key

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        def rotate(image: Tensor) -> Tensor:
            return self.rotation.apply(image[None])[0]

        return _with_image(self.dataset[index], rotate, self.key)


@checked
def rotate_collate(
    rotation: Rotation, collate: Callable[[list[Any]], Any] = default_collate, key: Key = None
) -> Callable[[list[Any]], Any]:
    """A `collate_fn` for a `DataLoader` that rotates the images of a batch all at once.

    Args:
        collate: what makes a batch of items; torch's own if not given.
        key: where in a batch the images are; the first entry of a tuple or list if not given.
    """
    check_type(rotation, Rotation, "the rotation", ROTATION_HINT)
    if not callable(collate):
        raise InvalidArgumentError(
            f"collate is a function that makes a batch of items, got {type(collate).__name__}"
        )
    return partial(_collate, rotation, collate, key)


def _collate(
    rotation: Rotation, collate: Callable[[list[Any]], Any], key: Key, items: list[Any]
) -> Any:
    return _with_image(collate(items), rotation.apply, key)


def _with_image(item: Any, rotate: Callable[[Any], Tensor], key: Key) -> Any:
    """An item or a batch with its image, or images, rotated."""
    if _is_image(item):
        return rotate(item)
    if isinstance(item, tuple | list) and not isinstance(key, str):
        parts, place = list(item), key or 0
        if -len(parts) <= place < len(parts) and _is_image(parts[place]):
            parts[place] = rotate(parts[place])
            if hasattr(item, "_fields"):  # a named tuple
                return type(item)(*parts)
            return tuple(parts) if isinstance(item, tuple) else parts
    if isinstance(item, Mapping) and key in item and _is_image(item[key]):
        return {**item, key: rotate(item[key])}
    raise InvalidArgumentError(
        f"items are {_described(item)}, expected a tensor, a tuple whose first entry is one, or a "
        f"dictionary with one at {key!r}: say which entry is the image, e.g. key='images'"
    )


def _is_image(part: Any) -> bool:
    return isinstance(part, Tensor | np.ndarray)


def _described(item: Any) -> str:
    """The kind of an item, and those of its entries."""
    kind = type(item).__name__
    if isinstance(item, Mapping):
        return f"a {kind} of " + ", ".join(f"{k!r}: {type(v).__name__}" for k, v in item.items())
    if isinstance(item, tuple | list):
        return f"a {kind} of {', '.join(type(part).__name__ for part in item) or 'nothing'}"
    return f"a {kind}"
