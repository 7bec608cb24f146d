/* The appender, compiled. vq/client/producer/intake/appender.py has the same in Python and explains it. All of this runs under the interpreter lock. Between the look-up of a topic (and of
 * the space left) and the append, no Python code can run: so a thread that removes a topic and then
 * drains it misses no message, and no byte of the space is counted twice.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* Fields of vq.model.Message, by position. */
enum { TOPIC, CONTENT, TAG, KEY, HEADERS, PARTITION, OFFSET, DELIVER_AT = 10, DELAY_S, FIELDS_READ };

/* vq.limits.TIMEOUT_S_MAX. */
#define TIMEOUT_S_MAX 1e6

/* Slots of vq.client.future.SendFuture that this file fills. */
enum {
    F_CONTENT,
    F_HEAD,
    F_CALLBACK,
    F_APPENDED_AT,
    F_DEADLINE,
    F_OUTCOME,
    F_WAITERS,
    F_SIZE,
    F_PARTITION,
    F_COUNT
};
static const char *const future_slots[F_COUNT] = {"content", "head",    "callback",
                                                  "appended_at", "deadline", "outcome",
                                                  "waiters", "size",    "partition"};

/* Slots of vq.client.producer.queue.topic_queues.TopicQueues that this file reads. */
enum { Q_APPENDED, Q_PLAIN_BYTES_MAX, Q_COUNT };
static const char *const queues_slots[Q_COUNT] = {"appended", "plain_bytes_max"};

typedef struct {
    PyObject_HEAD
    PyTypeObject *message;
    PyTypeObject *future;
    PyObject *clock;
    PyObject *wake;
    PyTypeObject *queues;
    PyObject *topics;        /* dict: topic -> queues */
    PyObject *tag_heads;     /* dict: tag -> head */
    PyObject *any_partition; /* vq.client.future.ANY_PARTITION */
    Py_ssize_t future_at[F_COUNT];
    Py_ssize_t queues_at[Q_COUNT];
    double timeout;
    Py_ssize_t space;
    Py_ssize_t places;   /* how many more messages are taken */
    Py_ssize_t overhead; /* bytes counted for a message in addition to its own */
    char awake;
    char closed;
} appender_t;

/* Construction --------------------------------------------------------------------------------- */

/* The offset of a slot in a type that has it or inherits it; -1 with an exception. */
static Py_ssize_t slot_offset(PyTypeObject *type, const char *name)
{
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    if (!found)
        return -1;
    Py_ssize_t offset = -1;
    if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
        const PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type == T_OBJECT_EX && PyType_IsSubtype(type, PyDescr_TYPE(found)))
            offset = member->offset;
    }
    Py_DECREF(found);
    if (offset < 0)
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, name);
    return offset;
}

static int slot_offsets(PyTypeObject *type, const char *const *names, int count, Py_ssize_t *at)
{
    for (int i = 0; i < count; i++) {
        at[i] = slot_offset(type, names[i]);
        if (at[i] < 0)
            return -1;
    }
    return 0;
}

static PyObject *appender_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *message, *future, *queues, *clock, *wake, *tag_heads;
    double timeout;
    Py_ssize_t space, places, overhead, future_at[F_COUNT], queues_at[Q_COUNT];
    if (kwargs && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Appender takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!O!OdOO!nnn:Appender", &PyType_Type, &message, &PyType_Type,
                          &future, &PyType_Type, &queues, &clock, &timeout, &wake, &PyDict_Type,
                          &tag_heads, &space, &places, &overhead))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)message, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "a message must be a tuple");
        return NULL;
    }
    if (slot_offsets((PyTypeObject *)future, future_slots, F_COUNT, future_at) < 0 ||
        slot_offsets((PyTypeObject *)queues, queues_slots, Q_COUNT, queues_at) < 0)
        return NULL;
    appender_t *self = (appender_t *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->topics = PyDict_New();
    self->any_partition = PyLong_FromLong(-1);
    if (!self->topics || !self->any_partition) {
        Py_DECREF(self);
        return NULL;
    }
    self->message = (PyTypeObject *)Py_NewRef(message);
    self->future = (PyTypeObject *)Py_NewRef(future);
    self->queues = (PyTypeObject *)Py_NewRef(queues);
    self->clock = Py_NewRef(clock);
    self->wake = Py_NewRef(wake);
    self->tag_heads = Py_NewRef(tag_heads);
    memcpy(self->future_at, future_at, sizeof future_at);
    memcpy(self->queues_at, queues_at, sizeof queues_at);
    self->timeout = timeout;
    self->space = space;
    self->places = places;
    self->overhead = overhead;
    return (PyObject *)self;
}

#define HELD_BY(self, each)                                                                        \
    each((self)->message) each((self)->future) each((self)->queues) each((self)->clock)            \
        each((self)->wake) each((self)->topics) each((self)->tag_heads) each((self)->any_partition)

static int appender_traverse(appender_t *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
#define VISIT(field) Py_VISIT(field);
    HELD_BY(self, VISIT)
    return 0;
}

static int appender_clear(appender_t *self)
{
#define CLEAR(field) Py_CLEAR(field);
    HELD_BY(self, CLEAR)
    return 0;
}

static void appender_dealloc(appender_t *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    appender_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Appending ------------------------------------------------------------------------------------ */

/* Bytes of a message with this content and head; -1 with an exception. */
static Py_ssize_t size_of(PyObject *content, PyObject *head)
{
    Py_ssize_t size = PyBytes_GET_SIZE(content);
    if (head != Py_None) {
        if (!PyTuple_CheckExact(head) || PyTuple_GET_SIZE(head) != 2 ||
            !PyBytes_CheckExact(PyTuple_GET_ITEM(head, 1))) {
            PyErr_SetString(PyExc_TypeError, "a head is flag bits and bytes");
            return -1;
        }
        size += PyBytes_GET_SIZE(PyTuple_GET_ITEM(head, 1));
    }
    return size;
}

static void fill(appender_t *self, PyObject *future, int slot, PyObject *value)
{
    *(PyObject **)((char *)future + self->future_at[slot]) = Py_NewRef(value);
}

/* Read a send's time-out in seconds. Return 0 for one that is not plain. */
static int read_timeout(appender_t *self, PyObject *timeout, double *seconds)
{
    if (timeout == Py_None) {
        *seconds = self->timeout;
        return 1;
    }
    if (PyFloat_CheckExact(timeout))
        *seconds = PyFloat_AS_DOUBLE(timeout);
    else if (PyLong_CheckExact(timeout)) {
        *seconds = PyLong_AsDouble(timeout);
        if (*seconds == -1.0)
            PyErr_Clear(); /* too large for a double; or -1, which is not plain either */
    } else
        return 0;
    return *seconds >= 0.0 && *seconds <= TIMEOUT_S_MAX; /* NaN is neither */
}

/* Return a new float: so many seconds after ``now``. */
static PyObject *deadline_of(PyObject *now, double seconds)
{
    double at = PyFloat_AsDouble(now);
    if (at == -1.0 && PyErr_Occurred())
        return NULL;
    return PyFloat_FromDouble(at + seconds);
}

/* Whether a message that was not received names a partition. Both defaults are -1, and CPython has
 * one object for it. */
static int names_partition(appender_t *self, PyObject *message)
{
    return PyTuple_GET_ITEM(message, PARTITION) != self->any_partition &&
           PyTuple_GET_ITEM(message, OFFSET) == self->any_partition;
}

static PyObject *slot_of(appender_t *self, PyObject *queues, int slot)
{
    return *(PyObject **)((char *)queues + self->queues_at[slot]);
}

/* Return a borrowed list to which a content of this size may be appended now; NULL: there is none. */
static PyObject *open_list(appender_t *self, PyObject *topic, Py_ssize_t size)
{
    PyObject *queues = PyDict_GetItemWithError(self->topics, topic);
    if (!queues || self->closed || self->space <= 0 || self->places <= 0 ||
        !Py_IS_TYPE(queues, self->queues))
        return NULL;
    PyObject *items = slot_of(self, queues, Q_APPENDED);
    PyObject *most = slot_of(self, queues, Q_PLAIN_BYTES_MAX);
    if (!items || !PyList_CheckExact(items) || !most || !PyLong_CheckExact(most))
        return NULL;
    return size > PyLong_AsSsize_t(most) ? NULL : items;
}

/* Wake the sender; -1 with an exception. If a signal handler raises, wake the sender nevertheless. */
static int wake_sender(appender_t *self)
{
    PyObject *woken = PyObject_CallNoArgs(self->wake);
    if (woken) {
        Py_DECREF(woken);
        return 0;
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    woken = PyObject_CallNoArgs(self->wake);
    Py_XDECREF(woken);
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
    return -1;
}

PyDoc_STRVAR(append_doc, "append(message, callback, timeout, /)\n--\n\n"
                         "See vq.client.producer.intake.appender.Appender.append.");

static PyObject *appender_append(appender_t *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "append has 3 arguments, %zd were given", count);
        return NULL;
    }
    PyObject *message = args[0], *callback = args[1], *timeout = args[2];
    if (!Py_IS_TYPE(message, self->message) || PyTuple_GET_SIZE(message) < FIELDS_READ)
        Py_RETURN_NONE;
    PyObject *topic = PyTuple_GET_ITEM(message, TOPIC);
    PyObject *content = PyTuple_GET_ITEM(message, CONTENT);
    PyObject *tag = PyTuple_GET_ITEM(message, TAG);
    PyObject *head = Py_None;
    double seconds;
    if (!PyUnicode_CheckExact(topic) || !PyBytes_CheckExact(content) ||
        PyTuple_GET_ITEM(message, KEY) != Py_None || PyTuple_GET_ITEM(message, HEADERS) != Py_None ||
        PyTuple_GET_ITEM(message, DELIVER_AT) != Py_None ||
        PyTuple_GET_ITEM(message, DELAY_S) != Py_None ||
        names_partition(self, message) || !read_timeout(self, timeout, &seconds))
        Py_RETURN_NONE;
    if (tag != Py_None) {
        head = PyUnicode_CheckExact(tag) ? PyDict_GetItemWithError(self->tag_heads, tag) : NULL;
        if (!head) {
            if (PyErr_Occurred())
                return NULL;
            Py_RETURN_NONE;
        }
    }
    PyObject *future = NULL, *now = NULL, *deadline = NULL, *size = NULL;
    Py_INCREF(head); /* the calls below may run Python code */
    Py_ssize_t bytes = size_of(content, head);
    if (bytes >= 0)
        size = PyLong_FromSsize_t(bytes);
    if (size)
        now = PyObject_CallNoArgs(self->clock);
    if (now)
        deadline = deadline_of(now, seconds);
    if (deadline)
        future = PyType_GenericAlloc(self->future, 0);
    if (future) {
        fill(self, future, F_CONTENT, content);
        fill(self, future, F_HEAD, head);
        fill(self, future, F_CALLBACK, callback);
        fill(self, future, F_APPENDED_AT, now);
        fill(self, future, F_DEADLINE, deadline);
        fill(self, future, F_OUTCOME, Py_None);
        fill(self, future, F_WAITERS, Py_None);
        fill(self, future, F_SIZE, size);
        fill(self, future, F_PARTITION, self->any_partition);
    }
    Py_DECREF(head);
    Py_XDECREF(size);
    Py_XDECREF(now);
    Py_XDECREF(deadline);
    if (!future)
        return NULL;
    PyObject *items = open_list(self, topic, PyBytes_GET_SIZE(content));
    if (!items || PyList_Append(items, future) < 0) {
        Py_DECREF(future);
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    self->space -= bytes + self->overhead;
    self->places--;
    if (!self->awake && wake_sender(self) < 0) {
        Py_DECREF(future);
        return NULL;
    }
    return future;
}

PyDoc_STRVAR(use_doc, "use(size, count, /)\n--\n\n"
                      "See vq.client.producer.intake.appender.Appender.use.");

static PyObject *appender_use(appender_t *self, PyObject *args)
{
    Py_ssize_t bytes, messages;
    if (!PyArg_ParseTuple(args, "nn:use", &bytes, &messages))
        return NULL;
    self->space -= bytes + messages * self->overhead;
    self->places -= messages;
    Py_RETURN_NONE;
}

/* The module ----------------------------------------------------------------------------------- */

static PyMethodDef appender_methods[] = {
    {"append", (PyCFunction)(void (*)(void))appender_append, METH_FASTCALL, append_doc},
    {"use", (PyCFunction)appender_use, METH_VARARGS, use_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef appender_members[] = {
    {"topics", T_OBJECT, offsetof(appender_t, topics), READONLY, NULL},
    {"space", T_PYSSIZET, offsetof(appender_t, space), READONLY, NULL},
    {"places", T_PYSSIZET, offsetof(appender_t, places), READONLY, NULL},
    {"awake", T_BOOL, offsetof(appender_t, awake), 0, NULL},
    {"closed", T_BOOL, offsetof(appender_t, closed), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot appender_slots[] = {
    {Py_tp_doc, "See vq.client.producer.intake.appender."},
    {Py_tp_new, appender_new},
    {Py_tp_traverse, appender_traverse},
    {Py_tp_clear, appender_clear},
    {Py_tp_dealloc, appender_dealloc},
    {Py_tp_methods, appender_methods},
    {Py_tp_members, appender_members},
    {0, NULL},
};

static PyType_Spec appender_spec = {
    .name = "vq.client.producer._accumulator.Appender",
    .basicsize = sizeof(appender_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = appender_slots,
};

static int add_types(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &appender_spec, NULL);
    if (!type)
        return -1;
    int added = PyModule_AddObjectRef(module, "Appender", type);
    Py_DECREF(type);
    return added;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, add_types}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vq.client.producer._accumulator",
    .m_doc = "The accumulator's append, compiled; see vq.client.producer.intake.appender.",
    .m_size = 0,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__accumulator(void) { return PyModuleDef_Init(&definition); }
