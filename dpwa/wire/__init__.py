"""Network protocol of dpwa: message types, and sessions that answer messages without sockets."""
