"""Simulation by rules: the algorithms and rules of nodes on a model of time and network."""
