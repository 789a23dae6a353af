"""`python -m skep` is `skep`."""

import sys

from skep.cli.main import main

sys.exit(main())
