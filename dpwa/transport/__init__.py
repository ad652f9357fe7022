"""ZeroMQ sockets, with their addresses and options. Each socket belongs to one thread."""
