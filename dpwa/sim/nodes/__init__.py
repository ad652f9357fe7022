"""The simulation of whole nodes in virtual time. Each has the objects of a real node."""
