"""Find a node's name and its peers, from arguments, files, environment variables or launchers."""
