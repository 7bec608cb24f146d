/* What a consumer does for many messages together, compiled; vq/client/consumer/deliver/bulk.py has the
 * same functions in Python: they are the reference, and what runs where this could not be built.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyDoc_STRVAR(content_bytes_doc,
             "content_bytes(messages, field, /)\n--\n\nSee vq.client.consumer.deliver.bulk.");

static PyObject *content_bytes(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    Py_ssize_t field = count == 2 ? PyLong_AsSsize_t(args[1]) : -1, total = 0;
    if (PyErr_Occurred())
        return NULL;
    if (field < 0 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "content_bytes takes a list and the place of a field");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[0]); i++) {
        PyObject *each = PyList_GET_ITEM(args[0], i);
        if (!PyTuple_Check(each) || field >= PyTuple_GET_SIZE(each) ||
            !PyBytes_CheckExact(PyTuple_GET_ITEM(each, field))) {
            PyErr_SetString(PyExc_TypeError, "a message is a tuple, its content bytes");
            return NULL;
        }
        total += PyBytes_GET_SIZE(PyTuple_GET_ITEM(each, field));
    }
    return PyLong_FromSsize_t(total);
}

PyDoc_STRVAR(stand_at_doc,
             "stand_at(messages, others, start, /)\n--\n\nSee vq.client.consumer.deliver.bulk.");

static PyObject *stand_at(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    Py_ssize_t start = count == 3 ? PyLong_AsSsize_t(args[2]) : -1;
    if (PyErr_Occurred())
        return NULL;
    if (start < 0 || !PyList_CheckExact(args[0]) || !PyList_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "stand_at takes two lists and a place in the second one");
        return NULL;
    }
    Py_ssize_t size = PyList_GET_SIZE(args[0]);
    if (size && (start > PyList_GET_SIZE(args[1]) || size > PyList_GET_SIZE(args[1]) - start))
        Py_RETURN_FALSE;
    for (Py_ssize_t i = 0; i < size; i++)
        if (PyList_GET_ITEM(args[0], i) != PyList_GET_ITEM(args[1], start + i))
            Py_RETURN_FALSE;
    Py_RETURN_TRUE;
}

static PyMethodDef functions[] = {
    {"content_bytes", (PyCFunction)(void (*)(void))content_bytes, METH_FASTCALL, content_bytes_doc},
    {"stand_at", (PyCFunction)(void (*)(void))stand_at, METH_FASTCALL, stand_at_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vq.client.consumer.deliver._bulk",
    .m_doc = "Many messages together, compiled; see vq.client.consumer.deliver.bulk.",
    .m_size = 0,
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__bulk(void) { return PyModuleDef_Init(&definition); }
