"""Calibration: the figures of a real run, out of its run logs, as a scenario that simulates it."""
