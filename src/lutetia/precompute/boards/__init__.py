"""A circuit on a board: a serial line around it, its pins, its bitstream, and the program that asks it."""
