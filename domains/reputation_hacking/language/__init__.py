"""A language model as the Assistant: prompts, rollouts of the pipeline, logs, demonstrations and report."""
