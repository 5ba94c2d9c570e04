"""`python -m spanfold` is `spanfold`."""

import sys

from spanfold.cli import main

if __name__ == "__main__":
    sys.exit(main())
