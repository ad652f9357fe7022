"""The node of a process, and the places of its peers, from users, files and launchers."""
