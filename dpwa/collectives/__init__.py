"""Collectives among peers, without a coordinator: barrier, broadcast, all_reduce, all_gather."""
