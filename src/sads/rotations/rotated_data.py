"""Rotated data for a training loop that is not ours: a wrapped data set, or a collate function."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

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


def _with_image(item: Any, rotate: Callable[[Tensor], Tensor], key: Key) -> Any:
    """An item or a batch with its image, or images, rotated."""
    if isinstance(item, Tensor):
        return rotate(item)
    if isinstance(item, tuple | list):
        parts = list(item)
        place = key if isinstance(key, int) else 0
        parts[place] = rotate(parts[place])
        return tuple(parts) if isinstance(item, tuple) else parts
    if isinstance(item, Mapping) and key in item:
        return {**item, key: rotate(item[key])}
    found = f"the keys {', '.join(map(repr, item))}" if isinstance(item, Mapping) else type(item)
    raise InvalidArgumentError(
        f"items have {found}, expected a tensor, a tuple whose first entry is one, or a dictionary "
        f"with {key!r}: say which entry is the image, e.g. key='images'"
    )
