"""Data to train on and to measure with: orthonormal bases, synthetic samples, images."""
