"""What a finished rollout is worth: rewards, the privacy penalty, training texts and metrics."""
