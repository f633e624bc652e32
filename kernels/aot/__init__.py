"""The gate without a GPU: every shipped kernel compiled for GPUs and judged by its machine code.

This file stays free of imports.
"""
