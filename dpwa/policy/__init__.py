"""Pure functions and values that make decisions. Time and randomness are arguments."""
