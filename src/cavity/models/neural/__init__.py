"""Bayesian neural networks."""
