"""The protocol without sockets or clocks, from messages to messages."""
