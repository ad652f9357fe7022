"""Rounds in lockstep on arrays, for gossip of thousands of nodes without node objects."""
