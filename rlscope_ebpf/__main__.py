"""The command line: `rlscope-ebpf`, and `python -m rlscope_ebpf`, where the script is not on the PATH.

Ctrl-C may come, and a dependency be missing, before the command line is there to say so.
"""

import sys

INTERRUPTED = 128 + 2
"""Exit status after Ctrl-C where nothing could be finished, as shells expect it."""


def entry() -> int:
    """Run the command line; its exit status."""
    try:
        from rlscope_ebpf.cli import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("rlscope-ebpf: Interrupted.\n")
        return INTERRUPTED
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"rlscope-ebpf: This installation is for programs that are to be profiled, and lacks {error.name}.\n"
            "Install rlscope-ebpf with its dependencies (without --no-deps) to run the profiler.\n"
        )
        return 1


if __name__ == "__main__":
    sys.exit(entry())
