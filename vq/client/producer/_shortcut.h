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

/* Slots of vq.client.producer.intake.shortcut.PlainSends. */
enum { S_APPEND, S_CHECKED, S_UNHEARD, S_COUNT };
static const char *const sends_slots[S_COUNT] = {"_append", "_checked", "_unheard"};

typedef struct {
    PyObject_HEAD
    PyObject *function;  /* what it stands for */
    PyTypeObject *owner; /* PlainSends: the base of who has it */
    PyObject *rest;      /* the name of the method for messages that are not plain */
    Py_ssize_t at[S_COUNT];
    int not_plain; /* flags of functions that cannot be callbacks */
    vectorcallfunc call;
    PyObject *weak; /* references to it: a weakref.WeakMethod of a producer's method has one */
} shortcut_t;

/* The arguments of a call, borrowed. */
typedef struct {
    PyObject *self, *message, *callback, *timeout;
} call_t;

/* Read the arguments of a usual call; 0: the function reads them, and raises if they are wrong. */
static int read_call(shortcut_t *shortcut, PyObject *const *args, size_t flags, PyObject *names,
                     int takes_callback, call_t *read)
{
    Py_ssize_t count = PyVectorcall_NARGS(flags), most = takes_callback ? 4 : 3;
    if (count < 2 || count > most || !PyObject_TypeCheck(args[0], shortcut->owner))
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

static PyObject *sends_slot(shortcut_t *shortcut, PyObject *self, int slot)
{
    return *(PyObject **)((char *)self + shortcut->at[slot]);
}

/* Return the appender that a producer's plain messages go to now, a new reference; NULL: there is none,
 * as with interceptors, or while a transaction is open. */
static appender_t *appender_of(shortcut_t *shortcut, PyObject *self)
{
    PyObject *append = sends_slot(shortcut, self, S_APPEND);
    if (!append || !PyCFunction_CheckExact(append) ||
        PyCFunction_GET_FUNCTION(append) != (PyCFunction)(void (*)(void))appender_append)
        return NULL;
    return (appender_t *)Py_NewRef(PyCFunction_GET_SELF(append));
}

/* Whether a callback needs no further look: the one of the last send, or a plain function. */
static int is_checked(shortcut_t *shortcut, PyObject *self, PyObject *callback)
{
    if (callback == Py_None || callback == sends_slot(shortcut, self, S_CHECKED))
        return 1;
    return PyFunction_Check(callback) &&
           !(((PyCodeObject *)PyFunction_GET_CODE(callback))->co_flags & shortcut->not_plain);
}

static PyObject *call_send_async(PyObject *called, PyObject *const *args, size_t flags,
                                 PyObject *names)
{
    shortcut_t *shortcut = (shortcut_t *)called;
    call_t call;
    appender_t *appender = NULL;
    if (!read_call(shortcut, args, flags, names, 1, &call) ||
        !is_checked(shortcut, call.self, call.callback) ||
        !(appender = appender_of(shortcut, call.self)))
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
    PyObject *callbacks;
    if (!read_call(shortcut, args, flags, names, 0, &call) ||
        !(callbacks = sends_slot(shortcut, call.self, S_UNHEARD)) || !PyDict_Check(callbacks) ||
        !(appender = appender_of(shortcut, call.self)))
        return PyObject_Vectorcall(shortcut->function, args, flags, names);
    PyObject *future = append_unheard_one(appender, call.message, callbacks, call.timeout);
    Py_DECREF(appender);
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
    PyObject *function, *owner, *rest;
    int not_plain, is_oneway;
    Py_ssize_t at[S_COUNT];
    if (kwargs && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Shortcut takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!Uip:Shortcut", &PyFunction_Type, &function, &PyType_Type, &owner,
                          &rest, &not_plain, &is_oneway) ||
        slot_offsets((PyTypeObject *)owner, sends_slots, S_COUNT, at) < 0)
        return NULL;
    shortcut_t *self = (shortcut_t *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->function = Py_NewRef(function);
    self->owner = (PyTypeObject *)Py_NewRef(owner);
    self->rest = Py_NewRef(rest);
    PyUnicode_InternInPlace(&self->rest);
    memcpy(self->at, at, sizeof at);
    self->not_plain = not_plain;
    self->call = is_oneway ? call_send_oneway : call_send_async;
    return (PyObject *)self;
}

static int shortcut_traverse(shortcut_t *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->function);
    Py_VISIT(self->owner);
    return 0;
}

static int shortcut_clear(shortcut_t *self)
{
    Py_CLEAR(self->function);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->rest);
    return 0;
}

static void shortcut_dealloc(shortcut_t *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weak)
        PyObject_ClearWeakRefs((PyObject *)self);
    shortcut_clear(self);
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
    if (!function || !PyUnicode_CompareWithASCIIString(name, "__reduce_ex__"))
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
    {Py_tp_clear, shortcut_clear},
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
    .name = "vq.client.producer._accumulator.Shortcut",
    .basicsize = sizeof(shortcut_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = shortcut_type_slots,
};

#endif
