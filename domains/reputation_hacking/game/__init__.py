"""The game itself and what is known about it exactly: needs numpy, and gymnasium for its environments."""
