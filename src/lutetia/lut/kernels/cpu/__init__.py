"""The compiled kernels for the CPU."""
