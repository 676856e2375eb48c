"""Where a target can read the helper: visible files stay where they are, others are copied, and copies go again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlscope_ebpf.capture import gpu_files
from rlscope_ebpf.capture.gpu_files import place
from rlscope_ebpf.errors import UnsupportedError

NOBODY = 65534


@pytest.fixture
def helper(tmp_path: Path) -> Path:
    """In a folder that only its owner may enter."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    file = folder / "librlscope_cupti.so"
    file.write_bytes(b"library")
    file.chmod(0o644)
    return file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Another root folder, with a /tmp of its own."""
    root = tmp_path / "root"
    (root / "tmp").mkdir(parents=True)
    for folder in (tmp_path, root, root / "tmp"):
        folder.chmod(0o755)
    return root


def test_a_file_that_can_be_read_is_not_copied(helper: Path) -> None:
    placed = place([helper], root="/", uid=os.geteuid(), gids=[os.getegid()])
    assert placed.paths == (str(helper),)
    assert placed.host_path(0) == str(helper)
    placed.close()
    assert helper.exists()


def test_a_file_of_another_root_is_copied_and_the_copy_removed(helper: Path, root: Path) -> None:
    placed = place([helper, helper], root=str(root), uid=NOBODY, gids=[NOBODY])
    copy = Path(placed.host_path(0))
    assert placed.paths[0].startswith("/tmp/rlscope-")
    assert copy == Path(f"{root}{placed.paths[0]}")
    assert copy.read_bytes() == b"library"
    assert copy.stat().st_mode & 0o777 == copy.parent.stat().st_mode & 0o777 == 0o755
    placed.close()
    placed.close()
    assert list((root / "tmp").iterdir()) == []


def test_a_link_may_not_lead_out_of_the_other_root(helper: Path, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "tmp").rmdir()
    (root / "tmp").symlink_to(outside)
    with pytest.raises(UnsupportedError, match="no folder from which the target could load"):
        place([helper], root=str(root), uid=NOBODY, gids=[])
    assert list(outside.iterdir()) == []


def test_the_way_to_a_file_counts(helper: Path) -> None:
    """A file that all may read, in a folder that others may not enter."""
    helper.parent.parent.chmod(0o755)
    steps = gpu_files._steps("/", str(helper))
    mine = [step for step in steps if step.startswith(str(helper.parent))]
    owner = helper.stat().st_uid
    assert gpu_files._may(owner, [], mine)
    assert not gpu_files._may(owner + 1, [], mine)
    helper.parent.chmod(0o755)
    assert gpu_files._may(owner + 1, [], mine)
