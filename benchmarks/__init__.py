"""One script for each figure: `python -m benchmarks.NAME`; all of them: `make bench`."""
