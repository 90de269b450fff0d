"""Scripted play for the small model to imitate."""
