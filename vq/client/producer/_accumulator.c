/* The appender, compiled. vq/client/producer/intake/appender.py has the same in Python and explains it.
 * _future.h has what it appends.
 *
 * All of this runs under the interpreter lock. Between the look-up of a topic (and of the space left)
 * and the append, no Python code can run: so a thread that removes a topic and then drains it misses
 * no message, and no byte of the space is counted twice.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <time.h>

#include "_future.h"
#include "_head.h"

/* Fields of vq.model.Message, by position. */
enum { TOPIC, CONTENT, TAG, KEY, HEADERS, PARTITION, OFFSET, DELIVER_AT = 10, DELAY_S, FIELDS_READ };

/* vq.limits.TIMEOUT_S_MAX. */
#define TIMEOUT_S_MAX 1e6

/* vq.client.future.ANY_PARTITION. */
enum { ANY_PARTITION = -1 };

/* Slots of vq.client.producer.queue.topic_queues.TopicQueues that this file reads. */
enum {
    Q_APPENDED,
    Q_PLAIN_BYTES_MAX,
    Q_USUAL_KEYS,
    Q_DIRECTED,
    Q_COMPRESSOR,
    Q_CONTENT_BYTES_MAX,
    Q_IS_OWN,
    Q_TOPIC,
    Q_COUNT
};
static const char *const queues_slots[Q_COUNT] = {
    "appended",   "plain_bytes_max",   "usual_keys", "directed",
    "compressor", "content_bytes_max", "is_own",     "topic"};

/* What a text was mapped to when it was looked up last. While the dict has not changed since, it holds the
 * value; the text is held here, so that no other one gets its address. */
typedef struct {
    PyObject *text;
    PyObject *value; /* borrowed from the dict */
    uint64_t version;
} lookup_t;

typedef struct {
    PyObject_HEAD
    PyTypeObject *message;
    PyTypeObject *future;
    PyObject *clock;
    PyObject *wake;
    PyTypeObject *queues;
    PyObject *topics;        /* dict: topic -> queues */
    PyObject *tag_heads;     /* dict: tag -> head */
    PyObject *any_partition; /* the object for ANY_PARTITION */
    lookup_t last_topic, last_tag;
    Py_ssize_t queues_at[Q_COUNT];
    double timeout;
    Py_ssize_t space;
    Py_ssize_t places;   /* how many more messages are taken */
    Py_ssize_t overhead; /* bytes counted for a message in addition to its own */
    char awake;
    char closed;
    char is_system_clock; /* the clock is that of the machine, which needs no call of an object */
} appender_t;

typedef struct {
    PyTypeObject *future; /* the base of all futures */
} module_state_t;

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

/* Whether a clock is time.monotonic, on a system whose clock we can read; -1 with an exception. */
static int is_system_clock(PyObject *clock)
{
#ifdef __linux__
    PyObject *time = PyImport_ImportModule("time");
    PyObject *monotonic = time ? PyObject_GetAttrString(time, "monotonic") : NULL;
    int found = monotonic ? clock == monotonic && PyCFunction_Check(clock) : -1;
    Py_XDECREF(monotonic);
    Py_XDECREF(time);
    return found;
#else
    (void)clock;
    return 0;
#endif
}

static PyObject *appender_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *message, *future, *queues, *clock, *wake, *tag_heads;
    double timeout;
    Py_ssize_t space, places, overhead, queues_at[Q_COUNT];
    module_state_t *state = PyType_GetModuleState(type);
    if (!state)
        return NULL;
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
    if (!PyType_IsSubtype((PyTypeObject *)future, state->future)) {
        PyErr_SetString(PyExc_TypeError, "a future must be derived from FutureFields");
        return NULL;
    }
    int is_system = is_system_clock(clock);
    if (is_system < 0 ||
        slot_offsets((PyTypeObject *)queues, queues_slots, Q_COUNT, queues_at) < 0)
        return NULL;
    appender_t *self = (appender_t *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->topics = PyDict_New();
    self->any_partition = PyLong_FromLong(ANY_PARTITION);
    if (!self->topics || !self->any_partition) {
        Py_DECREF(self);
        return NULL;
    }
    make_bare((PyTypeObject *)future);
    self->message = (PyTypeObject *)Py_NewRef(message);
    self->future = (PyTypeObject *)Py_NewRef(future);
    self->queues = (PyTypeObject *)Py_NewRef(queues);
    self->clock = Py_NewRef(clock);
    self->wake = Py_NewRef(wake);
    self->tag_heads = Py_NewRef(tag_heads);
    memcpy(self->queues_at, queues_at, sizeof queues_at);
    self->timeout = timeout;
    self->space = space;
    self->places = places;
    self->overhead = overhead;
    self->is_system_clock = (char)is_system;
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
    Py_CLEAR(self->last_topic.text);
    Py_CLEAR(self->last_tag.text);
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

/* Read the clock; -1 with an exception. */
static int read_clock(appender_t *self, double *now)
{
#ifdef __linux__
    struct timespec time;
    if (self->is_system_clock && !clock_gettime(CLOCK_MONOTONIC, &time)) {
        *now = ((double)time.tv_sec * 1e9 + (double)time.tv_nsec) / 1e9; /* as CPython rounds */
        return 0;
    }
#endif
    PyObject *told = PyObject_CallNoArgs(self->clock);
    if (!told)
        return -1;
    *now = PyFloat_AsDouble(told);
    Py_DECREF(told);
    return *now == -1.0 && PyErr_Occurred() ? -1 : 0;
}

/* Whether a message that was not received names a partition, or may do so. Both defaults are -1, and
 * CPython has one object for it; what equals it may be of another type. */
static int names_partition(appender_t *self, PyObject *message)
{
    PyObject *offset = PyTuple_GET_ITEM(message, OFFSET);
    return PyTuple_GET_ITEM(message, PARTITION) != self->any_partition &&
           (offset == self->any_partition || !PyLong_CheckExact(offset));
}

static PyObject *slot_of(appender_t *self, PyObject *queues, int slot)
{
    return *(PyObject **)((char *)queues + self->queues_at[slot]);
}

/* Whether a size is within a bound that a slot of a topic has. */
static int is_within(appender_t *self, PyObject *queues, int slot, Py_ssize_t size)
{
    PyObject *most = slot_of(self, queues, slot);
    return most && PyLong_CheckExact(most) && size <= PyLong_AsSsize_t(most);
}

/* Return what a text is mapped to in a dict, borrowed; NULL: nothing, perhaps with an exception. Most sends
 * look up the text of the send before, the same object: that takes no look at the dict. */
static PyObject *look_up(PyObject *dict, PyObject *text, lookup_t *last)
{
#if PY_VERSION_HEX < 0x030C0000 /* later the number of a dict's state is not for everyone to read */
    uint64_t version = ((PyDictObject *)dict)->ma_version_tag;
    if (text == last->text && version == last->version)
        return last->value;
    PyObject *value = PyDict_GetItemWithError(dict, text); /* texts: no code runs */
    if (value) {
        PyObject *before = last->text;
        *last = (lookup_t){Py_NewRef(text), value, version};
        Py_XDECREF(before); /* a text */
    }
    return value;
#else
    (void)last;
    return PyDict_GetItemWithError(dict, text);
#endif
}

/* Return the queues of a topic (borrowed) to which messages may be appended now; NULL: there are none. */
static PyObject *open_queues(appender_t *self, PyObject *topic)
{
    PyObject *queues = look_up(self->topics, topic, &self->last_topic);
    if (!queues || self->closed || self->space <= 0 || self->places <= 0 ||
        !Py_IS_TYPE(queues, self->queues))
        return NULL;
    PyObject *items = slot_of(self, queues, Q_APPENDED);
    return items && PyList_CheckExact(items) ? queues : NULL;
}

enum { FITS = 1, WAS_COMPRESSED };

/* Have the content of a future stored as it is, or compressed, as its topic says. Return 0 if that is
 * left to others, -1 with an exception. A compressor is Python code: the topic may be gone then. */
static int fit(appender_t *self, PyObject *queues, future_t *future)
{
    Py_ssize_t size = PyBytes_GET_SIZE(future->content);
    if (is_within(self, queues, Q_PLAIN_BYTES_MAX, size))
        return FITS;
    PyObject *compressor = slot_of(self, queues, Q_COMPRESSOR);
    if (!compressor || compressor == Py_None || slot_of(self, queues, Q_IS_OWN) != Py_False ||
        !is_within(self, queues, Q_CONTENT_BYTES_MAX, size))
        return 0;
    Py_INCREF(compressor);
    PyObject *made = PyObject_CallOneArg(compressor, future->content);
    Py_DECREF(compressor);
    if (!made)
        return -1;
    int failed = future_compressed(future, made);
    Py_DECREF(made);
    return failed ? -1 : WAS_COMPRESSED;
}

/* Choose the partition of a usual key; 0: that is left to others. */
static int direct(appender_t *self, PyObject *queues, const usual_key_t *key, int *partition)
{
    PyObject *partitions = slot_of(self, queues, Q_USUAL_KEYS);
    if (!partitions || !PyLong_CheckExact(partitions))
        return 0;
    Py_ssize_t count = PyLong_AsSsize_t(partitions);
    if (count > 0)
        *partition = partition_of(key, count);
    return count != 0;
}

/* Append a future that goes to a partition, or to any; -1 with an exception. */
static int append_to(appender_t *self, PyObject *queues, PyObject *future)
{
    if (((future_t *)future)->partition != ANY_PARTITION) {
        PyObject **directed =
            (PyObject **)((char *)queues + self->queues_at[Q_DIRECTED]), *before = *directed;
        *directed = Py_NewRef(Py_True);
        Py_XDECREF(before); /* a bool */
    }
    return PyList_Append(slot_of(self, queues, Q_APPENDED), future);
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

/* Use the space of a future that was appended, and wake the sender if it sleeps; -1 with an exception. */
static int count_appended(appender_t *self, const future_t *future)
{
    self->space -= future->size + self->overhead;
    self->places--;
    return self->awake ? 0 : wake_sender(self);
}

/* Make the future of a message that passes all stages unchanged, without times and partition, and
 * read its key. Return 0 without one if the message is not plain, -1 with an exception. */
static int make_plain(appender_t *self, PyObject *message, usual_key_t *key, future_t **made)
{
    if (!Py_IS_TYPE(message, self->message) || PyTuple_GET_SIZE(message) < FIELDS_READ)
        return 0;
    PyObject *content = PyTuple_GET_ITEM(message, CONTENT), *tag = PyTuple_GET_ITEM(message, TAG);
    PyObject *headers = PyTuple_GET_ITEM(message, HEADERS), *head = Py_None;
    properties_t properties;
    if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(message, TOPIC)) || !PyBytes_CheckExact(content) ||
        PyTuple_GET_ITEM(message, DELIVER_AT) != Py_None ||
        PyTuple_GET_ITEM(message, DELAY_S) != Py_None || names_partition(self, message) ||
        !read_key(PyTuple_GET_ITEM(message, KEY), key))
        return 0;
    if (tag != Py_None) {
        head = PyUnicode_CheckExact(tag) ? look_up(self->tag_heads, tag, &self->last_tag) : NULL;
        if (!head)
            return PyErr_Occurred() ? -1 : 0;
    }
    Py_ssize_t size = size_of(content, head);
    if (size < 0)
        return -1;
    Py_INCREF(head); /* a collection may run any code, also such that changes the tags */
    if (key->field || headers != Py_None) {
        int is_usual = encode_properties(key, headers, &properties);
        PyObject *of_all = is_usual ? head_with(head, &properties) : NULL;
        Py_DECREF(head);
        if (!of_all)
            return is_usual ? -1 : 0;
        head = of_all;
        size = size_of(content, head);
    }
    *made = make_future(self->future);
    if (!*made) {
        Py_DECREF(head);
        return -1;
    }
    (*made)->content = Py_NewRef(content);
    (*made)->head = head;
    (*made)->size = size;
    (*made)->partition = ANY_PARTITION;
    return 1;
}

/* Append a message. Return its future, None without effect if it is not plain, NULL with an exception. */
static PyObject *append_one(appender_t *self, PyObject *message, PyObject *callback,
                            PyObject *timeout)
{
    usual_key_t key;
    future_t *made;
    double seconds, now;
    if (!read_timeout(self, timeout, &seconds))
        Py_RETURN_NONE;
    int is_plain = make_plain(self, message, &key, &made);
    if (is_plain < 0)
        return NULL;
    if (!is_plain)
        Py_RETURN_NONE;
    PyObject *future = (PyObject *)made;
    if (read_clock(self, &now) < 0) {
        Py_DECREF(future);
        return NULL;
    }
    made->callback = Py_NewRef(callback);
    made->appended_at = now;
    made->deadline = now + seconds;
    PyObject *topic = PyTuple_GET_ITEM(message, TOPIC), *queues = open_queues(self, topic);
    int fits = queues ? fit(self, queues, made) : 0;
    if (fits <= 0 || (fits == WAS_COMPRESSED && open_queues(self, topic) != queues) ||
        (key.field && !direct(self, queues, &key, &made->partition)) ||
        append_to(self, queues, future) < 0) {
        Py_DECREF(future);
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    if (count_appended(self, made) < 0) {
        Py_DECREF(future);
        return NULL;
    }
    return future;
}

static int check_count(const char *name, Py_ssize_t count, Py_ssize_t wanted)
{
    if (count == wanted)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s has %zd arguments, %zd were given", name, wanted, count);
    return -1;
}

PyDoc_STRVAR(append_doc, "append(message, callback, timeout, /)\n--\n\n"
                         "See vq.client.producer.intake.appender.Appender.append.");

static PyObject *appender_append(appender_t *self, PyObject *const *args, Py_ssize_t count)
{
    return check_count("append", count, 3) < 0 ? NULL : append_one(self, args[0], args[1], args[2]);
}

PyDoc_STRVAR(append_unheard_doc, "append_unheard(message, callbacks, timeout, /)\n--\n\n"
                                 "See vq.client.producer.intake.appender.Appender.append_unheard.");

/* Append a message with the callback of its topic, of a dict; return as ``append_one``. */
static PyObject *append_unheard_one(appender_t *self, PyObject *message, PyObject *callbacks,
                                    PyObject *timeout)
{
    if (!Py_IS_TYPE(message, self->message) || PyTuple_GET_SIZE(message) < FIELDS_READ ||
        !PyUnicode_CheckExact(PyTuple_GET_ITEM(message, TOPIC)))
        Py_RETURN_NONE;
    PyObject *callback = PyDict_GetItemWithError(callbacks, PyTuple_GET_ITEM(message, TOPIC));
    if (!callback) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE; /* it is made when it is needed first */
    }
    Py_INCREF(callback); /* another thread may clear the dict meanwhile */
    PyObject *future = append_one(self, message, callback, timeout);
    Py_DECREF(callback);
    return future;
}

static PyObject *appender_append_unheard(appender_t *self, PyObject *const *args, Py_ssize_t count)
{
    if (check_count("append_unheard", count, 3) < 0)
        return NULL;
    if (PyDict_Check(args[1]))
        return append_unheard_one(self, args[0], args[1], args[2]);
    PyErr_SetString(PyExc_TypeError, "callbacks are a dict, by topic");
    return NULL;
}

PyDoc_STRVAR(put_doc, "put(future, queues, /)\n--\n\n"
                      "See vq.client.producer.intake.appender.Appender.put.");

static PyObject *appender_put(appender_t *self, PyObject *const *args, Py_ssize_t count)
{
    if (check_count("put", count, 2) < 0)
        return NULL;
    module_state_t *state = PyType_GetModuleState(Py_TYPE(self));
    future_t *future = state ? future_of(state->future, args[0]) : NULL;
    if (!future)
        return NULL;
    PyObject *queues = args[1];
    PyObject *topic = Py_IS_TYPE(queues, self->queues) ? slot_of(self, queues, Q_TOPIC) : NULL;
    if (!topic || !PyUnicode_CheckExact(topic)) {
        PyErr_SetString(PyExc_TypeError, "the queues of a topic are needed");
        return NULL;
    }
    if (open_queues(self, topic) != queues) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_FALSE;
    }
    if (append_to(self, queues, (PyObject *)future) < 0 || count_appended(self, future) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

/* Make the future of one of several messages to a topic, with a partition; see ``make_plain``. */
static int prepare_one(appender_t *self, PyObject *message, PyObject *queues, int partition,
                       future_t **made)
{
    usual_key_t key;
    int is_plain = make_plain(self, message, &key, made);
    if (is_plain <= 0)
        return is_plain;
    if (fit(self, queues, *made) <= 0 ||
        (key.field && !direct(self, queues, &key, &(*made)->partition))) {
        Py_DECREF(*made);
        return PyErr_Occurred() ? -1 : 0;
    }
    if ((*made)->partition == ANY_PARTITION) {
        (*made)->partition = partition;
        (*made)->dealt = 1;
    }
    return 1;
}

PyDoc_STRVAR(prepare_doc, "prepare(messages, places, count, size, deadline, queues, partition, /)"
                          "\n--\n\nSee vq.client.producer.intake.appender.Appender.prepare.");

static PyObject *appender_prepare(appender_t *self, PyObject *args)
{
    PyObject *messages, *places, *queues;
    Py_ssize_t count, most, size = 0;
    double deadline, now;
    int partition;
    if (!PyArg_ParseTuple(args, "O!O!nndO!i:prepare", &PyList_Type, &messages, &PyList_Type, &places,
                          &count, &most, &deadline, self->queues, &queues, &partition) ||
        read_clock(self, &now) < 0)
        return NULL;
    PyObject *prepared = PyList_New(0);
    /* Making a future may run any code: look at the lists again each time. */
    for (Py_ssize_t i = PyList_GET_SIZE(places) - 1; prepared; i--) {
        if (i < 0 || i >= PyList_GET_SIZE(places) || PyList_GET_SIZE(prepared) >= count ||
            size >= most)
            return prepared;
        Py_ssize_t place = PyLong_AsSsize_t(PyList_GET_ITEM(places, i));
        if (place == -1 && PyErr_Occurred())
            break;
        if (place < 0 || place >= PyList_GET_SIZE(messages)) {
            PyErr_SetString(PyExc_IndexError, "there is no such message");
            break;
        }
        future_t *made;
        PyObject *message = Py_NewRef(PyList_GET_ITEM(messages, place));
        int is_plain = prepare_one(self, message, queues, partition, &made);
        Py_DECREF(message);
        if (is_plain < 0)
            break;
        if (!is_plain)
            return prepared;
        made->appended_at = now;
        made->deadline = deadline;
        size += made->size;
        int failed = PyList_Append(prepared, (PyObject *)made);
        Py_DECREF(made);
        if (failed)
            break;
    }
    Py_XDECREF(prepared);
    return NULL;
}

PyDoc_STRVAR(one_topic_doc, "one_topic(messages, /)\n--\n\n"
                            "See vq.client.producer.intake.appender.Appender.one_topic.");

static PyObject *appender_one_topic(appender_t *self, PyObject *messages)
{
    PyObject *topic = NULL;
    if (!PyList_CheckExact(messages) || !PyList_GET_SIZE(messages))
        Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(messages); i++) {
        PyObject *message = PyList_GET_ITEM(messages, i);
        if (!Py_IS_TYPE(message, self->message) || PyTuple_GET_SIZE(message) < FIELDS_READ ||
            PyTuple_GET_ITEM(message, DELIVER_AT) != Py_None ||
            PyTuple_GET_ITEM(message, DELAY_S) != Py_None)
            Py_RETURN_NONE;
        PyObject *of_this = PyTuple_GET_ITEM(message, TOPIC);
        if (!PyUnicode_CheckExact(of_this))
            Py_RETURN_NONE;
        if (topic && topic != of_this && PyUnicode_Compare(topic, of_this))
            Py_RETURN_NONE;
        topic = of_this;
    }
    return Py_NewRef(topic);
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

#include "_shortcut.h" /* methods that call what is above */

/* The module ----------------------------------------------------------------------------------- */

static PyMethodDef appender_methods[] = {
    {"append", (PyCFunction)(void (*)(void))appender_append, METH_FASTCALL, append_doc},
    {"append_unheard", (PyCFunction)(void (*)(void))appender_append_unheard, METH_FASTCALL,
     append_unheard_doc},
    {"put", (PyCFunction)(void (*)(void))appender_put, METH_FASTCALL, put_doc},
    {"prepare", (PyCFunction)appender_prepare, METH_VARARGS, prepare_doc},
    {"one_topic", (PyCFunction)appender_one_topic, METH_O, one_topic_doc},
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

/* Lists of futures; see _future.h. */
static PyTypeObject *futures_of(PyObject *module)
{
    return ((module_state_t *)PyModule_GetState(module))->future;
}

typedef PyObject *(*pass_t)(PyTypeObject *, PyObject *);

static PyObject *pass(PyObject *module, PyObject *futures, pass_t over)
{
    if (PyList_CheckExact(futures))
        return over(futures_of(module), futures);
    PyErr_SetString(PyExc_TypeError, "a list of futures is needed");
    return NULL;
}

#define PASS(name, over)                                                                           \
    PyDoc_STRVAR(name##_doc, #name "(futures, /)\n--\n\nSee vq.client.producer.queue.futures.");   \
    static PyObject *name(PyObject *module, PyObject *futures) { return pass(module, futures, over); }

PASS(bytes_of, sum_sizes)
PASS(columns, columns_of)
PASS(divide, shares_of)
PASS(last_waiting, last_waiting_of)

PyDoc_STRVAR(fitting_doc, "fitting(futures, most, more, /)\n--\n\n"
                          "See vq.client.producer.queue.futures.");

static PyObject *fitting(PyObject *module, PyObject *args)
{
    PyObject *items;
    Py_ssize_t most, more;
    if (!PyArg_ParseTuple(args, "O!nn:fitting", &PyList_Type, &items, &most, &more))
        return NULL;
    return count_fitting(futures_of(module), items, most, more);
}

PyDoc_STRVAR(outcomes_doc, "outcomes(sends, kind, /)\n--\n\n"
                           "See vq.client.producer.queue.futures.");

static PyObject *outcomes(PyObject *module, PyObject *args)
{
    PyObject *sends, *kind;
    if (!PyArg_ParseTuple(args, "O!O!:outcomes", &PyList_Type, &sends, &PyType_Type, &kind))
        return NULL;
    return outcomes_of(futures_of(module), sends, (PyTypeObject *)kind);
}

PyDoc_STRVAR(tell_doc, "tell(futures, partition, offset, sizes, ids, result, quiet, unasked, report, "
                       "/)\n--\n\nSee vq.client.producer.queue.futures.");

static PyObject *tell(PyObject *module, PyObject *args)
{
    PyObject *items, *sizes, *ids, *type, *quiet;
    long long offset;
    telling_t telling = {.base = futures_of(module)};
    if (!PyArg_ParseTuple(args, "O!O!LO!O!O!O!OO:tell", &PyList_Type, &items, &PyLong_Type,
                          &telling.partition, &offset, &PyList_Type, &sizes, &PyList_Type, &ids,
                          &PyType_Type, &type, &PyType_Type, &quiet, &telling.unasked,
                          &telling.report))
        return NULL;
    telling.type = (PyTypeObject *)type;
    telling.quiet = (PyTypeObject *)quiet;
    if (!PyType_IsSubtype(telling.type, &PyTuple_Type) ||
        telling.type->tp_basicsize != PyTuple_Type.tp_basicsize) {
        PyErr_SetString(PyExc_TypeError, "the type of results is no named tuple");
        return NULL;
    }
    int failed = tell_all(&telling, items, sizes, ids, offset);
    Py_XDECREF(telling.spare);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bytes_of", bytes_of, METH_O, bytes_of_doc},
    {"columns", columns, METH_O, columns_doc},
    {"divide", divide, METH_O, divide_doc},
    {"fitting", fitting, METH_VARARGS, fitting_doc},
    {"last_waiting", last_waiting, METH_O, last_waiting_doc},
    {"outcomes", outcomes, METH_VARARGS, outcomes_doc},
    {"tell", tell, METH_VARARGS, tell_doc},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyTypeObject **kept)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (!type)
        return -1;
    int added = PyModule_AddObjectRef(module, name, type);
    if (kept && !added)
        *kept = (PyTypeObject *)Py_NewRef(type);
    Py_DECREF(type);
    return added;
}

static int add_types(PyObject *module)
{
    module_state_t *state = PyModule_GetState(module);
    if (add_type(module, &future_spec, "FutureFields", &state->future) < 0)
        return -1;
    if (add_type(module, &appender_spec, "Appender", NULL) < 0)
        return -1;
    return add_type(module, &shortcut_spec, "SendShortcut", NULL);
}

static int traverse_module(PyObject *module, visitproc visit, void *arg)
{
    Py_VISIT(futures_of(module));
    return 0;
}

static int clear_module(PyObject *module)
{
    module_state_t *state = PyModule_GetState(module);
    Py_CLEAR(state->future);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, add_types}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vq.client.producer._accumulator",
    .m_doc = "The accumulator's append and lists of futures, compiled; see "
             "vq.client.producer.intake.appender and vq.client.producer.queue.futures.",
    .m_size = sizeof(module_state_t),
    .m_methods = functions,
    .m_slots = module_slots,
    .m_traverse = traverse_module,
    .m_clear = clear_module,
};

PyMODINIT_FUNC PyInit__accumulator(void) { return PyModuleDef_Init(&definition); }
