"""The command line: thin shells over the rooms below."""
