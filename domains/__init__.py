"""Bundled domains: one folder, one domain, each with its own README."""
