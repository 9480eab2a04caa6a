"""Running a study in one process, and what its result offers."""
