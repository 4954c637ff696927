"""What can go wrong for a user, as exceptions whose message is the one line to print.

Every message says what was given, what was expected and what to do. The command
line prints it and exits with status 2.
"""


class SadsError(Exception):
    """Base of all errors that a user can cause and mend."""


class InvalidArgumentError(SadsError, ValueError):
    """A value outside what the function or command accepts."""


class NetworkError(SadsError):
    """A network that cannot be used as a score network."""


class NonFiniteError(NetworkError):
    """A network that returned NaN or infinity."""


class ZeroReadoutError(NetworkError):
    """A network whose output layer starts at zero: its geometry is 0, its directions undefined."""

    def __init__(self, message: str, layer_path: str | None = None):
        super().__init__(message)
        self.layer_path = layer_path


class GeometryFileError(SadsError):
    """A geometry file that is damaged or was not written by sads."""


class DataError(SadsError):
    """Images that cannot be read, or that do not fit together or with what was asked for."""


class MergeError(SadsError):
    """Geometries that do not add up: of different families, or with networks in common."""


class OutputError(SadsError):
    """A place that results cannot be written to."""


class UndefinedGeometryError(SadsError):
    """A geometry that is 0 or not finite, so that it prefers no direction."""


class RotationFileError(SadsError):
    """A rotation file that is damaged or was not written by sads."""


class CheckpointError(SadsError):
    """A model or checkpoint that is damaged, or belongs to another family, data set or run."""


class DivergedError(SadsError):
    """A training run whose loss became NaN or infinite."""


class StoreError(SadsError):
    """A place that is not a store of experiments, or was written by a newer sads."""


class ClusterError(SadsError):
    """A Ray cluster that does not answer, or cannot run what was asked."""
