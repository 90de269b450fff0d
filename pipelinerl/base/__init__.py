"""What every room builds on and what knows nothing of training: errors, waits, files, logs, processes."""
