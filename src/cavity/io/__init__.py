"""The run directory: checkpoints and history."""
