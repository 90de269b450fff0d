"""What a run shows of itself: metrics, named waits, logs, progress and the report at its end."""
