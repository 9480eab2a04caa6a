"""One file per reproduced result or benchmark, and `runner`, the ground they share."""
