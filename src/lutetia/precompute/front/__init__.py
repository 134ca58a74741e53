"""From a PyTorch model to a stream graph: tracing, decomposing, quantising."""
