"""`python -m rlscope_ebpf`: the command line, where the script is not on the PATH."""

import sys

from rlscope_ebpf.cli import main

sys.exit(main())
