/* The hand-over of flushes from the event loop to their thread, compiled.
 *
 * vq/store/commit/handover.py has the same class in Python: it is the reference and what runs where
 * this could not be built; one suite of tests holds for both. Here the thread needs no interpreter
 * lock for the usual flush, one fdatasync: it is woken, syncs, notes the result and wakes the loop,
 * whatever the loop runs meanwhile.
 *
 *     loop, with the interpreter's lock          thread, in serve(), without it
 *     give(fd) ───────── work, signal ─────────▶ fdatasync
 *     take()  ◀───────── write(wake) ──────────  nanoseconds
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#ifdef __APPLE__
#define fdatasync fsync
#endif

enum { NOTHING = -2, CALL = -1 }; /* as work; from 0 on it is a descriptor */
enum { CLOSED = -1, RUN = 0 };    /* what serve returns; above 0 it is an errno */

typedef struct {
    PyObject_HEAD
    PyThread_type_lock wake; /* taken; the thread sleeps on it until the loop releases it */
    int work, closing;       /* written before that */
    int read_fd, wake_fd;
    int64_t took_ns; /* of a sync that ended well and that the loop was not told of; -1: there is none */
} handover_t;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Write out a file; return 0 or the errno. */
static int sync_file(int fd)
{
    int failed;
    do
        failed = fdatasync(fd);
    while (failed && errno == EINTR);
    return failed ? errno : 0;
}

/* Wake the loop; return 0 or the errno. What is not read yet is enough to wake it. */
static int wake_loop(int fd)
{
    static const uint64_t one = 1;
    ssize_t written;
    do
        written = write(fd, &one, sizeof one);
    while (written < 0 && errno == EINTR);
    return written < 0 && errno != EAGAIN ? errno : 0;
}

static void hand_over(handover_t *self, int work)
{
    if (work == NOTHING)
        __atomic_store_n(&self->closing, 1, __ATOMIC_RELEASE);
    else
        __atomic_store_n(&self->work, work, __ATOMIC_RELEASE);
    PyThread_release_lock(self->wake);
}

static PyObject *handover_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    int read_fd, wake_fd;
    static char *keywords[] = {"read_fd", "wake_fd", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, names, "ii:Handover", keywords, &read_fd, &wake_fd))
        return NULL;
    handover_t *self = (handover_t *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->wake = PyThread_allocate_lock();
    if (!self->wake) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    PyThread_acquire_lock(self->wake, NOWAIT_LOCK);
    self->work = NOTHING;
    self->took_ns = -1;
    self->read_fd = read_fd;
    self->wake_fd = wake_fd;
    return (PyObject *)self;
}

/* No thread is in serve any more: its call holds a reference. */
static void handover_dealloc(handover_t *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->wake)
        PyThread_free_lock(self->wake);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *give(handover_t *self, PyObject *descriptor)
{
    long fd = PyLong_AsLong(descriptor);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    if (fd < CALL || fd > INT_MAX) {
        PyErr_Format(PyExc_ValueError, "%ld is no descriptor, and not -1", fd);
        return NULL;
    }
    hand_over(self, (int)fd);
    Py_RETURN_NONE;
}

static PyObject *close_handover(handover_t *self, PyObject *unused)
{
    (void)unused;
    hand_over(self, NOTHING);
    Py_RETURN_NONE;
}

static PyObject *serve(handover_t *self, PyObject *unused)
{
    (void)unused;
    int found = RUN, lost = 0;
    Py_BEGIN_ALLOW_THREADS;
    for (;;) {
        PyThread_acquire_lock(self->wake, WAIT_LOCK);
        int work = __atomic_exchange_n(&self->work, NOTHING, __ATOMIC_ACQUIRE);
        if (work == CALL) {
            found = RUN;
            break;
        }
        if (work == NOTHING) {
            found = CLOSED; /* only close wakes without work */
            break;
        }
        int64_t begun = now_ns();
        found = sync_file(work);
        if (!found)
            __atomic_store_n(&self->took_ns, now_ns() - begun, __ATOMIC_RELEASE);
        if (found || (lost = wake_loop(self->wake_fd)))
            break;
        if (__atomic_load_n(&self->closing, __ATOMIC_ACQUIRE)) {
            found = CLOSED; /* two releases may count as one */
            break;
        }
    }
    Py_END_ALLOW_THREADS;
    if (lost) {
        errno = lost;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromLong(found);
}

static PyObject *tell(handover_t *self, PyObject *unused)
{
    (void)unused;
    int lost = wake_loop(self->wake_fd);
    if (lost) {
        errno = lost;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *take(handover_t *self, PyObject *unused)
{
    (void)unused;
    uint64_t wakes;
    ssize_t got;
    do
        got = read(self->read_fd, &wakes, sizeof wakes); /* it never blocks */
    while (got < 0 && errno == EINTR);
    if (got < 0 && errno != EAGAIN)
        return PyErr_SetFromErrno(PyExc_OSError);
    int64_t took_ns = __atomic_exchange_n(&self->took_ns, -1, __ATOMIC_ACQUIRE);
    return PyFloat_FromDouble(took_ns < 0 ? -1.0 : (double)took_ns * 1e-9);
}

/* The type and the module ------------------------------------------------------------------------ */

static PyMethodDef methods[] = {
    {"give", (PyCFunction)give, METH_O, "give(descriptor, /)\n--\n\nSee the twin in Python."},
    {"serve", (PyCFunction)serve, METH_NOARGS, "serve()\n--\n\nSee the twin in Python."},
    {"tell", (PyCFunction)tell, METH_NOARGS, "tell()\n--\n\nSee the twin in Python."},
    {"take", (PyCFunction)take, METH_NOARGS, "take()\n--\n\nSee the twin in Python."},
    {"close", (PyCFunction)close_handover, METH_NOARGS, "close()\n--\n\nSee the twin in Python."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Handover(read_fd, wake_fd)\n--\n\nSee vq.store.commit.handover."},
    {Py_tp_new, handover_new},
    {Py_tp_dealloc, handover_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "vq.store.commit._handover.Handover",
    .basicsize = sizeof(handover_t),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

static int add_type(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&spec);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Handover", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, add_type},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vq.store.commit._handover",
    .m_doc = "Flushes handed to their thread, compiled; see vq.store.commit.handover.",
    .m_size = 0,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__handover(void) { return PyModuleDef_Init(&definition); }
