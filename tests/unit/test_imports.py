"""The arrows between folders, and what may be imported where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_imports_follow_the_arrows() -> None:
    program = Path(sys.executable).parent / "lint-imports"
    result = subprocess.run([program, "--no-cache"], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert result.returncode == 0, result.stdout
    assert "0 broken" in result.stdout


def test_importing_the_package_imports_nothing_of_it() -> None:
    code = "import sys, rlscope_ebpf; print([m for m in sys.modules if m.startswith('rlscope') or m == 'numpy'])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert "numpy" not in result.stdout
    assert "rlscope_ebpf." not in result.stdout, result.stdout
