"""Layers for CPUs, in C, and how they get into any network while it runs."""

from sads.cpu.fast import FastNetwork, fast_network, layers_name

__all__ = ["FastNetwork", "fast_network", "layers_name"]
