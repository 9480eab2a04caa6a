"""One file per reproduced result or benchmark, and `runner`, which they share."""
