"""The process that calibration probes. Run by its path, so that nothing of this package is imported here.

Arguments: the library, and a file that takes the stamps. Each line of standard input names a loop, a function, a number
of calls and of cache lines; the answer is an empty line, and the clock before and after each call in the file.
"""

import ctypes
import mmap
import sys


def serve(library: str, stamps: str) -> None:
    """Answer until the input ends."""
    code = ctypes.CDLL(library)
    with open(stamps, "r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)
    room = (ctypes.c_char * len(shared)).from_buffer(shared)
    for line in sys.stdin:
        loop, function, calls, lines = line.split()
        run = getattr(code, loop)
        run.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)
        run.restype = ctypes.c_uint64
        run(ctypes.cast(getattr(code, function), ctypes.c_void_p), int(calls), int(lines), ctypes.addressof(room))
        sys.stdout.write("\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
