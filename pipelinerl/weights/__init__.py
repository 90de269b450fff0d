"""How a weight version gets from the trainer (`send`) into the engines (`receive` runs inside vLLM)."""
