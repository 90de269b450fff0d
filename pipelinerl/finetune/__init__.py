"""The trainer: advantages, losses, the optimizer step, checkpoints and the loop that ties them together."""
