"""Membership: nodes come and go; each knows who is there, with no coordinator and no quorum."""
