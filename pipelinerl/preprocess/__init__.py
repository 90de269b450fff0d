"""From groups of rollouts to packed micro-batches: checks, reference scores, advantages, filter, packing."""
