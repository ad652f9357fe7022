"""Discovery: which node a process is, and where its peers are, from users, files and launchers."""
