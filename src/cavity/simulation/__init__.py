"""Engines that run all clients in one process."""
