"""What happens in a run: recorded by each node, read from any that lives."""
