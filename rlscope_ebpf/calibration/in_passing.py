"""The calibration that an attach uses: the one that is kept, or a short one taken in passing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from rlscope_ebpf.calibration import store
from rlscope_ebpf.calibration.measure import SHORT_CALLS, measure
from rlscope_ebpf.capture.engine import Engine
from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.model.calibration import Calibration

_SLOW_TO_DETACH = ("perf",)


def calibration_for(engine: Engine, say: Callable[[str], None]) -> Calibration | None:
    """Costs of the engine's attach method on this host; None if there are none. The engine must have no targets yet.

    `say` is given a sentence where the user should know.
    """
    kept = store.load()
    if kept is not None and engine.method in kept.methods:
        stale = store.why_stale(kept)
        if stale is None:
            return kept
        if not kept.short:
            say(
                f"The kept calibration of this host does not hold, since {stale}, and is not used. Run "
                "`rlscope-ebpf calibrate`; a short one, taken while attaching where that is possible, stands in for it."
            )
    short = store.load(store.short_calibration_path())
    if short is not None and store.why_stale(short) is not None:
        short = None
    if short is not None and engine.method in short.methods:
        return short
    if engine.method in _SLOW_TO_DETACH:
        say("Times are not corrected for the cost of the probes: this host is not calibrated for this attach method. "
            "Run `rlscope-ebpf calibrate`.")  # fmt: skip
        return None
    try:
        methods = {**(short.methods if short is not None else {}), engine.method: measure(engine, SHORT_CALLS)}
        found = store.this_host(methods, short=True)
    except (ProfilerError, OSError) as error:
        say(f"Times are not corrected for the cost of the probes: measuring it failed ({error}).")
        return None
    with suppress(ProfilerError):  # then it is measured again the next time
        store.save(found, store.short_calibration_path())
    return found
