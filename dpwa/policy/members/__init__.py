"""Gossip membership: a node's list of the cluster's members, updated by peers' messages."""
