"""Tests see the helpers beside them, and run on the machine's threads as users do."""
