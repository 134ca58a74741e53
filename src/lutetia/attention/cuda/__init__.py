"""CUDA C++ for what Triton does not do well, compiled at run time; the Triton kernel is the definition and the fallback."""
