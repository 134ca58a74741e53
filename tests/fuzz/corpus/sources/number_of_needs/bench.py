"""One line."""

NEEDS = 7


def main() -> None: ...
