/* SPDX-License-Identifier: Apache-2.0
 *
 * A hand-written extension module that is itself a simulator: its functions are boundary functions, reached through
 * its method tables and type slots.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "truth_clock.h"

static PyObject *ext_spin(PyObject *self, PyObject *argument)
{
    truth_enter(TRUTH_SIMULATOR);
    int64_t ns = PyLong_AsLongLong(argument);
    truth_spin(ns);
    truth_leave();
    Py_RETURN_NONE;
}

static PyObject *ext_spin_released(PyObject *self, PyObject *argument)
{
    truth_enter(TRUTH_SIMULATOR);
    int64_t ns = PyLong_AsLongLong(argument);
    Py_BEGIN_ALLOW_THREADS
    truth_spin(ns);
    Py_END_ALLOW_THREADS
    truth_leave();
    Py_RETURN_NONE;
}

static PyObject *ext_call(PyObject *self, PyObject *arguments)
{
    truth_enter(TRUTH_SIMULATOR);
    PyObject *callable, *result = NULL;
    long long ns;

    if (PyArg_ParseTuple(arguments, "OL:call", &callable, &ns)) {
        truth_spin(ns);
        truth_enter(TRUTH_PYTHON);
        result = PyObject_CallObject(callable, NULL);
        truth_leave();
        truth_spin(ns);
    }
    truth_leave();
    return result;
}

static PyObject *world_call(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    truth_enter(TRUTH_SIMULATOR);
    PyObject *result = NULL;
    long long ns;

    if (PyArg_ParseTuple(arguments, "L:World", &ns)) {
        truth_spin(ns);
        result = Py_None;
        Py_INCREF(result);
    }
    truth_leave();
    return result;
}

static PyMethodDef world_methods[] = {
    {"step", ext_spin, METH_O, "step(ns): spend ns with the GIL held."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot world_slots[] = {
    {Py_tp_methods, world_methods},
    {Py_tp_call, world_call},
    {0, NULL},
};

static PyType_Spec world_spec = {
    .name = "truth_simulator_ext.World",
    .basicsize = sizeof(PyObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = world_slots,
};

static PyMethodDef methods[] = {
    {"spin", ext_spin, METH_O, "spin(ns): spend ns with the GIL held."},
    {"spin_released", ext_spin_released, METH_O, "spin_released(ns): spend ns with the GIL released."},
    {"call", ext_call, METH_VARARGS, "call(callable, ns): spend ns before and after calling it."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "truth_simulator_ext", .m_size = -1, .m_methods = methods,
};

PyMODINIT_FUNC PyInit_truth_simulator_ext(void)
{
    PyObject *self = PyModule_Create(&module);
    PyObject *world = self ? PyType_FromSpec(&world_spec) : NULL;

    if (!world || PyModule_AddObject(self, "World", world) < 0) {
        Py_XDECREF(world);
        Py_XDECREF(self);
        return NULL;
    }
    return self;
}
