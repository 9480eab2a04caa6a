"""Models with random effects."""
