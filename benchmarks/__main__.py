"""Run every benchmark of this folder, one after the other: `python -m benchmarks`."""

import subprocess
import sys
from pathlib import Path

for script in sorted(Path(__file__).parent.glob("bench_*.py")):
    print(f"== {script.stem}", flush=True)
    subprocess.run([sys.executable, str(script)], check=True)
