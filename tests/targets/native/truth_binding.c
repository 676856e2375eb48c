/* SPDX-License-Identifier: Apache-2.0
 *
 * An extension module that binds the boundary libraries and belongs to no category itself, as most bindings do. The
 * GIL is held throughout, except in `spin_released`.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "truth_glue.h"

static PyObject *spin(PyObject *self, PyObject *argument)
{
    sim_spin(PyLong_AsLongLong(argument));
    Py_RETURN_NONE;
}

static PyObject *spin_released(PyObject *self, PyObject *argument)
{
    int64_t ns = PyLong_AsLongLong(argument);

    Py_BEGIN_ALLOW_THREADS
    sim_spin(ns);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *backend_spin(PyObject *self, PyObject *argument)
{
    be_spin(PyLong_AsLongLong(argument));
    Py_RETURN_NONE;
}

static PyObject *throwing(PyObject *self, PyObject *argument)
{
    if (glue_throwing(PyLong_AsLongLong(argument))) {
        PyErr_SetString(PyExc_ArithmeticError, "the simulation diverged");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *throwing_through(PyObject *self, PyObject *argument)
{
    return PyBool_FromLong(glue_throwing_through(PyLong_AsLongLong(argument)));
}

static PyObject *jumping(PyObject *self, PyObject *argument)
{
    return PyBool_FromLong(glue_longjmp(PyLong_AsLongLong(argument)));
}

static PyObject *cpp_steps(PyObject *self, PyObject *argument)
{
    return PyLong_FromLongLong(glue_cpp_steps(1, PyLong_AsLongLong(argument)));
}

struct call {
    PyObject *callable, *result;
};

static void trampoline(void *context)
{
    struct call *call = context;

    call->result = PyObject_CallObject(call->callable, NULL);
}

static PyObject *call_through(PyObject *arguments, void (*entry)(void (*)(void *), void *, int64_t))
{
    struct call call = {NULL, NULL};
    long long ns;

    if (!PyArg_ParseTuple(arguments, "OL", &call.callable, &ns))
        return NULL;
    entry(trampoline, &call, ns);
    return call.result;
}

static PyObject *callback(PyObject *self, PyObject *arguments)
{
    return call_through(arguments, sim_callback);
}

static PyObject *backend_callback(PyObject *self, PyObject *arguments)
{
    return call_through(arguments, be_callback);
}

static PyMethodDef methods[] = {
    {"spin", spin, METH_O, "spin(ns): ns in the simulator."},
    {"spin_released", spin_released, METH_O, "spin_released(ns): ns in the simulator, GIL released."},
    {"backend_spin", backend_spin, METH_O, "backend_spin(ns): ns in the backend."},
    {"throwing", throwing, METH_O, "throwing(ns): ns in the simulator, then ArithmeticError."},
    {"throwing_through", throwing_through, METH_O, "throwing_through(ns): twice ns; True if it threw."},
    {"jumping", jumping, METH_O, "jumping(ns): ns in the simulator, left by longjmp; True if it jumped."},
    {"cpp_steps", cpp_steps, METH_O, "cpp_steps(ns): ns in a virtual C++ method of the simulator."},
    {"callback", callback, METH_VARARGS, "callback(callable, ns): ns in the simulator before and after the call."},
    {"backend_callback", backend_callback, METH_VARARGS, "backend_callback(callable, ns): the same in the backend."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "truth_binding", .m_size = -1, .m_methods = methods,
};

PyMODINIT_FUNC PyInit_truth_binding(void)
{
    return PyModule_Create(&module);
}
