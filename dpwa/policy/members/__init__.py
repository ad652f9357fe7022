"""Membership by gossip: what is known of members, and what one makes of what is heard."""
