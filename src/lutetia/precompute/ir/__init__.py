"""The stream graph, its meaning in whole numbers, and what it costs."""
