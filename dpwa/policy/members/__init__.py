"""Membership by gossip: how a node learns which nodes are members, and how news changes it."""
