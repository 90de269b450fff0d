"""Leakage evaluation: what an adversary who sees only the web queries of a rollout learns."""
