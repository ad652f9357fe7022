"""Transactions of pairs of nodes that must agree, on exchanges and on shares of push-sum."""
