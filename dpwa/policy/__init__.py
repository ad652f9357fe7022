"""Pure decisions: state in, state out; time and randomness are arguments."""
