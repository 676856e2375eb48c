"""What all tests need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlscope_ebpf.paths import STATE_VARIABLE


@pytest.fixture(scope="session", autouse=True)
def no_state_of_this_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What is kept of this host plays no part, and is left alone; what tests keep serves the ones after them."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STATE_VARIABLE, str(folder))
        yield folder
