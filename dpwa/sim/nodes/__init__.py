"""Simulation of whole nodes: the very objects of a real one, in virtual time, in one thread."""
