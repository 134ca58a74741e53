"""The `lutetia` command. typer and rich are imported when it runs, never by the library."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from lutetia.errors import MissingFeatureError, require


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (those of the process by default) and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Before torch is loaded: threads that wait by spinning made runs ten times slower where another process had one of the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        for package in ("typer", "rich"):
            require(package, "the lutetia command")
        from lutetia.cli.commands import app
        from lutetia.cli.guard import run
    except MissingFeatureError as error:  # without typer and rich the usual ways of telling are not there either
        if "--json" in given:
            print(json.dumps({"error": {"kind": error.kind, "message": str(error)}}))
        else:
            print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    return run(app, given)


def __getattr__(name: str) -> Any:
    if name == "app":
        from lutetia.cli.commands import app

        return app
    raise AttributeError(f"lutetia.cli has no {name!r}")
