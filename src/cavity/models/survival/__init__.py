"""Models of the time to an event whose baseline hazard differs between clients."""
