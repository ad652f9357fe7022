"""Transactions between two nodes: exchanges of models, and transfers of push-sum mass."""
