"""Prune attention heads: choose them, train gates on them, remove them, measure what it costs."""
