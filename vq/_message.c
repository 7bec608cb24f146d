/* The constructor of messages, compiled. A named tuple's constructor is a Python function, and a
 * producer's caller makes one message per send. vq/model.py passes the type; calls of the type give
 * the same results and errors as those of any named tuple.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Memory of freed messages is kept for so many: as many as an answer of 1 MiB has of 128 bytes. A new
 * one counts for the collector, which looks through all lists of messages after 700 of them. */
enum { FIELDS_MAX = 16, SPARE_MAX = 8192 };

/* What the compiled loops of records find a function of this module by. */
#define TAKE_UNTRACKED "vq._message.take_untracked"

/* The type, its names and its defaults; one type in a process, held for ever. */
static struct {
    PyTypeObject *type; /* NULL: none yet */
    PyObject *spare[SPARE_MAX]; /* memory of freed messages, to be used again */
    int spares;
    Py_ssize_t fields;
    PyObject *names[FIELDS_MAX];
    PyObject *defaults[FIELDS_MAX]; /* NULL: the field must be given */
} message;

/* Whether a value cannot refer to other objects, so that it cannot be a part of a cycle. */
static int is_atomic(PyObject *value)
{
    return value == Py_None || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value) ||
           PyLong_CheckExact(value);
}

/* Sort the arguments of a call into ``values`` (borrowed). Return 0 if the call is not plain: then
 * the type itself handles it or raises the error. */
static int sort_arguments(PyObject *const *args, Py_ssize_t count, PyObject *names,
                          PyObject **values)
{
    if (count > message.fields)
        return 0;
    for (Py_ssize_t i = 0; i < message.fields; i++)
        values[i] = i < count ? args[i] : NULL;
    for (Py_ssize_t n = 0; names && n < PyTuple_GET_SIZE(names); n++) {
        Py_ssize_t i = count;
        while (i < message.fields && message.names[i] != PyTuple_GET_ITEM(names, n))
            i++;
        if (i == message.fields || values[i])
            return 0;
        values[i] = args[count + n];
    }
    for (Py_ssize_t i = 0; i < message.fields; i++) {
        if (!values[i])
            values[i] = message.defaults[i];
        if (!values[i])
            return 0;
    }
    return 1;
}

/* Make the object in the usual way, as for any type. */
static PyObject *call_type(PyObject *type, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *made = NULL;
    PyObject *named = PyDict_New();
    PyObject *positional = PyTuple_New(count);
    if (!named || !positional)
        goto done;
    for (Py_ssize_t i = 0; i < count; i++)
        PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t n = 0; names && n < PyTuple_GET_SIZE(names); n++)
        if (PyDict_SetItem(named, PyTuple_GET_ITEM(names, n), args[count + n]) < 0)
            goto done;
    made = PyType_Type.tp_call(type, positional, named);
done:
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return made;
}

/* Return a message without fields that the collector does not look at; NULL with an exception. */
static PyObject *take_memory(void)
{
    if (!message.spares)
        return (PyObject *)PyObject_GC_NewVar(PyTupleObject, message.type, message.fields);
    PyObject *memory = message.spare[--message.spares];
    return (PyObject *)PyObject_InitVar((PyVarObject *)memory, message.type, message.fields);
}

/* Free the fields of a message, which the collector does not look at any more, and its memory. */
static void free_fields(PyObject *freed)
{
    Py_ssize_t count = Py_SIZE(freed);
    for (Py_ssize_t i = 0; i < count; i++)
        Py_XDECREF(PyTuple_GET_ITEM(freed, i));
    if (count == message.fields && message.spares < SPARE_MAX)
        message.spare[message.spares++] = freed;
    else
        PyObject_GC_Del(freed);
    Py_DECREF(message.type);
}

/* Free a message. Most have only atomic fields, so that nothing in them leads to a further one. */
static void free_message(PyObject *freed)
{
    PyTypeObject *type = Py_TYPE(freed);
    if (type != message.type) { /* a derived one, whose own part is freed */
        PyTuple_Type.tp_dealloc(freed);
        Py_DECREF(type);
        return;
    }
    if (!PyObject_GC_IsTracked(freed)) {
        free_fields(freed);
        return;
    }
    PyObject_GC_UnTrack(freed);
    Py_TRASHCAN_BEGIN(freed, free_message) /* messages in messages: not too many calls deep */
    free_fields(freed);
    Py_TRASHCAN_END
}

/* Return a message without fields, as the type's own way to get memory does. */
static PyObject *allocate(PyTypeObject *type, Py_ssize_t count)
{
    if (type != message.type || count != message.fields || !message.spares)
        return PyType_GenericAlloc(type, count);
    PyObject *made = take_memory();
    for (Py_ssize_t i = 0; i < count; i++)
        PyTuple_SET_ITEM(made, i, NULL);
    PyObject_GC_Track(made);
    return made;
}

/* For the loop that decodes messages: return one without fields that the collector does not look at; NULL
 * with an exception, or without one for another type. */
static PyObject *take_untracked(PyTypeObject *type, Py_ssize_t count)
{
    return type == message.type && count == message.fields ? take_memory() : NULL;
}

static PyObject *make_message(PyObject *type, PyObject *const *args, size_t flags, PyObject *names)
{
    PyObject *values[FIELDS_MAX];
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if ((PyTypeObject *)type != message.type || !sort_arguments(args, count, names, values))
        return call_type(type, args, count, names);
    PyObject *made = take_memory();
    if (!made)
        return NULL;
#if PY_VERSION_HEX >= 0x030E0000
    ((PyTupleObject *)made)->ob_hash = -1; /* not computed yet */
#endif
    int atomic = 1;
    for (Py_ssize_t i = 0; i < message.fields; i++) {
        atomic &= is_atomic(values[i]);
        PyTuple_SET_ITEM(made, i, Py_NewRef(values[i]));
    }
    if (!atomic) /* otherwise the collector need not look at it, as at plain tuples of such values */
        PyObject_GC_Track(made);
    return made;
}

/* Read names and defaults of a named tuple into ``message``; -1 with an exception. */
static int learn_fields(PyObject *type)
{
    int learned = -1;
    PyObject *names = PyObject_GetAttrString(type, "_fields");
    PyObject *defaults = PyObject_GetAttrString(type, "_field_defaults");
    if (!names || !defaults)
        goto done;
    if (!PyTuple_CheckExact(names) || !PyDict_CheckExact(defaults) ||
        PyTuple_GET_SIZE(names) > FIELDS_MAX) {
        PyErr_SetString(PyExc_TypeError, "a named tuple of few fields is needed");
        goto done;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = Py_NewRef(PyTuple_GET_ITEM(names, i));
        PyUnicode_InternInPlace(&name);
        message.names[i] = name;
        message.defaults[i] = Py_XNewRef(PyDict_GetItemWithError(defaults, name));
    }
    message.fields = PyTuple_GET_SIZE(names);
    learned = PyErr_Occurred() ? -1 : 0;
done:
    Py_XDECREF(names);
    Py_XDECREF(defaults);
    return learned;
}

PyDoc_STRVAR(construct_doc,
             "construct(type, /)\n--\n\n"
             "Give a named tuple's type its constructor, where it is defined, and return the type.");

static PyObject *construct(PyObject *module, PyObject *type)
{
    (void)module;
    if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "a named tuple's type is needed");
        return NULL;
    }
    if (!message.type) { /* a second interpreter's type stays as it is */
        if (learn_fields(type) < 0)
            return NULL;
        message.type = (PyTypeObject *)Py_NewRef(type);
        message.type->tp_vectorcall = make_message;
        message.type->tp_dealloc = free_message;
        message.type->tp_alloc = allocate;
    }
    return Py_NewRef(type);
}

static PyMethodDef functions[] = {
    {"construct", construct, METH_O, construct_doc},
    {NULL, NULL, 0, NULL},
};

static int add_take(PyObject *module)
{
    PyObject *take = PyCapsule_New((void *)take_untracked, TAKE_UNTRACKED, NULL);
    int added = PyModule_AddObjectRef(module, "take_untracked", take);
    Py_XDECREF(take);
    return added;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)add_take}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vq._message",
    .m_doc = "Making messages, compiled; see vq.model.",
    .m_size = 0,
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__message(void) { return PyModuleDef_Init(&definition); }
