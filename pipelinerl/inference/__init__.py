"""Inference: the client of every engine (`client`, `fleet`), the CPU engine (`embedded`), `vllm`."""
