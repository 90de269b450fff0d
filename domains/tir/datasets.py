"""Questions and gold answers, those of `math`, under the names of upstream's configurations."""

from domains.math.load_datasets import load_datasets

__all__ = ["load_datasets", "load_problems"]

load_problems = load_datasets
"""The name that loaders of several domains look for."""
