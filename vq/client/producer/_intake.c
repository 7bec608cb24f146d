/* The producer's intake, compiled: vq/client/producer/intake.py has the same in Python and says what it is
 * for. Nothing here runs without the interpreter lock, and from the look-up of a topic's line to the
 * append nothing can run Python code: taking a line away and emptying it afterwards misses nothing.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* Fields of vq.model.Message, by position. */
enum { TOPIC, CONTENT, TAG, KEY, HEADERS, FIELDS_READ, FIELDS_MAX = 16 };

/* vq.limits.TIMEOUT_S_MAX. */
#define TIMEOUT_S_MAX 1e6

/* Slots of vq.client.future.SendFuture that are filled here. */
enum { F_CONTENT, F_HEAD, F_CALLBACK, F_DEADLINE, F_OUTCOME, F_WAITERS, F_SIZE, F_COUNT };
static const char *const slot_names[F_COUNT] = {"content", "head",    "callback", "deadline",
                                                "outcome", "waiters", "size"};

typedef struct {
    PyObject_HEAD
    PyTypeObject *message;
    PyTypeObject *future;
    PyObject *clock;
    PyObject *wake;
    PyObject *lines;     /* dict: topic -> (list, largest content) */
    PyObject *tag_heads; /* dict: tag -> head */
    Py_ssize_t slots[F_COUNT];
    double timeout;
    Py_ssize_t bytes_max;
    Py_ssize_t most;
    char awake;
} intake_t;

/* Making one ----------------------------------------------------------------------------------- */

/* Where a type with __slots__, its own or inherited, keeps one of them; -1 with an exception. */
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

static PyObject *intake_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *message, *future, *clock, *wake, *tag_heads;
    double timeout;
    Py_ssize_t bytes_max;
    if (kwargs && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Intake takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!OdOO!n:Intake", &PyType_Type, &message, &PyType_Type, &future,
                          &clock, &timeout, &wake, &PyDict_Type, &tag_heads, &bytes_max))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)message, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "a message must be a tuple");
        return NULL;
    }
    Py_ssize_t slots[F_COUNT];
    for (int i = 0; i < F_COUNT; i++) {
        slots[i] = slot_offset((PyTypeObject *)future, slot_names[i]);
        if (slots[i] < 0)
            return NULL;
    }
    intake_t *self = (intake_t *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->lines = PyDict_New();
    if (!self->lines) {
        Py_DECREF(self);
        return NULL;
    }
    self->message = (PyTypeObject *)Py_NewRef(message);
    self->future = (PyTypeObject *)Py_NewRef(future);
    self->clock = Py_NewRef(clock);
    self->wake = Py_NewRef(wake);
    self->tag_heads = Py_NewRef(tag_heads);
    memcpy(self->slots, slots, sizeof slots);
    self->timeout = timeout;
    self->bytes_max = bytes_max;
    return (PyObject *)self;
}

static int intake_traverse(intake_t *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->message);
    Py_VISIT(self->future);
    Py_VISIT(self->clock);
    Py_VISIT(self->wake);
    Py_VISIT(self->lines);
    Py_VISIT(self->tag_heads);
    return 0;
}

static int intake_clear(intake_t *self)
{
    Py_CLEAR(self->message);
    Py_CLEAR(self->future);
    Py_CLEAR(self->clock);
    Py_CLEAR(self->wake);
    Py_CLEAR(self->lines);
    Py_CLEAR(self->tag_heads);
    return 0;
}

static void intake_dealloc(intake_t *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    intake_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Taking messages ------------------------------------------------------------------------------ */

/* Bytes of a message with this content and head; NULL with an exception. */
static PyObject *size_of(PyObject *content, PyObject *head)
{
    Py_ssize_t size = PyBytes_GET_SIZE(content);
    if (head != Py_None) {
        if (!PyTuple_CheckExact(head) || PyTuple_GET_SIZE(head) != 2 ||
            !PyBytes_CheckExact(PyTuple_GET_ITEM(head, 1))) {
            PyErr_SetString(PyExc_TypeError, "a head is flag bits and bytes");
            return NULL;
        }
        size += PyBytes_GET_SIZE(PyTuple_GET_ITEM(head, 1));
    }
    return PyLong_FromSsize_t(size);
}

static void fill(intake_t *self, PyObject *future, int slot, PyObject *value)
{
    *(PyObject **)((char *)future + self->slots[slot]) = Py_NewRef(value);
}

/* Read a send's time-out in seconds. Return 0 for one that is not plain. */
static int read_timeout(intake_t *self, PyObject *timeout, double *seconds)
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

/* Return a new float: when there must be an outcome. */
static PyObject *deadline_of(intake_t *self, double seconds)
{
    PyObject *now = PyObject_CallNoArgs(self->clock);
    if (!now)
        return NULL;
    double at = PyFloat_AsDouble(now);
    Py_DECREF(now);
    if (at == -1.0 && PyErr_Occurred())
        return NULL;
    return PyFloat_FromDouble(at + seconds);
}

/* Return the list that takes a content of this size for a topic, borrowed; NULL: none does. */
static PyObject *open_line(intake_t *self, PyObject *topic, Py_ssize_t size)
{
    PyObject *line = PyDict_GetItemWithError(self->lines, topic);
    if (!line || !PyTuple_CheckExact(line) || PyTuple_GET_SIZE(line) != 2)
        return NULL;
    PyObject *items = PyTuple_GET_ITEM(line, 0);
    Py_ssize_t most = PyLong_AsSsize_t(PyTuple_GET_ITEM(line, 1));
    if (size > most || !PyList_CheckExact(items) || PyList_GET_SIZE(items) >= self->most)
        return NULL;
    return items;
}

PyDoc_STRVAR(take_doc, "take(message, callback, timeout, /)\n--\n\n"
                       "See vq.client.producer.intake.PythonIntake.take.");

static PyObject *intake_take(intake_t *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "take has 3 arguments, %zd were given", count);
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
        PyBytes_GET_SIZE(content) > self->bytes_max ||
        PyTuple_GET_ITEM(message, KEY) != Py_None || PyTuple_GET_ITEM(message, HEADERS) != Py_None ||
        !read_timeout(self, timeout, &seconds))
        Py_RETURN_NONE;
    if (tag != Py_None) {
        head = PyUnicode_CheckExact(tag) ? PyDict_GetItemWithError(self->tag_heads, tag) : NULL;
        if (!head) {
            if (PyErr_Occurred())
                return NULL;
            Py_RETURN_NONE;
        }
    }
    PyObject *future = NULL, *deadline = NULL;
    Py_INCREF(head); /* what follows may run Python code */
    PyObject *size = size_of(content, head);
    if (size)
        deadline = deadline_of(self, seconds);
    if (deadline)
        future = PyType_GenericAlloc(self->future, 0);
    if (future) {
        fill(self, future, F_CONTENT, content);
        fill(self, future, F_HEAD, head);
        fill(self, future, F_CALLBACK, callback);
        fill(self, future, F_DEADLINE, deadline);
        fill(self, future, F_OUTCOME, Py_None);
        fill(self, future, F_WAITERS, Py_None);
        fill(self, future, F_SIZE, size);
    }
    Py_DECREF(head);
    Py_XDECREF(size);
    Py_XDECREF(deadline);
    if (!future)
        return NULL;
    PyObject *items = open_line(self, topic, PyBytes_GET_SIZE(content));
    if (!items || PyList_Append(items, future) < 0) {
        Py_DECREF(future);
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    if (!self->awake) {
        PyObject *woken = PyObject_CallNoArgs(self->wake);
        if (!woken) {
            Py_DECREF(future);
            return NULL;
        }
        Py_DECREF(woken);
    }
    return future;
}

/* Making messages ------------------------------------------------------------------------------ */

/* What calls of the quickened type need; one type in a process, held for ever. */
static struct {
    PyTypeObject *type; /* NULL: none yet */
    Py_ssize_t fields;
    PyObject *names[FIELDS_MAX];
    PyObject *defaults[FIELDS_MAX]; /* NULL: the field must be given */
} quick;

/* Whether a value can lead nowhere, so that no cycle goes through it. */
static int is_atomic(PyObject *value)
{
    return value == Py_None || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value) ||
           PyLong_CheckExact(value);
}

/* Sort the arguments of a call into ``values`` (borrowed). Return 0 for what is no plain call:
 * the type itself handles that, or says what is wrong. */
static int sort_arguments(PyObject *const *args, Py_ssize_t count, PyObject *names,
                          PyObject **values)
{
    if (count > quick.fields)
        return 0;
    for (Py_ssize_t i = 0; i < quick.fields; i++)
        values[i] = i < count ? args[i] : NULL;
    for (Py_ssize_t n = 0; names && n < PyTuple_GET_SIZE(names); n++) {
        Py_ssize_t i = count;
        while (i < quick.fields && quick.names[i] != PyTuple_GET_ITEM(names, n))
            i++;
        if (i == quick.fields || values[i])
            return 0;
        values[i] = args[count + n];
    }
    for (Py_ssize_t i = 0; i < quick.fields; i++) {
        if (!values[i])
            values[i] = quick.defaults[i];
        if (!values[i])
            return 0;
    }
    return 1;
}

/* What calling any type does. */
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

static PyObject *make_message(PyObject *type, PyObject *const *args, size_t flags, PyObject *names)
{
    PyObject *values[FIELDS_MAX];
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if ((PyTypeObject *)type != quick.type || !sort_arguments(args, count, names, values))
        return call_type(type, args, count, names);
    PyObject *made = quick.type->tp_alloc(quick.type, quick.fields);
    if (!made)
        return NULL;
    int atomic = 1;
    for (Py_ssize_t i = 0; i < quick.fields; i++) {
        atomic &= is_atomic(values[i]);
        PyTuple_SET_ITEM(made, i, Py_NewRef(values[i]));
    }
    if (atomic) /* the collector need not look at it, as with plain tuples of such values */
        PyObject_GC_UnTrack(made);
    return made;
}

/* Read names and defaults of a named tuple into ``quick``; -1 with an exception. */
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
        quick.names[i] = name;
        quick.defaults[i] = Py_XNewRef(PyDict_GetItemWithError(defaults, name));
    }
    quick.fields = PyTuple_GET_SIZE(names);
    learned = PyErr_Occurred() ? -1 : 0;
done:
    Py_XDECREF(names);
    Py_XDECREF(defaults);
    return learned;
}

PyDoc_STRVAR(quicken_doc,
             "quicken(type, /)\n--\n\n"
             "Have calls of a named tuple's type make the tuple here: the same results and errors.");

static PyObject *quicken(PyObject *module, PyObject *type)
{
    (void)module;
    if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "a named tuple's type is needed");
        return NULL;
    }
    if (!quick.type) { /* a second interpreter's type stays as it is */
        if (learn_fields(type) < 0)
            return NULL;
        quick.type = (PyTypeObject *)Py_NewRef(type);
        quick.type->tp_vectorcall = make_message;
    }
    Py_RETURN_NONE;
}

/* The module ----------------------------------------------------------------------------------- */

static PyMethodDef intake_methods[] = {
    {"take", (PyCFunction)(void (*)(void))intake_take, METH_FASTCALL, take_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef intake_members[] = {
    {"lines", T_OBJECT, offsetof(intake_t, lines), READONLY, NULL},
    {"most", T_PYSSIZET, offsetof(intake_t, most), 0, NULL},
    {"awake", T_BOOL, offsetof(intake_t, awake), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot intake_slots[] = {
    {Py_tp_doc, "See vq.client.producer.intake."},
    {Py_tp_new, intake_new},
    {Py_tp_traverse, intake_traverse},
    {Py_tp_clear, intake_clear},
    {Py_tp_dealloc, intake_dealloc},
    {Py_tp_methods, intake_methods},
    {Py_tp_members, intake_members},
    {0, NULL},
};

static PyType_Spec intake_spec = {
    .name = "vq.client.producer._intake.Intake",
    .basicsize = sizeof(intake_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = intake_slots,
};

static int add_types(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &intake_spec, NULL);
    if (!type)
        return -1;
    int added = PyModule_AddObjectRef(module, "Intake", type);
    Py_DECREF(type);
    return added;
}

static PyMethodDef functions[] = {
    {"quicken", quicken, METH_O, quicken_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, add_types}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vq.client.producer._intake",
    .m_doc = "The producer's intake, compiled; see vq.client.producer.intake.",
    .m_size = 0,
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__intake(void) { return PyModuleDef_Init(&definition); }
