"""Theorem 2: how data lie in a geometry, and the rotations that make it more or less so.

`kinds` are the names of rotations and what each of them means; `rotation` is an orthogonal matrix
that can be applied, undone and saved; `alignment` has alpha, its extremes and `sads.rotation`;
`portrait` is what a report shows of both; `rotated_data` rotates the data of other people's
training loops.
"""
