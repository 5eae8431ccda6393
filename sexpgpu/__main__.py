"""``python -m sexpgpu``."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(os.path.abspath(__file__))):
    del sys.path[0]  # python -m puts the current folder first, and what lies there is not ours to import

from .cli.main import main

sys.exit(main())
