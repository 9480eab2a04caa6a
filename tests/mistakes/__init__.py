"""Plausible mistakes, one per line: each message names the place and gives the remedy, without a stack trace."""
