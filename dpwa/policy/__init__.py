"""Pure decisions from state to state. Time and randomness are arguments."""
