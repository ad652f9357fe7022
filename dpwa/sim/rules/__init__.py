"""Rounds in lockstep on arrays: gossip of thousands of nodes, algorithms without nodes."""
