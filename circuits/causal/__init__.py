"""Causal evidence: what a model loses when a head is removed, beside what its label predicts."""
