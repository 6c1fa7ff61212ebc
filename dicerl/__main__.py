"""``python -m dicerl`` is ``dicerl``."""

import os
import sys

# `python -m` looks for every module in this folder first. Only what a person names is to be
# imported from here (envs/trust.py).
if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(os.path.abspath(__file__))):
    del sys.path[0]

from dicerl.cli import main

sys.exit(main())
