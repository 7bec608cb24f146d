/* Methods of a producer that take plain messages without a frame of Python.
 *
 * vq/client/producer/intake/shortcut.py explains it. A shortcut stands in a class where a function of
 * Python stood: to everyone who looks at it, it is that function, which all unusual calls go to.
 */
#ifndef VQ_SHORTCUT_H
#define VQ_SHORTCUT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* Attributes of a producer that a shortcut reads. */
enum { S_APPEND, S_CHECKED, S_UNHEARD, S_COUNT };
static const char *const sends_names[S_COUNT] = {"_append", "_checked", "_unheard"};

typedef struct {
    PyObject_HEAD
    PyObject *function; /* what it stands for */
    PyObject *rest;     /* the name of the method for messages that are not plain */
    PyObject *names[S_COUNT];
    int not_plain; /* flags of functions that cannot be callbacks */
    vectorcallfunc call;
    PyObject *weak; /* references to it: a weakref.WeakMethod of a producer's method has one */
} shortcut_t;

/* The arguments of a call, borrowed. */
typedef struct {
    PyObject *self, *message, *callback, *timeout;
} call_t;

/* Read the arguments of a usual call; 0: the function reads them, and raises if they are wrong. */
static int read_call(PyObject *const *args, size_t flags, PyObject *names, int takes_callback,
                     call_t *read)
{
    Py_ssize_t count = PyVectorcall_NARGS(flags), most = takes_callback ? 4 : 3;
    if (count < 2 || count > most)
        return 0;
    PyObject *callback = takes_callback && count > 2 ? args[2] : NULL;
    PyObject *timeout = count == most ? args[most - 1] : NULL;
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i), *value = args[count + i];
        if (takes_callback && !callback && !PyUnicode_CompareWithASCIIString(name, "callback"))
            callback = value;
        else if (!timeout && !PyUnicode_CompareWithASCIIString(name, "timeout"))
            timeout = value;
        else
            return 0;
    }
    *read = (call_t){args[0], args[1], callback ? callback : Py_None, timeout ? timeout : Py_None};
    return 1;
}

/* Find an attribute of a producer, a new reference or NULL: it has none, as before its ``__init__`` has
 * ended. Return -1 with an exception: looking for it may run code of a derived class. */
static int find(shortcut_t *shortcut, PyObject *self, int name, PyObject **found)
{
    *found = PyObject_GetAttr(self, shortcut->names[name]);
    if (*found || PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        return 0;
    }
    return -1;
}

/* Find the appender that a producer's plain messages go to now, a new reference or NULL: there is none,
 * as with interceptors, or while a transaction is open. Return -1 with an exception. */
static int find_appender(shortcut_t *shortcut, PyObject *self, appender_t **appender)
{
    PyObject *append;
    *appender = NULL;
    if (find(shortcut, self, S_APPEND, &append) < 0)
        return -1;
    if (append && PyCFunction_CheckExact(append) &&
        PyCFunction_GET_FUNCTION(append) == (PyCFunction)(void (*)(void))appender_append)
        *appender = (appender_t *)Py_NewRef(PyCFunction_GET_SELF(append));
    Py_XDECREF(append);
    return 0;
}

/* Whether a callback needs no further look: a plain function or a method that is one, or the callback of
 * the last send; -1 with an exception. */
static int is_checked(shortcut_t *shortcut, PyObject *self, PyObject *callback)
{
    PyObject *function = PyMethod_Check(callback) ? PyMethod_GET_FUNCTION(callback) : callback, *checked;
    if (callback == Py_None ||
        (PyFunction_Check(function) &&
         !(((PyCodeObject *)PyFunction_GET_CODE(function))->co_flags & shortcut->not_plain)))
        return 1;
    if (find(shortcut, self, S_CHECKED, &checked) < 0)
        return -1;
    Py_XDECREF(checked); /* only compared */
    return checked == callback;
}

static PyObject *call_send_async(PyObject *called, PyObject *const *args, size_t flags,
                                 PyObject *names)
{
    shortcut_t *shortcut = (shortcut_t *)called;
    call_t call;
    appender_t *appender = NULL;
    int is_usual = read_call(args, flags, names, 1, &call);
    if (is_usual && (is_usual = is_checked(shortcut, call.self, call.callback)) > 0 &&
        find_appender(shortcut, call.self, &appender) < 0)
        is_usual = -1;
    if (is_usual < 0)
        return NULL;
    if (!appender)
        return PyObject_Vectorcall(shortcut->function, args, flags, names);
    PyObject *future = append_one(appender, call.message, call.callback, call.timeout);
    Py_DECREF(appender);
    if (future != Py_None)
        return future;
    Py_DECREF(future);
    PyObject *arguments[] = {call.self, call.message, call.callback, call.timeout};
    return PyObject_VectorcallMethod(shortcut->rest, arguments, 4, NULL);
}

static PyObject *call_send_oneway(PyObject *called, PyObject *const *args, size_t flags,
                                  PyObject *names)
{
    shortcut_t *shortcut = (shortcut_t *)called;
    call_t call;
    appender_t *appender = NULL;
    PyObject *callbacks = NULL, *future = NULL;
    if (read_call(args, flags, names, 0, &call) &&
        (find(shortcut, call.self, S_UNHEARD, &callbacks) < 0 ||
         (callbacks && PyDict_Check(callbacks) &&
          find_appender(shortcut, call.self, &appender) < 0))) {
        Py_XDECREF(callbacks);
        return NULL;
    }
    if (appender) {
        future = append_unheard_one(appender, call.message, callbacks, call.timeout);
        Py_DECREF(appender);
    }
    Py_XDECREF(callbacks);
    if (!appender)
        return PyObject_Vectorcall(shortcut->function, args, flags, names);
    if (!future)
        return NULL;
    int is_appended = future != Py_None;
    Py_DECREF(future);
    if (is_appended)
        Py_RETURN_NONE;
    PyObject *arguments[] = {call.self, call.message, call.timeout};
    return PyObject_VectorcallMethod(shortcut->rest, arguments, 3, NULL);
}

/* The type ------------------------------------------------------------------------------------- */

static PyObject *shortcut_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *function, *rest;
    int not_plain, is_oneway;
    if (kwargs && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "SendShortcut takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!Uip:SendShortcut", &PyFunction_Type, &function, &rest, &not_plain,
                          &is_oneway))
        return NULL;
    shortcut_t *self = (shortcut_t *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    for (int i = 0; i < S_COUNT; i++)
        if (!(self->names[i] = PyUnicode_InternFromString(sends_names[i]))) {
            Py_DECREF(self);
            return NULL;
        }
    self->function = Py_NewRef(function);
    self->rest = Py_NewRef(rest);
    PyUnicode_InternInPlace(&self->rest);
    self->not_plain = not_plain;
    self->call = is_oneway ? call_send_oneway : call_send_async;
    return (PyObject *)self;
}

/* It needs no tp_clear: a cycle goes through its function, which has one. */
static int shortcut_traverse(shortcut_t *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->function);
    return 0;
}

static void shortcut_dealloc(shortcut_t *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weak)
        PyObject_ClearWeakRefs((PyObject *)self);
    Py_XDECREF(self->function);
    Py_XDECREF(self->rest);
    for (int i = 0; i < S_COUNT; i++)
        Py_XDECREF(self->names[i]);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *shortcut_of(PyObject *self, PyObject *object, PyObject *type)
{
    (void)type;
    return !object || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

/* It has the attributes of its function, the class of that included; it is copied by name. */
static PyObject *shortcut_get(PyObject *self, PyObject *name)
{
    PyObject *function = ((shortcut_t *)self)->function;
    if (!PyUnicode_CompareWithASCIIString(name, "__reduce_ex__"))
        return PyObject_GenericGetAttr(self, name);
    return PyObject_GetAttr(function, name);
}

static int shortcut_set(PyObject *self, PyObject *name, PyObject *value)
{
    return PyObject_SetAttr(((shortcut_t *)self)->function, name, value);
}

static PyObject *shortcut_repr(shortcut_t *self) { return PyObject_Repr(self->function); }

static PyObject *shortcut_reduce(shortcut_t *self, PyObject *protocol)
{
    (void)protocol;
    return PyObject_GetAttrString(self->function, "__qualname__");
}

static PyMethodDef shortcut_methods[] = {
    {"__reduce_ex__", (PyCFunction)shortcut_reduce, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef shortcut_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(shortcut_t, call), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(shortcut_t, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot shortcut_type_slots[] = {
    {Py_tp_doc, "See vq.client.producer.intake.shortcut."},
    {Py_tp_new, shortcut_new},
    {Py_tp_traverse, shortcut_traverse},
    {Py_tp_dealloc, shortcut_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, shortcut_of},
    {Py_tp_getattro, shortcut_get},
    {Py_tp_setattro, shortcut_set},
    {Py_tp_repr, shortcut_repr},
    {Py_tp_methods, shortcut_methods},
    {Py_tp_members, shortcut_members},
    {0, NULL},
};

static PyType_Spec shortcut_spec = {
    .name = "vq.client.producer._accumulator.SendShortcut",
    .basicsize = sizeof(shortcut_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = shortcut_type_slots,
};

#endif
