"""How a weight version gets from the trainer into the engines: `send` runs in the trainer, `receive` in vLLM."""
