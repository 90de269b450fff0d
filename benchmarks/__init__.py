"""Figures: `python -m benchmarks.NAME`, all on two cores: `make bench`. Learning: `python -m benchmarks run SPEC`."""
