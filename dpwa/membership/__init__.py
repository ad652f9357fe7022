"""Membership: nodes come and go, and each knows the members, with no coordinator and no quorum."""
