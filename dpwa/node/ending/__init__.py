"""How a training ends: `finish`, and what nodes tell each other of it."""
