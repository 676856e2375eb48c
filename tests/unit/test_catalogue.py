"""The built-in catalogue: what it takes and what it leaves; catalogues that are wrong."""

from __future__ import annotations

import pytest

from rlscope_ebpf.capture.catalogue import CatalogueError, Library, builtin_catalogue, parse_catalogue
from rlscope_ebpf.capture.cookie import Action, Group
from rlscope_ebpf.model.categories import Category


def library(name: str) -> Library:
    return next(found for found in builtin_catalogue() if found.name == name)


def takes(name: str, symbol: str) -> bool:
    return any(entry.takes(symbol) for entry in library(name).entries)


def torch_operator(name: str, *, arguments: str = "S2_S2_") -> str:
    text = f"THPVariable_{name}"
    return f"_ZN5torch8autogradL{len(text)}{text}EP7_object{arguments}"


DRIVER_WORK = """
cuLaunchKernel cuLaunchKernel_ptsz cuLaunchKernelEx cuLaunchKernelEx_ptsz cuLaunchCooperativeKernel
cuGraphLaunch cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz cuMemcpy cuMemcpy_ptds cuMemsetD8Async
cuMemsetD32_v2 cuMemAlloc_v2 cuMemAllocAsync cuMemFree_v2 cuStreamSynchronize cuStreamSynchronize_ptsz
cuEventRecord cuEventRecordWithFlags_ptsz cuEventSynchronize cuStreamWaitEvent cuCtxSynchronize
cuModuleLoadData cuModuleLoadDataEx cuLibraryLoadData cuInit cuStreamCreateWithPriority
cuStreamBeginCapture_v2 cuStreamEndCapture cuGraphInstantiateWithFlags cuMemPrefetchAsync_v2
"""
RUNTIME_WORK = """
cudaLaunchKernel cudaLaunchKernel_ptsz cudaLaunchKernelExC cudaLaunchKernelExC_ptsz cudaGraphLaunch cudaMemcpy
cudaMemcpyAsync cudaMemcpyAsync_ptsz cudaMemset cudaMemsetAsync cudaMalloc cudaMallocAsync cudaMallocHost
cudaFree cudaFreeAsync cudaStreamSynchronize cudaDeviceSynchronize cudaEventRecord cudaEventRecordWithFlags
cudaEventSynchronize cudaStreamWaitEvent cudaHostAlloc cudaLaunchCooperativeKernel cudaStreamCreateWithFlags
cudaGraphInstantiate
"""
DRIVER_GETTERS = """
cuCtxGetDevice cuDevicePrimaryCtxGetState cuCtxGetCurrent cuCtxSetCurrent cuDeviceGetAttribute cuStreamQuery
cuEventQuery cuFuncGetAttribute cuGetProcAddress_v2 cuStreamIsCapturing cuPointerGetAttribute cuMemGetInfo_v2
cuCtxPushCurrent_v2 cuEventElapsedTime cuStreamGetCtx
"""
RUNTIME_GETTERS = """
cudaGetDevice cudaSetDevice cudaGetLastError cudaPeekAtLastError cudaStreamIsCapturing cudaEventQuery
cudaStreamQuery cudaDeviceGetAttribute cudaFuncGetAttributes cudaOccupancyMaxActiveBlocksPerMultiprocessor
cudaMemGetInfo cudaStreamGetCaptureInfo_v2 cudaPointerGetAttributes cudaGetErrorString
__cudaPushCallConfiguration
"""


@pytest.mark.parametrize(("name", "symbols"), [("CUDA driver", DRIVER_WORK), ("CUDA runtime", RUNTIME_WORK)])
def test_cuda_calls_that_do_work(name: str, symbols: str) -> None:
    missing = [symbol for symbol in symbols.split() if not takes(name, symbol)]
    assert missing == []


@pytest.mark.parametrize(("name", "symbols"), [("CUDA driver", DRIVER_GETTERS), ("CUDA runtime", RUNTIME_GETTERS)])
def test_cuda_getters_are_left_out(name: str, symbols: str) -> None:
    taken = [symbol for symbol in symbols.split() if takes(name, symbol)]
    assert taken == []


def test_torch_operators() -> None:
    for name in ("add", "mm", "linear", "__and__", "_foreach_add_", "conv2d", "item", "cpu", "to", "zero_", "numpy"):
        assert takes("PyTorch", torch_operator(name)), name
    assert takes("PyTorch", torch_operator("t", arguments="S2_"))
    assert takes("PyTorch", "_ZL22THPEngine_run_backwardP7_objectS0_S0_")
    assert takes("PyTorch", "_Z22THPEngine_run_backwardP7_objectS0_S0_")
    assert takes("PyTorch", "_ZN12_GLOBAL__N_117THPFunction_applyEP7_objectS1_S1_")


def test_torch_bookkeeping_is_left_out() -> None:
    for name in (
        "size",
        "dim",
        "stride",
        "numel",
        "data_ptr",
        "is_contiguous",
        "get_device",
        "requires_grad_",
        "_is_view",
    ):
        assert not takes("PyTorch", torch_operator(name)), name
    for symbol in (
        "_Z16THPVariable_WrapRKN2at10TensorBaseE",
        "_ZL19THPVariable_deallocP7_object",
        torch_operator("add") + ".cold",
        "_ZL20THPVariable_get_baseP11THPVariablePv",
        "_ZL24THPEngine_queue_callbackP7_objectS0_",
    ):
        assert not takes("PyTorch", symbol), symbol


def test_torch_functions_that_take_less_than_their_probes_are_left_out() -> None:
    for name in ("detach", "detach_", "positive", "untyped_storage", "_view_func", "_rev_view_func_unsafe"):
        assert not takes("PyTorch", torch_operator(name)), name
    assert not takes("PyTorch", torch_operator("detach", arguments="S2_"))
    # views take about as long as their probes, and what may have to copy can take any time
    for name in ("t", "view", "squeeze", "detach_copy", "reshape", "contiguous", "to", "cpu", "numpy", "item"):
        assert takes("PyTorch", torch_operator(name)), name


def test_box2d_steps_but_no_accessors() -> None:
    for symbol in ("_wrap_b2World_Step", "_wrap_b2World_CreateBody", "_wrap_b2Body_ApplyForce", "_wrap_new_b2World"):
        assert takes("Box2D", symbol), symbol
    for symbol in (
        "_wrap_b2Vec2_x_get",
        "_wrap_b2World___hash__",
        "_wrap_b2World_Step.cold",
        "_wrap_b2Body___GetPosition",
    ):
        assert not takes("Box2D", symbol), symbol


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06", "CUDA driver"),
        ("/venv/nvidia/cu13/lib/libcudart.so.13", "CUDA runtime"),
        ("/venv/ale_py.libs/libcudart-09529672.so.12.6.77", "CUDA runtime"),
        ("/venv/torch/lib/libtorch_python.so", "PyTorch"),
        ("/venv/mujoco/libmujoco.so.4.0.0", "MuJoCo"),
        ("/venv/mujoco/_callbacks.cpython-311-x86_64-linux-gnu.so", "MuJoCo callbacks"),
        ("/venv/pybullet.cpython-311-x86_64-linux-gnu.so", "PyBullet"),
        ("/venv/ale_py/_ale_py.cpython-311-x86_64-linux-gnu.so", "Arcade Learning Environment"),
        ("/venv/Box2D/_Box2D.cpython-311-x86_64-linux-gnu.so", "Box2D"),
        ("/venv/jaxlib/libjax_common.so", "JAX"),
        ("/lib/python3.12/lib-dynload/_ctypes.cpython-312-x86_64-linux-gnu.so", "ctypes callbacks"),
        ("/lib/python3.12/lib-dynload/_ctypes_test.cpython-312-x86_64-linux-gnu.so", None),
        ("/venv/other/_callbacks.cpython-311-x86_64-linux-gnu.so", None),
        ("/venv/torch/lib/libtorch_cpu.so", None),
    ],
)
def test_which_file_is_which_library(path: str, name: str | None) -> None:
    found = [library.name for library in builtin_catalogue() if library.matches_path(path)]
    assert found == ([name] if name else [])


def test_every_group_action_and_category_has_its_place() -> None:
    catalogue = builtin_catalogue()
    assert {found.group for found in catalogue} == set(Group)
    actions = {entry.action for found in catalogue for entry in found.entries}
    assert actions == set(Action) - {Action.EXIT}  # exits follow from the functions
    for found in catalogue:
        assert found.entries, found.name
        if found.group == Group.CUDA:
            assert found.category == Category.CUDA_API
        if found.group == Group.REENTRY:
            assert found.category == Category.PYTHON


GOOD = '[[library]]\nname = "x"\nfiles = ["x.so"]\ncategory = "backend"\ngroup = "boundary"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[library]", "Expected|expected"),
        (GOOD.replace("backend", "gpu"), "category"),
        (GOOD.replace("boundary", "edge"), "group"),
        (GOOD.replace('files = ["x.so"]\n', ""), "neither files nor defines"),
        (GOOD + "colour = 1\n", "unknown keys \\(colour\\)"),
        (GOOD + 'callbacks = "sometimes"\n', "callbacks"),
        (GOOD + '[[library.entry]]\nmatch = "("\n', "pattern"),
        (GOOD + '[[library.entry]]\nsymbols = ["f"]\naction = "dance"\n', "unknown action"),
        (GOOD + '[[library.entry]]\nsymbols = ["f"]\nwhen = "never"\n', "when"),
        (GOOD + '[[library.entry]]\nsymbol = "f"\n', "unknown keys \\(symbol\\)"),
    ],
)
def test_wrong_catalogues_say_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(CatalogueError, match=problem):
        parse_catalogue(text)


def test_a_small_catalogue() -> None:
    (found,) = parse_catalogue(GOOD + "[[library.entry]]\nmatch = 'f\\d'\nexcept = 'f9'\nfrom_python = true\n")
    (entry,) = found.entries
    assert [entry.takes(name) for name in ("f1", "f9", "f12", "g1")] == [True, False, False, False]
    assert entry.action == Action.CALL
    assert entry.from_python
    assert not entry.noexcept
