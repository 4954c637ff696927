"""Geometries beyond what a matrix can hold: energies along bases, and both ends of the spectrum."""
