"""Demo data, sources of clients' data, and ways to divide a data set among clients."""
