"""What a training will come to, said before it: each predictor is one formula with a name.

    prospect.py   what is known before a training: network, geometry, data, practice
    moments.py    formulas in the second moment of the data and the geometry: alpha and its kin
    kernel.py     how fast an untrained network learns along each of its directions
    gaussian.py   what such rates make of loss and samples, if data are Gaussian and nets linear
    registry.py   the predictors by name

A predictor returns two numbers, one for each of the two outcomes: the held-out denoising loss, and
the distance of samples from data. Larger means worse. Which of them is right is not decided here
but by the league (`sads.experiments.standings`), on data that no predictor was chosen on.
"""
