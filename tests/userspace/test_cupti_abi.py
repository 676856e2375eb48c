"""CUPTI's binary interface as userspace/cupti_abi.h declares it, against NVIDIA's headers."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECK = Path(__file__).parent / "cupti_abi_check.c"
CC = shutil.which("gcc") or "cc"
INCLUDES = [f"-I{ROOT / 'userspace'}", f"-I{ROOT / 'kernels_test' / 'simcuda'}"]

# Offset and size of each field, read off the headers of CUPTI 12.1.105, 12.8.90 and 13.0.85, where all of these agree:
# CUpti_ActivityKernel9 and 10, Memcpy5 and 6, MemcpyPtoP4, Memset4, Synchronization and 2, GraphTrace and 2.
LAYOUT = {
    "cu_kernel": "kind 0 4 registers 6 2 start 16 8 end 24 8 device 40 4 context 44 4 stream 48 4 grid 52 12"
    " block 64 12 static_shared 76 4 dynamic_shared 80 4 correlation 92 4 name 104 8 queued 120 8 submitted 128 8"
    " graph_node 144 8 graph 156 4",
    "cu_memcpy": "kind 0 4 copy 4 1 source 5 1 destination 6 1 flags 7 1 bytes 8 8 start 16 8 end 24 8 device 32 4"
    " context 36 4 stream 40 4 correlation 44 4 runtime_correlation 48 4 graph_node 64 8 graph 72 4 channel 76 4",
    "cu_memcpy2": "kind 0 4 copy 4 1 source 5 1 destination 6 1 flags 7 1 bytes 8 8 start 16 8 end 24 8 device 32 4"
    " context 36 4 stream 40 4 source_device 44 4 destination_device 52 4 correlation 60 4 graph_node 72 8 graph 80 4"
    " channel 84 4",
    "cu_memset": "kind 0 4 bytes 8 8 start 16 8 end 24 8 device 32 4 context 36 4 stream 40 4 correlation 44 4"
    " flags 48 2 memory 50 2 graph_node 64 8 graph 72 4 channel 76 4",
    "cu_synchronization": "kind 0 4 type 4 4 start 8 8 end 16 8 correlation 24 4 context 28 4 stream 32 4 event 36 4",
    "cu_graph_trace": "kind 0 4 correlation 4 4 start 8 8 end 16 8 device 24 4 graph 28 4 context 32 4 stream 36 4",
}


def test_records_lie_as_in_cuda_12_and_13(tmp_path: Path) -> None:
    source = tmp_path / "layout.c"
    lines = ["#include <stdio.h>", '#include "cupti_abi.h"', "int main(void) {"]
    for struct, fields in LAYOUT.items():
        for name in fields.split()[::3]:
            size = f"sizeof(((struct {struct} *)0)->{name})"
            lines.append(f'printf("{struct} {name} %zu %zu\\n", offsetof(struct {struct}, {name}), {size});')
    source.write_text("\n".join([*lines, "return 0; }"]))
    program = tmp_path / "layout"
    subprocess.run([CC, "-Wall", "-Wextra", "-Werror", *INCLUDES, source, "-o", program], check=True)
    found: dict[str, list[str]] = {}
    for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines():
        struct, *field = line.split()
        found.setdefault(struct, []).extend(field)
    assert {struct: " ".join(fields) for struct, fields in found.items()} == LAYOUT


def _header_folders() -> list[list[Path]]:
    """Include folders of each CUDA with CUPTI's headers on this machine: toolkits, and wheels in this environment."""
    toolkits = sorted({path.resolve() for path in Path("/usr/local").glob("cuda*")})
    found = [[toolkit / "include", toolkit / "extras" / "CUPTI" / "include"] for toolkit in toolkits]
    wheels = Path(sysconfig.get_path("purelib")) / "nvidia"
    found += [[folder] for folder in sorted(wheels.glob("cu1*/include"))]
    return [folders for folders in found if any((folder / "cupti.h").is_file() for folder in folders)]


def test_what_the_headers_on_this_machine_say() -> None:
    """Structures, constants and the simulated CUPTI's numbers and sizes. Says nothing where there are no headers."""
    for folders in _header_folders():
        system = [part for folder in folders for part in ("-isystem", str(folder))]
        subprocess.run([CC, "-std=gnu11", "-Wall", "-fsyntax-only", *INCLUDES, *system, CHECK], check=True)
