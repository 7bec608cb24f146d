/* Rooms for what is received: see vq/remoting/room.py. A room is a bytes object whose bytes are not
 * there yet, and a view that may write to it. So what the kernel writes there is received as bytes
 * without a copy, and the memory is not cleared before.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

typedef struct {
    PyObject_HEAD
    PyObject *bytes;
} room_t;

static PyTypeObject *room_type; /* one in a process, held for ever */

static int room_buffer(room_t *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, (PyObject *)self, PyBytes_AS_STRING(self->bytes),
                             PyBytes_GET_SIZE(self->bytes), 0, flags);
}

static void room_dealloc(room_t *self)
{
    Py_DECREF(self->bytes);
    PyObject_Free(self);
    Py_DECREF(room_type);
}

static PyObject *new_room(PyObject *module, PyObject *argument)
{
    Py_ssize_t size = PyLong_AsSsize_t(argument);
    if (size < 0) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "a room of %zd bytes, not of 0 or more", size);
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    if (!bytes)
        return NULL;
    room_t *room = PyObject_New(room_t, room_type);
    if (!room) {
        Py_DECREF(bytes);
        return NULL;
    }
    room->bytes = bytes;
    PyObject *view = PyMemoryView_FromObject((PyObject *)room);
    Py_DECREF(room);
    return view;
}

static PyObject *contents(PyObject *module, PyObject *view)
{
    PyObject *room = PyMemoryView_Check(view) ? PyMemoryView_GET_BASE(view) : NULL;
    if (!room || !Py_IS_TYPE(room, room_type)) {
        PyErr_Format(PyExc_TypeError, "%R is no room", view);
        return NULL;
    }
    return Py_NewRef(((room_t *)room)->bytes);
}

static PyMethodDef methods[] = {
    {"new_room", new_room, METH_O, "new_room(size, /)\n--\n\nSee the twin in Python."},
    {"contents", contents, METH_O, "contents(room, /)\n--\n\nSee the twin in Python."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "What a room's view refers to."},
    {Py_tp_dealloc, room_dealloc},
    {Py_bf_getbuffer, room_buffer},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "vq.remoting._room.Room",
    .basicsize = sizeof(room_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

static int make_type(PyObject *module)
{
    if (!room_type)
        room_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return room_type ? 0 : -1;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, make_type},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vq.remoting._room",
    .m_doc = "Rooms for what is received, compiled; see vq.remoting.room.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__room(void) { return PyModuleDef_Init(&definition); }
