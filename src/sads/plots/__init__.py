"""Pictures, one module a kind of result; those of the paper's figures are with the figures."""
