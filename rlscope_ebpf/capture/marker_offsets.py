"""What the BPF programs know of a thread's record in the marker library; the rest is in markers_layout.py.

Apart from it because the programs are compiled before anything large has been imported.
"""

from __future__ import annotations

from typing import Final

DEPTH_OFFSET: Final = 12
"""Of `depth` (u32) in a record."""

NAMES_OFFSET: Final = 64
"""Of `names` (pointers, outermost first) in a record."""
