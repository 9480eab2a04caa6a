"""Where data come from, and how experiments divide them among clients."""
