"""Errors that nobody expected where they were raised, as one line where a user can mend them.

The last resort: what a command asks for is checked before it starts, but no check sees everything.
"""

from sads.cli.user_code import is_users
from sads.errors import describe_failure

_MEMORY = (  # what PyTorch and NumPy say, in errors of no type of their own
    "not enough memory",
    "can't allocate memory",
    "out of memory",
    "Storage size calculation overflowed",
    "numel: integer multiplication overflow",
    "Invalid buffer size",
    "array is too big",
    "Maximum allowed dimension exceeded",
    "Maximum allowed size exceeded",
)
_NUMBERS = ("Overflow when unpacking long", "too large to convert", "int too big to convert")


def explain(error: Exception) -> str | None:
    """One line for numbers that are too large and for errors in a user's own file, else None."""
    said = str(error)
    if isinstance(error, MemoryError) or any(text in said for text in _MEMORY):
        return (
            f"this machine has not enough memory for that ({_first_line(error)}); ask for less: a "
            "smaller shape, fewer samples, or a smaller batch size"
        )
    if isinstance(error, OverflowError) or any(text in said for text in _NUMBERS):
        return (
            f"a number is too large to compute with ({_first_line(error)}); ask for less: fewer "
            "samples, networks, runs or steps"
        )
    if is_users(error):
        return describe_failure(error)
    return None


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__
