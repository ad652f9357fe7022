"""Membership: each node knows the members while nodes come and go, without a coordinator."""
