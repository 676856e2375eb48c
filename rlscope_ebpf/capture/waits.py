"""What a thread waits for, by the system call in which it sleeps. Numbers of x86-64 (asm/unistd_64.h)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import Wait
from rlscope_ebpf.model.events import OFF_ARG0_ZERO, OFF_ARG1_ZERO, OFF_CALL_SHIFT, OFF_STATE

UNINTERRUPTIBLE = 2
"""Of the task's state: D."""

_CALLS = 1 << 16

_FUTEX = (202, 449, 455)  # futex, futex_waitv, futex_wait
_OTHER_LOCKS = (65, 220, 73)  # semop, semtimedop, flock
_MEMORY = (9, 10, 11, 12, 25, 28)  # mmap, mprotect, munmap, brk, mremap, madvise: they lock the process's map
_SLEEPS = (35, 230)  # nanosleep, clock_nanosleep
_COUNTED_FIRST = (23, 270)  # select, pselect6: how many descriptors is the first argument
_COUNTED_SECOND = (7, 271)  # poll, ppoll: it is the second
_IO = (
    *(0, 17, 19, 295, 327),  # read, pread64, readv, preadv, preadv2
    *(1, 18, 20, 296, 328),  # write, pwrite64, writev, pwritev, pwritev2
    *(45, 47, 299, 44, 46, 307, 43, 288, 42),  # recvfrom, recvmsg, recvmmsg, their sends, accept, accept4, connect
    *(40, 275, 276, 278, 326),  # sendfile, splice, tee, vmsplice, copy_file_range
    *(74, 75, 162, 277, 306),  # fsync, fdatasync, sync, sync_file_range, syncfs
    *(208, 333, 426),  # io_getevents, io_pgetevents, io_uring_enter
    *(232, 281, 441),  # epoll_wait, epoll_pwait, epoll_pwait2
    *(2, 257, 437, 85, 3),  # open, openat, openat2, creat, close
    *(76, 77, 285, 187),  # truncate, ftruncate, fallocate, readahead
    *_COUNTED_FIRST,
    *_COUNTED_SECOND,
)

_KIND = np.full(_CALLS, Wait.OTHER, np.uint8)  # by number + 1; 0: no system call
_KIND[[number + 1 for number in (*_FUTEX, *_OTHER_LOCKS)]] = Wait.LOCK
_KIND[[number + 1 for number in _SLEEPS]] = Wait.SLEEP
_KIND[[number + 1 for number in _IO]] = Wait.IO
_KIND_UNINTERRUPTIBLE = np.full(_CALLS, Wait.DISK, np.uint8)  # page faults, and any call that looks into a file
_KIND_UNINTERRUPTIBLE[[number + 1 for number in (*_FUTEX, *_OTHER_LOCKS, *_MEMORY)]] = Wait.LOCK
_FIRST = np.zeros(_CALLS, np.bool_)
_FIRST[[number + 1 for number in _COUNTED_FIRST]] = True
_SECOND = np.zeros(_CALLS, np.bool_)
_SECOND[[number + 1 for number in _COUNTED_SECOND]] = True


def waits_of(arg: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """`Wait` by `arg` of OFF_CPU events; `Wait.OTHER` where the thread is not blocked."""
    call = (arg >> np.uint64(OFF_CALL_SHIFT)).astype(np.int64) & (_CALLS - 1)
    state = arg & np.uint64(OFF_STATE)
    kind: NDArray[np.uint8] = _KIND[call]
    # Who waits for none of no descriptors waits for time to pass.
    nothing = _FIRST[call] & (arg & np.uint64(OFF_ARG0_ZERO) != 0)
    nothing |= _SECOND[call] & (arg & np.uint64(OFF_ARG1_ZERO) != 0)
    kind[nothing] = Wait.SLEEP
    uninterruptible = state & np.uint64(UNINTERRUPTIBLE) != 0
    kind[uninterruptible] = _KIND_UNINTERRUPTIBLE[call[uninterruptible]]
    kind[state == 0] = Wait.OTHER
    return kind
