"""The benchmark of the fused kernels on a GPU: `python -m headatlas.kernels.bench`.

This file stays free of imports, as that of `kernels` does.
"""
