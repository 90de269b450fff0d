"""Figures that need a GPU; one script per group of rows."""
