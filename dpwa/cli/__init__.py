"""The command line. It parses options, calls the other packages, and prints their results."""
