"""Whole-number models: the same answers from Python, C, a web page and a circuit."""
