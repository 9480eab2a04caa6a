"""Where a client half runs."""
