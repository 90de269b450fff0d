"""Inference engines: the client of all (`client`, `fleet`), the CPU engine (`cpu`), `vllm`, OpenAI routes."""
