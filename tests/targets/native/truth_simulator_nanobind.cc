// SPDX-License-Identifier: Apache-2.0
// A nanobind module that is itself a simulator.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>

#include <cstdint>
#include <functional>
#include <stdexcept>

#include "truth_clock.h"

namespace nb = nanobind;

namespace {

void spin(int64_t ns)
{
    truth_enter(TRUTH_SIMULATOR);
    truth_spin(ns);
    truth_leave();
}

template <typename Callable> void call(const Callable &callable, int64_t ns)
{
    truth_enter(TRUTH_SIMULATOR);
    truth_spin(ns);
    truth_enter(TRUTH_PYTHON);
    callable();
    truth_leave();
    truth_spin(ns);
    truth_leave();
}

void diverge(int64_t ns)
{
    truth_enter(TRUTH_SIMULATOR);
    truth_spin(ns);
    truth_leave();
    throw std::domain_error("the simulation diverged"); // nanobind makes a ValueError of it
}

class World {
public:
    World() // constructing is a call into the library, too
    {
        truth_enter(TRUTH_SIMULATOR);
        truth_leave();
    }

    int64_t step(int64_t ns)
    {
        spin(ns);
        return ++steps_;
    }

private:
    int64_t steps_ = 0;
};

} // namespace

NB_MODULE(truth_simulator_nanobind, module)
{
    module.def("spin", &spin);
    module.def("spin_released", &spin, nb::call_guard<nb::gil_scoped_release>());
    module.def("call", &call<nb::callable>);
    module.def("call_std", &call<std::function<void()>>);
    module.def("diverge", &diverge);
    nb::class_<World>(module, "World").def(nb::init<>()).def("step", &World::step);
}
