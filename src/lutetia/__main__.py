"""`python -m lutetia` is the `lutetia` command."""

import sys

from lutetia.cli import main

if __name__ == "__main__":
    sys.exit(main())
