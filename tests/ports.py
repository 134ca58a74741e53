"""Ports for tests whose processes meet on one."""

from __future__ import annotations

import secrets
import socket

# Below the range from which the kernel gives ports to connections: what is free now is not given away before it is used.
LOWEST, HIGHEST = 20_000, 29_999


def free_port() -> int:
    """A port on which nobody listens."""
    while True:
        port = LOWEST + secrets.randbelow(HIGHEST - LOWEST + 1)
        with socket.socket() as probe:
            try:
                probe.bind(("localhost", port))
            except OSError:
                continue
            return port
