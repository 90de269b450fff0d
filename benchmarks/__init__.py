"""Figures: `python -m benchmarks.NAME` (`make bench`). Learning: `python -m benchmarks run SPEC`."""
