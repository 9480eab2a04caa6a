"""Expectation propagation within a client."""
