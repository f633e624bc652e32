"""The attention probe: attention and every head statistic in one pass, in O(N) memory per head.

This file stays free of imports: Hugging Face's transformers looks for a top-level module named
`kernels` and imports whatever it finds when it runs from this checkout.
"""
