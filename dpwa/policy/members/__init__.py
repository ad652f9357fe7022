"""Membership by gossip: the knowledge of members, and the effects of news."""
