"""Measuring what this host's probe hits cost, and keeping it."""
