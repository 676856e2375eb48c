// SPDX-License-Identifier: Apache-2.0
// A pybind11 module that is itself a simulator.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <stdexcept>

#include "truth_clock.h"

namespace py = pybind11;

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
    throw std::domain_error("the simulation diverged"); // pybind11 makes a ValueError of it
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

PYBIND11_MODULE(truth_simulator_pybind, module)
{
    module.def("spin", &spin);
    module.def("spin_released", &spin, py::call_guard<py::gil_scoped_release>());
    module.def("call", &call<py::function>);
    module.def("call_std", &call<std::function<void()>>);
    module.def("diverge", &diverge);
    py::class_<World>(module, "World").def(py::init<>()).def("step", &World::step);
}
