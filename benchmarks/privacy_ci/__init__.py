"""The published table in miniature, played by a policy of a few dozen logits: proof of the plumbing.

The policy chooses query templates and selection rules and writes them out as text, so that everything between
a model's text and an update runs as in a real run: parsing, retrieval, audit, rewards, privacy scores,
situations, filter, loss weights, leakage. It says nothing about what language models learn.
"""
