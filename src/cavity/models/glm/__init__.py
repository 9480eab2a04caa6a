"""Regressions with a linear predictor."""
