"""The protocol: its messages, and sessions that turn messages into messages, without sockets."""
