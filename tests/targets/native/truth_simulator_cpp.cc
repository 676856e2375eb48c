// SPDX-License-Identifier: Apache-2.0
#include "truth_simulator.h"

#include <stdexcept>
#include <string>

extern "C" void sim_throwing(int64_t ns)
{
    truth_enter(TRUTH_SIMULATOR);
    truth_spin(ns);
    throw std::runtime_error("the simulation diverged"); // who catches calls truth_unwind()
}

extern "C" void sim_passes_exception(int64_t ns)
{
    truth_enter(TRUTH_SIMULATOR);
    std::string with_destructor(64, 'x'); // so that unwinding has something to do in this frame
    truth_spin(ns);
    sim_throwing(ns);
    truth_spin(static_cast<int64_t>(with_destructor.size()));
    truth_leave();
}

namespace truth {

Simulator::Simulator(int64_t unit_ns)
{
    truth_enter(TRUTH_SIMULATOR);
    unit_ns_ = unit_ns;
    truth_leave();
}

Simulator::~Simulator() = default;

int64_t Simulator::step(int64_t units)
{
    truth_enter(TRUTH_SIMULATOR);
    truth_spin(unit_ns_ * units);
    int64_t steps = ++steps_;
    truth_leave();
    return steps;
}

} // namespace truth
