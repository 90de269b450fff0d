"""What depends on vLLM: its options by version, its start, and what receives weights inside an engine."""
