"""The kernels for CUDA, in Triton: what they launch with is in the modules of this folder, their source in `source`."""
