"""BM25 retrieval over a public web corpus and isolated private task trees: `python -m retrieval_server`."""

__version__ = "1.0"
