"""The average geometry of a family of networks: how it is estimated, and what it is.

`initialise` draws the weights of many networks at once, `stack` evaluates them together,
`readout` integrates the output layer out, `estimate` adds the moments up, `structure` is the
form that the result takes, and `geometry` is the result.
"""
