"""Collectives among peers: barrier, broadcast, all_reduce and all_gather, without a coordinator."""
