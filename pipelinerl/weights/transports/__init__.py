"""Ways of one version to the engines: a file that all see, or a broadcast over NCCL."""
