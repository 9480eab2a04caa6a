"""Figures and reports of a fit."""
