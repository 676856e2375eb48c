"""What is said of the GPU helper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rlscope_ebpf.capture.gpu_files import LIBRARY_VARIABLE
from rlscope_ebpf.capture.gpu_layout import Function, HelperState, HelperStatus

NO_ANSWER: Final = (
    "The target has loaded CUDA, and has not started cupti-python (it is no Python, or was started with -I, -E or -S)"
)

_INSUFFICIENT_PRIVILEGES: Final = 35  # CUPTI_ERROR_INSUFFICIENT_PRIVILEGES
_FEW_BATCHES: Final = 8  # without a kernel in them: something is wrong


def not_active(status: HelperStatus) -> str:
    """Why a helper takes no records: problem and remedy."""
    who = f"process {status.pid}"
    if status.state == HelperState.FOREIGN:
        return (
            f"Another profiler (torch.profiler, Nsight) uses CUPTI in {who}, and it is left alone: no GPU times. "
            "Profile without it."
        )
    if status.state == HelperState.NO_LIBRARY:
        return (
            f"No libcupti was found in {who}: no GPU times. Install it there (`pip install nvidia-cuda-cupti-cu12`, "
            f"or the CUDA toolkit), or name it in {LIBRARY_VARIABLE}."
        )
    if status.state == HelperState.WRONG_VERSION:
        return (
            f"The libcupti of {who} has version {status.cupti_version}, which is not known here: no GPU times. "
            "CUDA 12 and 13 are; update rlscope-ebpf."
        )
    if status.reason:
        return (
            f"cupti-python failed in {who} ({status.reason}): no GPU times. Install it in the program's environment "
            "(`pip install cupti-python`), in the version of its CUDA, or use --gpu cupti."
        )
    if status.error == _INSUFFICIENT_PRIVILEGES:
        return (
            f"The driver does not let {who} use CUPTI (error {status.error}): no GPU times. Load the driver's module "
            "with NVreg_RestrictProfilingToAdminUsers=0, or give the container CAP_SYS_ADMIN."
        )
    what = f" in {status.failed_call}" if status.failed_call else ""
    return (
        f"CUPTI failed in {who} (error {status.error}{what}): no GPU times. NVIDIA's cupti_result.h says what it means."
    )


def foreign_came(pid: int, called: Function) -> str:
    """Another profiler came while the helper used CUPTI."""
    if called == Function.REGISTER:
        return (
            f"Another profiler in process {pid} has taken CUPTI's records over: GPU times are missing from then on. "
            "Use one at a time, or --gpu off."
        )
    return (
        f"Another profiler (torch.profiler, for one) asked for CUPTI in process {pid}, which the GPU helper has, and "
        "was refused: it sees no GPU events, and PyTorch's, if that was its first use, none until the program is "
        "started anew. Attach after its first use, or with --gpu off."
    )


def was_loaded(pid: int, way: str, again: bool) -> str:
    """What was done to a target that ran before us, and how to avoid it."""
    what = "The GPU helper that was in process" if again else "A helper library was loaded into process"
    how = f"was started again by {way}" if again else f"by {way}"
    return (
        f"{what} {pid} {how}, for GPU kernel times; it sleeps when the profiler leaves, and --gpu off does without it. "
        "Meanwhile PyTorch's own profiler sees no GPU events there, and if it is first used now, none later either."
    )


def cupti_python_costs(pid: int) -> str:
    """Said once it works."""
    return (
        f"GPU records of process {pid} are taken by cupti-python in its own Python, at about 25 us each: a program "
        "that launches much runs several times slower. --gpu cupti costs next to nothing."
    )


def cupti_python_needs_run(pid: int) -> str:
    """It is only started with a command."""
    return (
        f"cupti-python cannot be loaded into process {pid}, which runs already: no GPU times. Start the program with "
        "`rlscope-ebpf run --gpu cupti-python`, or use --gpu cupti."
    )


def gdb_stops(pid: int) -> str:
    """Said before it happens."""
    return f"gdb loads the GPU helper into process {pid}, which stands still for a second or so meanwhile."


def nobody_loads(pid: int, *, gdb_allowed: bool) -> str:
    """Nothing is there that could load the helper."""
    gdb = "install gdb" if gdb_allowed else "let gdb do it with --gpu cupti (it stops the program for a second or so)"
    return (
        f"GPU kernel times need a helper library in process {pid}, and Frida, which loads it, is not there. Install "
        f"it with `pip install 'rlscope-ebpf[inject]'`, {gdb}, or start the program with `rlscope-ebpf run`."
    )


def another_injected(pid: int, path: str) -> str:
    """CUDA was told to load another tool's library."""
    return f"CUDA has loaded {path} into process {pid}, another tool's, which is left alone: no GPU times."


def clock_is_behind(activities: int, most_ns: int) -> str:
    """The GPU's times and those of its launches do not fit together."""
    return (
        f"{activities:,} GPU activities are told to have begun up to {most_ns / 1e6:.1f} ms before the calls that "
        "launched them, as CUPTI's clock can be where many processes share a GPU: how long they took is right, but not "
        "when they ran, by as much."
    )


def cut_short(pids: Sequence[int]) -> str:
    """Processes that ended while their helper was active, and without its last word."""
    who = f"Process {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"
    return (
        f"{who} ended without letting the GPU helper finish (killed, or by os._exit, as forked workers of "
        "multiprocessing do): what the GPU did there in the last tenth of a second is not in the figures."
    )


def what_went_wrong(pid: int, since: Mapping[str, int]) -> Iterator[str]:
    """What its counters, as far as they are this session's, say about a helper that was active."""
    if since["no_buffer"]:
        yield (
            f"The GPU helper in process {pid} ran out of memory {since['no_buffer']:,} times: records were dropped. "
            "GPU times are too low."
        )
    if since["broken"]:
        yield f"{since['broken']:,} buffers of CUPTI's in process {pid} could not be read. GPU times are too low."
    activities = since["kernels"] + since["copies"] + since["sets"] + since["graphs"]
    if since["launches"] and not activities and since["batches"] >= _FEW_BATCHES:
        yield (
            f"CUPTI told of {since['launches']:,} launches in process {pid}, but of nothing that the GPU did. "
            "GPU times are missing."
        )
    if since["lost_names"]:
        yield f"Process {pid} has so many kernels that {since['lost_names']:,} of their names are not known."
