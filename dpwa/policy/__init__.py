"""Pure decision rules, such as the choice of a peer. Time and randomness are arguments."""
