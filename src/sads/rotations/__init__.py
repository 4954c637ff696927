"""Theorem 2: how data lie in a geometry, and the rotations that make it more or less so.

`alignment` has alpha, its extremes and `sads.rotation`; `rotation` what a rotation is, by name;
`rotated_data` rotates the data of other people's training loops.
"""
