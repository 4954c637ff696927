"""OpenMP's threads wait without spinning, unless the user has said how they should wait.

PyTorch's operations are shared out among threads that, by default, spin while they wait for the
next one. Alone on a machine that is a little faster; beside anything else it steals the cores from
whoever has work, and everything is about ten times slower (`benchmarks/shared.py`). The libraries
read these settings when they are loaded, so this module comes before PyTorch, and processes that
are started from here inherit them.
"""

import os

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def wait_without_spinning() -> None:
    """Set the policy for libraries that are not loaded yet; a user's own setting stays."""
    if not any(name in os.environ for name in SETTINGS):
        os.environ["OMP_WAIT_POLICY"] = "passive"
