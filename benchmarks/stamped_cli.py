"""`rlscope-ebpf`, saying on stderr when it has attached and when its live model first gets intervals.

Lines "STAMP attached|data SECONDS", in seconds of the monotonic clock. The live model is changed when the program
itself imports it: the order of imports is part of what is measured.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MODEL = "rlscope_ebpf.live.model"

_said: set[str] = set()


def _say(what: str) -> None:
    if what not in _said:
        _said.add(what)
        # In one piece: the main thread writes there as well.
        os.write(2, f"\nSTAMP {what} {time.monotonic():.6f}\n".encode())


def _change(module: ModuleType) -> None:
    model: Any = module.LiveModel
    plain_start, plain_batch = model.start, model.batch

    def start(self: Any, info: Any) -> None:
        """Called once every probe is set."""
        _say("attached")
        plain_start(self, info)

    def batch(self: Any, given: Any) -> None:
        """Called with every batch."""
        plain_batch(self, given)
        if len(given.tables.get("intervals", ())):
            _say("data")

    model.start, model.batch = start, batch


class _ChangingLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _change(module)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == MODEL else None
        if spec is not None and spec.loader is not None:
            spec.loader = _ChangingLoader(spec.loader)
        return spec


if __name__ == "__main__":
    sys.meta_path.insert(0, _Finder())
    from rlscope_ebpf.cli import main

    sys.exit(main())
