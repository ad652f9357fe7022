"""ZeroMQ sockets, their addresses and their options. Each socket belongs to one thread."""
