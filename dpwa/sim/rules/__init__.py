"""Rounds in lockstep on arrays: plain gossip of thousands of nodes, algorithms without nodes."""
