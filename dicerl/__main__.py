"""``python -m dicerl`` is ``dicerl``."""

import os
import sys

# `python -m` looks for every module in this folder first. Only what a person names is to be
# imported from here (envs/trust.py).
if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(os.path.abspath(__file__))):
    del sys.path[0]

from dicerl.cli import main

if __name__ == "__main__":  # not where a config names it as an environment's module
    sys.exit(main())
