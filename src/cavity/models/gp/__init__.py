"""Sparse Gaussian processes."""
