"""The average geometry of a family of networks: how it is estimated, and what it is.

In the order in which `estimate_geometry` uses them:

- `estimate`    the loop: networks are drawn until there are enough, and their moments added up
- `plan`        which way of estimating fits a family, and why
- `recording`   what a constructor does, recorded; `laws`: mean and variance of what it draws
- `drawing`     parameters of many networks at once; `stacks`: many networks evaluated together
- `readout`     the output layer, found and integrated out; `readouts/`: one kind of layer a file
- `invariance`  symmetries of a family's law
- `estimators`  the three ways: output layer integrated out, outer products, the paper's loop
- `lift`        the form that a geometry takes: a small factor, repeated
- `passes`      the loop without a matrix; its steps: `energies`, `windows`, `search`
- `dense`       what is kept of a geometry, as matrices; `matrixfree`: without; `end`: its two ends
- `result`      the geometry, and how it was made; `directions`: the SADs and how sure they are
"""
