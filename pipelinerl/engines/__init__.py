"""Inference engines: `client` and `fleet` of all, the server (`serving`), back end `cpu`, `vllm`."""
