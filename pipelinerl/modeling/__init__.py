"""Models as trainer, reference and engine see them: loading, packed forward passes, log-probabilities."""
