"""The benchmarks' measure of the machine's speed."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.metronome import Floats, Metronome, pace

BEAT_S = 20e-6


def _stretches(count: int, exponent: float = 0.8, slower: float = 1.0, seed: int = 1) -> Floats:
    """Chunks whose work differs from one to the next, on a machine that is up to twice as slow for a while."""
    random = np.random.default_rng(seed)
    work = np.linspace(0.05, 0.1, 40)
    speed = random.choice([1.0, 1.3, 1.9], (count, 1)) * random.uniform(0.9, 1.1, (count, len(work)))
    beat = BEAT_S * speed
    took = slower * work * speed**exponent * random.normal(1, 0.03, speed.shape)
    return np.stack((took, beat), axis=-1)


def test_a_slow_machine_is_no_slowdown() -> None:
    usual = pace(_stretches(8))
    assert usual.exponent == pytest.approx(0.8, abs=0.05)
    for stretch in _stretches(8, seed=2):
        assert stretch[:, 0].sum() / usual.expected_s(stretch) == pytest.approx(1, abs=0.03)


def test_a_slowdown_is_seen_on_a_machine_of_any_speed() -> None:
    usual = pace(_stretches(8))
    for stretch in _stretches(8, slower=1.2, seed=3):
        assert stretch[:, 0].sum() / usual.expected_s(stretch) == pytest.approx(1.2, abs=0.04)


def test_what_some_chunks_met_does_not_shape_it_and_counts_in_the_sum() -> None:
    stretches = _stretches(8)
    stretches[:, ::10, 0] *= 3
    stretches[0, 5, 0] *= 20
    usual = pace(stretches)
    assert usual.exponent == pytest.approx(0.8, abs=0.05)
    assert sum(usual.expected_s(stretch) for stretch in stretches) == pytest.approx(stretches[..., 0].sum())


@pytest.mark.parametrize("slope", [40.0, -40.0])
def test_where_the_speed_hardly_changes_work_does_not_hang_on_it_beyond_reason(slope: float) -> None:
    random = np.random.default_rng(4)
    beat = BEAT_S * random.normal(1, 1e-4, (8, 40))
    stretches = np.stack((0.1 * (beat / BEAT_S) ** slope * random.normal(1, 0.01, beat.shape), beat), axis=-1)
    usual = pace(stretches)
    slower = stretches[0] * (1.0, 1.5)  # the machine is, while the work is as fast as ever
    assert 0.5 <= slower[:, 0].sum() / usual.expected_s(slower) <= 1.01


def test_beats_are_not_part_of_the_work() -> None:
    metronome = Metronome()
    for _ in range(3):
        for _ in range(50):
            metronome.beat()
        metronome.chunk()
    metronome.beat()
    metronome.chunk()  # too few beats to tell the speed: goes on
    assert len(metronome.chunks) == 3
    for work_s, beat_s in metronome.chunks:
        assert beat_s > 0
        assert work_s < 50 * beat_s
    metronome.restart()
    assert not metronome.chunks
