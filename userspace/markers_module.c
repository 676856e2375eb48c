/* SPDX-License-Identifier: Apache-2.0
 *
 * rlscope_ebpf._markers: the hot path of rlscope_ebpf/markers.py. Limited API of CPython 3.10, so that one build serves
 * all later versions. `operation("x")` returns the same object for the same name: it keeps no state of its own (the
 * stack of open operations is the thread's, in librlscope_markers.so), so entering one allocates nothing.
 */
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include "rlscope_markers.h"

/* With so many names all are forgotten and those in use come back: somebody puts a counter into the names. */
#define CACHED_OPERATIONS 4096

typedef struct {
    PyObject *operations; /* dict: name -> Operation */
    PyTypeObject *operation_type;
} module_state;

typedef struct {
    PyObject_HEAD
    const char *interned;
    PyObject *name;
} operation_object;

/*
 * UTF-8 of a name. What C strings or UTF-8 cannot hold (NUL, lone surrogates) becomes U+FFFD: a strange name, perhaps
 * from an environment's data, must not stop a training run. `*owner` keeps the text alive. NULL with TypeError if
 * it is not a str.
 */
static const char *text_of(PyObject *text, const char *what, PyObject **owner)
{
    *owner = NULL;
    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "%s must be a str, not %R", what, (PyObject *)Py_TYPE(text));
        return NULL;
    }
    Py_ssize_t length;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &length);
    if (utf8 && strlen(utf8) == (size_t)length) {
        *owner = Py_NewRef(text);
        return utf8;
    }
    if (!utf8) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
            return NULL;
        PyErr_Clear();
    }
    /* Slow and rare: character by character. */
    Py_ssize_t characters = PyUnicode_GetLength(text);
    PyObject *parts = PyList_New(0);
    if (!parts)
        return NULL;
    for (Py_ssize_t i = 0; i < characters; i++) {
        Py_UCS4 character = PyUnicode_ReadChar(text, i);
        if (character == 0 || (character >= 0xd800 && character <= 0xdfff))
            character = 0xfffd;
        PyObject *part = PyUnicode_FromOrdinal((int)character);
        if (!part || PyList_Append(parts, part) < 0) {
            Py_XDECREF(part);
            Py_DECREF(parts);
            return NULL;
        }
        Py_DECREF(part);
    }
    PyObject *empty = PyUnicode_FromString("");
    PyObject *clean = empty ? PyUnicode_Join(empty, parts) : NULL;
    Py_XDECREF(empty);
    Py_DECREF(parts);
    if (!clean)
        return NULL;
    *owner = clean;
    return PyUnicode_AsUTF8AndSize(clean, NULL);
}

/* ---- Operation ---- */

static PyObject *operation_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    rlscope_operation_begin_python(((operation_object *)self)->interned);
    return Py_NewRef(self);
}

static PyObject *operation_exit(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)arguments, (void)count;
    rlscope_operation_end_python();
    return Py_NewRef(Py_None);
}

/* Decoration is rare; it is written in Python. */
static PyObject *operation_call(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    PyObject *function;
    if (keywords && PyDict_Size(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "an operation takes the function that it decorates and nothing else");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "O:operation", &function))
        return NULL;
    PyObject *module = PyImport_ImportModule("rlscope_ebpf.markers");
    if (!module)
        return NULL;
    PyObject *result = PyObject_CallMethod(module, "_decorate", "OO", self, function);
    Py_DECREF(module);
    return result;
}

static PyObject *operation_get_name(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(((operation_object *)self)->name);
}

static PyObject *operation_repr(PyObject *self)
{
    return PyUnicode_FromFormat("operation(%R)", ((operation_object *)self)->name);
}

static PyObject *operation_reduce(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *module = PyImport_ImportModule("rlscope_ebpf.markers");
    if (!module)
        return NULL;
    PyObject *function = PyObject_GetAttrString(module, "_named");
    Py_DECREF(module);
    return function ? Py_BuildValue("N(O)", function, ((operation_object *)self)->name) : NULL;
}

static void operation_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((operation_object *)self)->name);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef operation_methods[] = {
    {"__enter__", operation_enter, METH_NOARGS, "Open the operation on this thread."},
    {"__exit__", (PyCFunction)(void (*)(void))operation_exit, METH_FASTCALL,
     "Close this thread's innermost operation; exceptions pass."},
    {"__reduce__", operation_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef operation_attributes[] = {
    {"name", operation_get_name, NULL, "The name as given.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot operation_slots[] = {
    {Py_tp_doc, "A named span: a context manager and a decorator. Made by `operation(name)`; may be used again."},
    {Py_tp_methods, operation_methods},
    {Py_tp_getset, operation_attributes},
    {Py_tp_call, operation_call},
    {Py_tp_repr, operation_repr},
    {Py_tp_dealloc, operation_dealloc},
    {0, NULL},
};

static PyType_Spec operation_spec = {
    .name = "rlscope_ebpf._markers.Operation",
    .basicsize = sizeof(operation_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = operation_slots,
};

/* ---- functions ---- */

static PyObject *make_operation(module_state *state, PyObject *name)
{
    PyObject *owner;
    const char *text = text_of(name, "the operation's name", &owner);
    if (!text) {
        Py_XDECREF(owner);
        return NULL;
    }
    const char *interned = rlscope_intern(text);
    Py_DECREF(owner);
    allocfunc allocate = (allocfunc)PyType_GetSlot(state->operation_type, Py_tp_alloc);
    operation_object *made = (operation_object *)allocate(state->operation_type, 0);
    if (!made)
        return NULL;
    made->interned = interned;
    /* A plain str: one of a subclass may hash and compare as it likes. */
    made->name = PyUnicode_FromObject(name);
    if (PyDict_Size(state->operations) >= CACHED_OPERATIONS)
        PyDict_Clear(state->operations);
    if (!made->name || PyDict_SetItem(state->operations, made->name, (PyObject *)made) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return (PyObject *)made;
}

static PyObject *operation(PyObject *module, PyObject *name)
{
    module_state *state = PyModule_GetState(module);
    if (PyUnicode_CheckExact(name)) {
        PyObject *found = PyDict_GetItemWithError(state->operations, name);
        if (found)
            return Py_NewRef(found);
        if (PyErr_Occurred())
            return NULL;
    }
    return make_operation(state, name);
}

static PyObject *phase(PyObject *module, PyObject *name)
{
    (void)module;
    PyObject *owner;
    const char *text = text_of(name, "the phase's name", &owner);
    if (text)
        rlscope_phase(text);
    Py_XDECREF(owner);
    return text ? Py_NewRef(Py_None) : NULL;
}

static PyObject *process_name(PyObject *module, PyObject *name)
{
    (void)module;
    PyObject *owner;
    const char *text = text_of(name, "the process's name", &owner);
    if (text)
        rlscope_process_name(text);
    Py_XDECREF(owner);
    return text ? Py_NewRef(Py_None) : NULL;
}

/* Any integer from 0 to 2**64 - 1, also NumPy's. */
static int to_uint64(PyObject *value, const char *what, uint64_t *result)
{
    PyObject *number = PyNumber_Index(value);
    if (!number)
        return -1;
    *result = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (*result != (uint64_t)-1 || !PyErr_Occurred())
        return 0;
    if (PyErr_ExceptionMatches(PyExc_OverflowError))
        PyErr_Format(PyExc_ValueError, "%s must be from 0 to 2**64 - 1", what);
    return -1;
}

static PyObject *progress(PyObject *module, PyObject *arguments, PyObject *keywords)
{
    (void)module;
    static char *names[] = {"step", "total", NULL};
    PyObject *step, *total = Py_None;
    uint64_t step_value, total_value = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|O:progress", names, &step, &total) ||
        to_uint64(step, "step", &step_value) < 0 ||
        (total != Py_None && to_uint64(total, "total", &total_value) < 0))
        return NULL;
    rlscope_progress(step_value, total_value);
    return Py_NewRef(Py_None);
}

static PyObject *metadata(PyObject *module, PyObject *arguments, PyObject *keywords)
{
    (void)module;
    if (PyTuple_Size(arguments) != 0) {
        PyErr_SetString(PyExc_TypeError, "metadata() takes keyword arguments only");
        return NULL;
    }
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (keywords && PyDict_Next(keywords, &position, &key, &value)) {
        PyObject *text = PyObject_Str(value);
        if (!text)
            return NULL;
        PyObject *key_owner = NULL, *value_owner = NULL;
        const char *key_text = text_of(key, "the key", &key_owner);
        const char *value_text = key_text ? text_of(text, "the value", &value_owner) : NULL;
        if (value_text)
            rlscope_metadata(key_text, value_text);
        Py_XDECREF(key_owner);
        Py_XDECREF(value_owner);
        Py_DECREF(text);
        if (!value_text)
            return NULL;
    }
    return Py_NewRef(Py_None);
}

/* What a coroutine's operations need when it is suspended: see markers.py. */

static PyObject *depth(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyLong_FromUnsignedLong(rlscope_operation_depth());
}

static PyObject *suspend(PyObject *module, PyObject *level)
{
    (void)module;
    unsigned long base = PyLong_AsUnsignedLong(level);
    if (base == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    uint32_t top = rlscope_operation_depth();
    Py_ssize_t open = top > base ? (Py_ssize_t)(top - base) : 0;
    PyObject *names = PyTuple_New(open);
    if (!names)
        return NULL;
    for (Py_ssize_t i = 0; i < open; i++) {
        /* Too deep to be known by name: an empty one. The library never frees a name, so its address is enough. */
        const char *name = rlscope_operation_name((uint32_t)(base + (unsigned long)i));
        PyObject *address = PyLong_FromVoidPtr((void *)(name ? name : rlscope_intern("")));
        if (!address || PyTuple_SetItem(names, i, address) < 0) {
            Py_DECREF(names);
            return NULL;
        }
    }
    for (Py_ssize_t i = 0; i < open; i++)
        rlscope_operation_end_python();
    return names;
}

static PyObject *resume(PyObject *module, PyObject *names)
{
    (void)module;
    Py_ssize_t open = PyTuple_Size(names);
    if (open < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < open; i++) {
        PyObject *address = PyTuple_GetItem(names, i);
        const char *name = address ? PyLong_AsVoidPtr(address) : NULL;
        if (!name && PyErr_Occurred())
            return NULL;
        rlscope_operation_begin_python(name);
    }
    return Py_NewRef(Py_None);
}

static PyObject *stack(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    uint32_t open = rlscope_operation_depth();
    if (open > RLSCOPE_MAX_DEPTH)
        open = RLSCOPE_MAX_DEPTH;
    PyObject *names = PyTuple_New((Py_ssize_t)open);
    for (uint32_t i = 0; names && i < open; i++) {
        const char *text = rlscope_operation_name(i);
        text = text ? text : "";
        /* C code on the same thread may have named something that is no UTF-8. */
        PyObject *name = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
        if (!name || PyTuple_SetItem(names, (Py_ssize_t)i, name) < 0)
            Py_CLEAR(names);
    }
    return names;
}

static PyMethodDef functions[] = {
    {"operation", operation, METH_O, "operation(name): a context manager and decorator."},
    {"phase", phase, METH_O, NULL},
    {"process_name", process_name, METH_O, NULL},
    {"progress", (PyCFunction)(void (*)(void))progress, METH_VARARGS | METH_KEYWORDS, NULL},
    {"metadata", (PyCFunction)(void (*)(void))metadata, METH_VARARGS | METH_KEYWORDS, NULL},
    {"depth", depth, METH_NOARGS, "Operations open on this thread."},
    {"stack", stack, METH_NOARGS, "Their names, outermost first, at most 64."},
    {"suspend", suspend, METH_O, "suspend(level): close the operations above level; what `resume` takes."},
    {"resume", resume, METH_O, "Open again what `suspend` closed."},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    state->operations = PyDict_New();
    if (!state->operations)
        return -1;
    state->operation_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &operation_spec, NULL);
    if (!state->operation_type)
        return -1;
    return PyModule_AddType(module, state->operation_type);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    module_state *state = PyModule_GetState(module);
    Py_VISIT(state->operations);
    Py_VISIT(state->operation_type);
    return 0;
}

static int module_clear(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->operations);
    Py_CLEAR(state->operation_type);
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "rlscope_ebpf._markers",
    .m_doc = "The compiled part of rlscope_ebpf.markers.",
    .m_size = sizeof(module_state),
    .m_methods = functions,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__markers(void)
{
    return PyModuleDef_Init(&definition);
}
