"""The live sink: rolling totals of a running session and the snapshots that screens show."""
