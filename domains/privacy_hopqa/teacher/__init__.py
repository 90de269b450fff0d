"""Scripted play for the small model to imitate; the bootstrap recipe asks the domain's hooks for it."""
