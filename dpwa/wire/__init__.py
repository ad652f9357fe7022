"""The protocol without sockets or clocks: messages in, messages out."""
