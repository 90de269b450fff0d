"""Whole programs that the core does not need: bootstrap, recorder, sandbox, viewer."""
