/* The base of vq.client.future.SendFuture, and what is done to all futures of a batch at once.
 *
 * vq/client/future.py and vq/client/producer/queue/futures.py have the same in Python and explain it.
 *
 * The collector does not look at a future before something is put into it that could be a part of a
 * cycle: an error, which has frames, or who waits. Most futures never get such a thing. A callback may
 * refer to its future; the future drops it when it was called, and each message gets its outcome.
 * Where none comes any more (an event loop that ended without ``close``, the child of a fork), such a
 * pair stays until the process ends: at most what the buffer of the producer held.
 */
#ifndef VQ_FUTURE_H
#define VQ_FUTURE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *content, *head, *callback, *outcome, *waiters; /* NULL: None, or not set yet */
    double appended_at, deadline;
    Py_ssize_t size;
    int partition;
    char dealt;
} future_t;

/* The type ------------------------------------------------------------------------------------- */

#define REFERENCES(self, each)                                                                     \
    each((self)->content) each((self)->head) each((self)->callback) each((self)->outcome)          \
        each((self)->waiters)

static int future_traverse(future_t *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
#define VISIT(field) Py_VISIT(field);
    REFERENCES(self, VISIT)
#undef VISIT
    return 0;
}

static int future_clear(future_t *self)
{
#define CLEAR(field) Py_CLEAR(field);
    REFERENCES(self, CLEAR)
#undef CLEAR
    return 0;
}

/* Most futures that wait for the memory of the next one: 0.9 MB of a process. */
enum { SPARE_MAX = 8192 };
static struct {
    future_t *spare[SPARE_MAX];
    int spares;
} memory; /* used under the interpreter lock */

static void future_dealloc(future_t *self);

/* Whether the memory of a type's futures serves those of any other such type. */
static int is_bare_type(PyTypeObject *type)
{
    return type->tp_dealloc == (destructor)future_dealloc;
}

/* Free the futures of a derived type by our own function, if it adds nothing: no fields, no code. */
static void make_bare(PyTypeObject *type)
{
    if (type->tp_basicsize == (Py_ssize_t)sizeof(future_t) && !type->tp_itemsize &&
        !type->tp_dictoffset && !type->tp_weaklistoffset && !type->tp_finalize && !type->tp_del)
        type->tp_dealloc = (destructor)future_dealloc;
}

static void free_memory(future_t *freed)
{
    PyTypeObject *type = Py_TYPE(freed);
    if (is_bare_type(type) && memory.spares < SPARE_MAX)
        memory.spare[memory.spares++] = freed;
    else
        type->tp_free(freed);
    Py_DECREF(type);
}

static int is_none(PyObject *held) { return !held || held == Py_None; }

/* Free a future. Most have nothing from which a further one could be reached. */
static void future_dealloc(future_t *self)
{
    if (!PyObject_GC_IsTracked((PyObject *)self) && is_none(self->callback) &&
        is_none(self->waiters)) {
        Py_XDECREF(self->content); /* bytes */
        Py_XDECREF(self->head);    /* a tuple of an integer and bytes */
        Py_XDECREF(self->outcome); /* a tuple of integers */
        Py_XDECREF(self->callback); /* None */
        Py_XDECREF(self->waiters);  /* None */
        free_memory(self);
        return;
    }
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, future_dealloc) /* futures that callbacks refer to: not too many calls deep */
    future_clear(self);
    free_memory(self);
    Py_TRASHCAN_END
}

/* Return a future that the collector does not look at yet; all its fields are empty. */
static future_t *make_future(PyTypeObject *type)
{
    PyObject *made;
    if (memory.spares && is_bare_type(type))
        made = PyObject_Init((PyObject *)memory.spare[--memory.spares], type);
    else
        made = (PyObject *)PyObject_GC_New(future_t, type);
    if (made) /* a derived type has fields behind ours */
        memset((char *)made + sizeof(PyObject), 0, (size_t)type->tp_basicsize - sizeof(PyObject));
    return (future_t *)made;
}

/* Return the bytes of a message with this content and head; -1 with an exception. */
static Py_ssize_t size_of(PyObject *content, PyObject *head)
{
    Py_ssize_t size = PyBytes_GET_SIZE(content);
    if (head != Py_None) {
        if (!PyTuple_CheckExact(head) || PyTuple_GET_SIZE(head) != 2 ||
            !PyLong_CheckExact(PyTuple_GET_ITEM(head, 0)) ||
            !PyBytes_CheckExact(PyTuple_GET_ITEM(head, 1))) {
            PyErr_SetString(PyExc_TypeError, "a head is flag bits and bytes");
            return -1;
        }
        size += PyBytes_GET_SIZE(PyTuple_GET_ITEM(head, 1));
    }
    return size;
}

static int future_init(future_t *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"content",   "head",        "callback", "deadline",
                            "partition", "appended_at", NULL};
    PyObject *content, *head, *callback;
    double deadline, appended_at = 0.0;
    int partition = -1; /* vq.client.future.ANY_PARTITION */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "SOOd|id:SendFuture", names, &content, &head,
                                     &callback, &deadline, &partition, &appended_at))
        return -1;
    Py_ssize_t size = size_of(content, head);
    if (size < 0)
        return -1;
    future_clear(self);
    self->content = Py_NewRef(content);
    self->head = Py_NewRef(head);
    self->callback = Py_NewRef(callback);
    self->deadline = deadline;
    self->appended_at = appended_at;
    self->size = size;
    self->partition = partition;
    return 0;
}

static PyObject **reference_at(future_t *self, void *offset)
{
    return (PyObject **)((char *)self + (Py_ssize_t)offset);
}

static PyObject *get_reference(future_t *self, void *offset)
{
    PyObject *held = *reference_at(self, offset);
    return Py_NewRef(held ? held : Py_None);
}

static int set_reference(future_t *self, PyObject *value, void *offset)
{
    if (!value) {
        PyErr_SetString(PyExc_AttributeError, "it cannot be deleted");
        return -1;
    }
    if (PyObject_IS_GC(value) && PyObject_GC_IsTracked(value) &&
        !PyObject_GC_IsTracked((PyObject *)self))
        PyObject_GC_Track(self);
    PyObject *before = *reference_at(self, offset);
    *reference_at(self, offset) = Py_NewRef(value);
    Py_XDECREF(before);
    return 0;
}

#define REFERENCE(name)                                                                            \
    {#name, (getter)get_reference, (setter)set_reference, NULL, (void *)offsetof(future_t, name)}

static PyGetSetDef future_references[] = {
    REFERENCE(content), REFERENCE(head),    REFERENCE(callback),
    REFERENCE(outcome), REFERENCE(waiters), {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef future_members[] = {
    {"appended_at", T_DOUBLE, offsetof(future_t, appended_at), 0, NULL},
    {"deadline", T_DOUBLE, offsetof(future_t, deadline), 0, NULL},
    {"size", T_PYSSIZET, offsetof(future_t, size), 0, NULL},
    {"partition", T_INT, offsetof(future_t, partition), 0, NULL},
    {"dealt", T_BOOL, offsetof(future_t, dealt), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot future_slots[] = {
    {Py_tp_doc, "See vq.client.future."},
    {Py_tp_init, future_init},
    {Py_tp_traverse, future_traverse},
    {Py_tp_clear, future_clear},
    {Py_tp_dealloc, future_dealloc},
    {Py_tp_members, future_members},
    {Py_tp_getset, future_references},
    {0, NULL},
};

static PyType_Spec future_spec = {
    .name = "vq.client.producer._accumulator.FutureFields",
    .basicsize = sizeof(future_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = future_slots,
};

/* Lists of futures ------------------------------------------------------------------------------ */

/* From it on a partition is left to Python: no topic has so many. */
enum { PARTITIONS_MAX = 65536 };

/* Return an element of a list as a future, borrowed; NULL with an exception. */
static future_t *future_of(PyTypeObject *base, PyObject *item)
{
    if (PyObject_TypeCheck(item, base))
        return (future_t *)item;
    PyErr_Format(PyExc_TypeError, "a future is needed, not %s", Py_TYPE(item)->tp_name);
    return NULL;
}

/* Put a content that a compressor made into a future: a pair of flag bits and bytes. -1 with an
 * exception. */
static int future_compressed(future_t *future, PyObject *made)
{
    if (made == Py_None) {
        PyErr_SetString(PyExc_TypeError, "a compressor makes flag bits and bytes");
        return -1;
    }
    if (size_of(future->content, made) < 0)
        return -1;
    PyObject *bits = PyTuple_GET_ITEM(made, 0), *content = PyTuple_GET_ITEM(made, 1), *head;
    int is_bare = future->head == Py_None;
    if (PyObject_IsTrue(bits)) {
        PyObject *flag =
            is_bare ? Py_NewRef(bits) : PyNumber_Or(PyTuple_GET_ITEM(future->head, 0), bits);
        PyObject *before =
            is_bare ? PyBytes_FromStringAndSize(NULL, 0) : Py_NewRef(PyTuple_GET_ITEM(future->head, 1));
        head = flag && before ? PyTuple_Pack(2, flag, before) : NULL;
        Py_XDECREF(flag);
        Py_XDECREF(before);
        if (!head)
            return -1;
        PyObject_GC_UnTrack(head); /* nothing in it can refer back to it */
    } else
        head = Py_NewRef(future->head);
    Py_SETREF(future->head, head);
    Py_SETREF(future->content, Py_NewRef(content));
    future->size = size_of(content, head);
    return 0;
}

/* Return the sum of the sizes of futures. */
static PyObject *sum_sizes(PyTypeObject *base, PyObject *items)
{
    Py_ssize_t sum = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        future_t *each = future_of(base, PyList_GET_ITEM(items, i));
        if (!each)
            return NULL;
        sum += each->size;
    }
    return PyLong_FromSsize_t(sum);
}

/* Return how many of the first futures fit into so many bytes, each with so many more; 1 at least, of a
 * list that is not empty. */
static PyObject *count_fitting(PyTypeObject *base, PyObject *items, Py_ssize_t most, Py_ssize_t more)
{
    Py_ssize_t count = 0;
    for (Py_ssize_t left = most; count < PyList_GET_SIZE(items); count++) {
        future_t *each = future_of(base, PyList_GET_ITEM(items, count));
        if (!each)
            return NULL;
        if (count && (left < more || each->size > left - more))
            break;
        left -= each->size + more;
    }
    return PyLong_FromSsize_t(count);
}

/* Return the contents of futures, their heads, and the earliest deadline, as a tuple. */
static PyObject *columns_of(PyTypeObject *base, PyObject *items)
{
    /* Made first: making a list may run a garbage collection, and that any code. */
    PyObject *heads = NULL, *contents = PyList_New(PyList_GET_SIZE(items)), *result = NULL;
    if (!contents || !(heads = PyList_New(PyList_GET_SIZE(contents))))
        goto done;
    Py_ssize_t count = PyList_GET_SIZE(contents);
    double deadline = Py_HUGE_VAL;
    if (PyList_GET_SIZE(items) != count) {
        PyErr_SetString(PyExc_ValueError, "the list changes meanwhile");
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        future_t *each = future_of(base, PyList_GET_ITEM(items, i));
        if (!each)
            goto done;
        if (each->deadline < deadline)
            deadline = each->deadline;
        PyList_SET_ITEM(contents, i, Py_NewRef(each->content ? each->content : Py_None));
        PyList_SET_ITEM(heads, i, Py_NewRef(each->head ? each->head : Py_None));
    }
    result = Py_BuildValue("OOd", contents, heads, deadline);
done:
    Py_XDECREF(contents);
    Py_XDECREF(heads);
    return result;
}

/* Put a future into the share of its partition, which is made if it is its first one; -1 with an
 * exception. ``found`` has the lists by partition, borrowed. */
static int share_out(PyObject *shares, PyObject **found, future_t *future)
{
    PyObject **share = &found[future->partition];
    if (!*share) {
        PyObject *made = PyList_New(0);
        PyObject *pair = made ? Py_BuildValue("iN", future->partition, made) : NULL;
        int failed = pair ? PyList_Append(shares, pair) : -1;
        Py_XDECREF(pair);
        if (failed)
            return -1;
        *share = made;
    }
    return PyList_Append(*share, (PyObject *)future);
}

/* Return which futures go to which partition, as pairs; None if one has no partition yet. */
static PyObject *shares_of(PyTypeObject *base, PyObject *items)
{
    int highest = -1, lowest = PARTITIONS_MAX;
    /* Made first: making a list may run a garbage collection, and that any code. */
    PyObject *shares = PyList_New(0);
    if (!shares)
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        future_t *each = future_of(base, PyList_GET_ITEM(items, i));
        if (each && each->partition >= 0 && each->partition < PARTITIONS_MAX) {
            highest = each->partition > highest ? each->partition : highest;
            lowest = each->partition < lowest ? each->partition : lowest;
            continue;
        }
        Py_DECREF(shares);
        if (each)
            Py_RETURN_NONE;
        return NULL;
    }
    if (lowest == highest) { /* all of them */
        PyObject *share = PyList_GetSlice(items, 0, PY_SSIZE_T_MAX);
        PyObject *pair = share ? Py_BuildValue("iN", highest, share) : NULL;
        if (!pair || PyList_Append(shares, pair) < 0)
            Py_CLEAR(shares);
        Py_XDECREF(pair);
        return shares;
    }
    PyObject **found = PyMem_Calloc((size_t)highest + 1, sizeof *found);
    int failed = found ? 0 : -1;
    if (failed)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(items); i++) {
        future_t *each = (future_t *)PyList_GET_ITEM(items, i);
        if (!PyObject_TypeCheck((PyObject *)each, base) || each->partition < 0 ||
            each->partition > highest) { /* a collection meanwhile ran code that changed it */
            PyErr_SetString(PyExc_ValueError, "the list changes meanwhile");
            failed = -1;
        } else
            failed = share_out(shares, found, each);
    }
    PyMem_Free(found);
    if (failed)
        Py_CLEAR(shares);
    return shares;
}

/* Return the outcome of each future of a list, and whatever else is in it; and whether all are of a
 * kind. */
static PyObject *outcomes_of(PyTypeObject *base, PyObject *sends, PyTypeObject *kind)
{
    int are_all = 1;
    PyObject *found = PyList_New(PyList_GET_SIZE(sends));
    if (found && PyList_GET_SIZE(sends) != PyList_GET_SIZE(found)) {
        PyErr_SetString(PyExc_ValueError, "the list changes meanwhile");
        Py_CLEAR(found);
    }
    for (Py_ssize_t i = 0; found && i < PyList_GET_SIZE(found); i++) {
        PyObject *each = PyList_GET_ITEM(sends, i);
        if (PyObject_TypeCheck(each, base))
            each = ((future_t *)each)->outcome;
        are_all &= each && PyObject_TypeCheck(each, kind);
        PyList_SET_ITEM(found, i, Py_NewRef(each ? each : Py_None));
    }
    return found ? Py_BuildValue("NO", found, are_all ? Py_True : Py_False) : NULL;
}

/* Return the last future of a list that has no outcome; None: there is none. */
static PyObject *last_waiting_of(PyTypeObject *base, PyObject *sends)
{
    for (Py_ssize_t i = PyList_GET_SIZE(sends); i-- > 0;) {
        PyObject *each = PyList_GET_ITEM(sends, i);
        if (PyObject_TypeCheck(each, base) && is_none(((future_t *)each)->outcome))
            return Py_NewRef(each);
    }
    Py_RETURN_NONE;
}

/* Outcomes -------------------------------------------------------------------------------------- */

enum { RESULT_FIELDS = 3, RESULT_OFFSET = 1, RESULT_ID = 2 };

/* What the futures of one batch are told. */
typedef struct {
    PyTypeObject *base;   /* of futures */
    PyTypeObject *type;   /* of results: a named tuple of partition, offset and id */
    PyTypeObject *quiet;  /* of callbacks that need not be called with a result */
    PyObject *partition;
    PyObject *unasked;    /* the outcome of a message whose future nobody has */
    PyObject *report;     /* called with an exception that a callback raised */
    PyObject *spare;      /* a result that nobody has any more, to be used again; or NULL */
} telling_t;

/* Return a result, whose fields cannot refer back to it: the collector need not look at it. */
static PyObject *make_result(telling_t *telling, long long offset, PyObject *id)
{
    PyObject *place = PyLong_FromLongLong(offset), *made = telling->spare;
    if (!place)
        return NULL;
    telling->spare = NULL;
    if (made) {
        Py_DECREF(PyTuple_GET_ITEM(made, RESULT_OFFSET)); /* integers: no code runs */
        Py_DECREF(PyTuple_GET_ITEM(made, RESULT_ID));
    } else {
        made = telling->type->tp_alloc(telling->type, RESULT_FIELDS);
        if (!made) {
            Py_DECREF(place);
            return NULL;
        }
        PyObject_GC_UnTrack(made);
        PyTuple_SET_ITEM(made, 0, Py_NewRef(telling->partition));
    }
#if PY_VERSION_HEX >= 0x030E0000
    ((PyTupleObject *)made)->ob_hash = -1; /* not computed yet */
#endif
    PyTuple_SET_ITEM(made, RESULT_OFFSET, place);
    PyTuple_SET_ITEM(made, RESULT_ID, Py_NewRef(id));
    return made;
}

/* Give back a result, or keep it as the spare one if nobody else has it. */
static void drop_result(telling_t *telling, PyObject *result)
{
    if (Py_REFCNT(result) == 1 && !telling->spare)
        telling->spare = result;
    else
        Py_DECREF(result);
}

/* Have the exception of a callback logged; -1 if that raises, too. */
static int report_raised(telling_t *telling)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace)
        PyException_SetTraceback(value, trace);
    PyObject *told = PyObject_CallOneArg(telling->report, value);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_XDECREF(told);
    return told ? 0 : -1;
}

/* Call a callback with a result; -1 with an exception that is to be passed on. */
static int call_back(telling_t *telling, PyObject *callback, PyObject *result)
{
    PyObject *arguments[3] = {NULL, result, Py_None};
    PyObject *returned =
        PyObject_Vectorcall(callback, arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_XDECREF(returned);
    return returned ? 0 : report_raised(telling);
}

static void set_outcome(future_t *future, PyObject *outcome)
{
    PyObject *before = future->outcome;
    future->outcome = Py_NewRef(outcome);
    Py_XDECREF(before);
}

/* Tell one future its place, and whoever waits for it; -1 with an exception. */
static int tell_one(telling_t *telling, future_t *future, long long offset, PyObject *id)
{
    if (!is_none(future->outcome))
        return 0; /* one that expired, or its place-holder */
    PyObject *callback = future->callback;
    /* Only the list of the batch has it: nobody will ever read its outcome. */
    int is_alone = Py_REFCNT(future) == 1 && is_none(future->waiters);
    int is_quiet = is_none(callback) || Py_IS_TYPE(callback, telling->quiet);
    if (is_alone && is_quiet) {
        set_outcome(future, telling->unasked);
        Py_CLEAR(future->callback);
        return 0;
    }
    PyObject *result = make_result(telling, offset, id);
    if (!result)
        return -1;
    set_outcome(future, is_alone ? telling->unasked : result);
    Py_INCREF(future); /* the calls below may run any code */
    future->callback = NULL;
    int failed = is_quiet ? 0 : call_back(telling, callback, result);
    Py_XDECREF(callback);
    drop_result(telling, result);
    if (!failed && !is_none(future->waiters)) {
        PyObject *woken = PyObject_CallMethod((PyObject *)future, "wake", NULL);
        failed = woken ? 0 : -1;
        Py_XDECREF(woken);
    }
    Py_DECREF(future);
    return failed;
}

/* Tell all futures of a batch, the first of which is at an offset; -1 with an exception. */
static int tell_all(telling_t *telling, PyObject *items, PyObject *sizes, PyObject *ids,
                    long long offset)
{
    Py_ssize_t count = PyList_GET_SIZE(items);
    /* A callback may run any code: look again each time. */
    for (Py_ssize_t i = 0;; i++) {
        if (PyList_GET_SIZE(items) != count || PyList_GET_SIZE(sizes) != count ||
            PyList_GET_SIZE(ids) != count) {
            PyErr_SetString(PyExc_ValueError, "futures, sizes and ids differ in length");
            return -1;
        }
        if (i == count)
            return 0;
        future_t *future = future_of(telling->base, PyList_GET_ITEM(items, i));
        PyObject *size = PyList_GET_ITEM(sizes, i), *id = PyList_GET_ITEM(ids, i);
        if (!future)
            return -1;
        if (!PyLong_CheckExact(size) || !PyLong_CheckExact(id)) {
            PyErr_SetString(PyExc_TypeError, "sizes and ids are int");
            return -1;
        }
        long long step = PyLong_AsLongLong(size);
        if (step == -1 && PyErr_Occurred())
            return -1;
        if (tell_one(telling, future, offset, id) < 0)
            return -1;
        if (__builtin_add_overflow(offset, step, &offset)) {
            PyErr_SetString(PyExc_OverflowError, "an offset has 63 bits");
            return -1;
        }
    }
}

#endif
