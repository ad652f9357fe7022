"""Simulation of whole nodes, with the objects of a real node, in virtual time, in one thread."""
