"""Cutting attention heads out of a model for good: smaller weights, a smaller cache, files."""
