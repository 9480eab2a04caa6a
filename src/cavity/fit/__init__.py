"""Running an algorithm in one process (`run`), and its result (`fit`)."""
