"""Checks of a typed tree, one file per subject. Each yields one-line problems with their remedy."""
