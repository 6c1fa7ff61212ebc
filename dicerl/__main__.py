"""``python -m dicerl`` is ``dicerl``."""

import sys

from dicerl.cli import main

sys.exit(main())
