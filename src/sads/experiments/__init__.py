"""Experiments of the paper: cells, their store, sweeps over them, and one module a figure."""
