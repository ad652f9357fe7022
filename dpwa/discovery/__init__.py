"""Which node a process is, and where its peers are: what users, files and launchers say."""
