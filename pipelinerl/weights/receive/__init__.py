"""What runs inside a vLLM engine: back-ends that receive weights, and loading them in place."""
