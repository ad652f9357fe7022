"""The simulation of whole nodes, each with all objects of a real node, in virtual time."""
