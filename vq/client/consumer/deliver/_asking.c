/* One step of an iteration over the messages of a consumer, compiled.
 *
 * vq/client/consumer/deliver/asking.py has the same class in Python: it is the reference and what runs
 * where this could not be built; one suite of tests holds both against each other.
 *
 * A coroutine for each message that is at hand costs more than all else of it. Here a step is an
 * object with the methods of a coroutine. It takes the message when it is awaited, not before: what is
 * cancelled before it begins has taken none. If there is no message at hand, a coroutine of Python is
 * the step, and this one only passes on what it is sent.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *inbox, *permit, *loop, *task_of;
    PyObject *task; /* the one that may take messages; None: another iteration is in charge */
} asking_t;

typedef struct {
    PyObject_HEAD
    PyObject *asking;    /* NULL: the step has begun */
    PyObject *coroutine; /* that is awaited in its place, or NULL */
} step_t;

static struct {
    PyTypeObject *step;
    PyObject *at_hand, *left, *now, *until, *following, *throw, *close, *frame;
} names;

/* What an iteration does -------------------------------------------------------------------------- */

/* Whether the permit holds; -1 with an exception. */
static int holds(PyObject *permit)
{
    int answer = -1;
    PyObject *clock = PyObject_GetAttr(permit, names.now);
    PyObject *now = clock ? PyObject_CallNoArgs(clock) : NULL;
    PyObject *until = now ? PyObject_GetAttr(permit, names.until) : NULL;
    if (until)
        answer = PyFloat_CheckExact(now) && PyFloat_CheckExact(until)
                     ? PyFloat_AS_DOUBLE(now) < PyFloat_AS_DOUBLE(until)
                     : PyObject_RichCompareBool(now, until, Py_LT);
    Py_XDECREF(clock);
    Py_XDECREF(now);
    Py_XDECREF(until);
    return answer;
}

/* Return the next message at hand (a new reference) if the task that asks may take it; NULL otherwise,
 * or with an exception. */
static PyObject *take(asking_t *asking)
{
    PyObject *task = PyObject_CallOneArg(asking->task_of, asking->loop);
    if (!task)
        return NULL;
    Py_DECREF(task); /* only compared */
    if (task != asking->task || holds(asking->permit) <= 0)
        return NULL;
    PyObject *window = PyObject_GetAttr(asking->inbox, names.at_hand), *message = NULL;
    PyObject *left = window ? PyObject_GetAttr(window, names.left) : NULL;
    if (left && !PyIter_Check(left))
        PyErr_SetString(PyExc_TypeError, "the messages left are an iterator");
    else if (left)
        message = PyIter_Next(left);
    Py_XDECREF(window);
    Py_XDECREF(left);
    return message;
}

static PyObject *next_step(asking_t *asking)
{
    step_t *step = PyObject_GC_New(step_t, names.step); /* tracked when it has a coroutine */
    if (!step)
        return NULL;
    step->asking = Py_NewRef(asking);
    step->coroutine = NULL;
    return (PyObject *)step;
}

static int asking_init(asking_t *self, PyObject *args, PyObject *named)
{
    PyObject *inbox, *permit, *loop, *task_of;
    static char *keywords[] = {"inbox", "permit", "loop", "task_of", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, named, "OOOO:Asking", keywords, &inbox, &permit, &loop,
                                     &task_of))
        return -1;
    Py_XSETREF(self->inbox, Py_NewRef(inbox));
    Py_XSETREF(self->permit, Py_NewRef(permit));
    Py_XSETREF(self->loop, Py_NewRef(loop));
    Py_XSETREF(self->task_of, Py_NewRef(task_of));
    Py_XSETREF(self->task, Py_NewRef(Py_None));
    return 0;
}

static int asking_traverse(asking_t *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->inbox);
    Py_VISIT(self->permit);
    Py_VISIT(self->loop);
    Py_VISIT(self->task_of);
    Py_VISIT(self->task);
    return 0;
}

static int asking_clear(asking_t *self)
{
    Py_CLEAR(self->inbox);
    Py_CLEAR(self->permit);
    Py_CLEAR(self->loop);
    Py_CLEAR(self->task_of);
    Py_CLEAR(self->task);
    return 0;
}

static void asking_dealloc(asking_t *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    asking_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef asking_members[] = {
    {"task", T_OBJECT, offsetof(asking_t, task), 0, "The task that may take messages; None: none."},
    {"_inbox", T_OBJECT, offsetof(asking_t, inbox), READONLY, NULL},
    {"_loop", T_OBJECT, offsetof(asking_t, loop), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot asking_slots[] = {
    {Py_tp_doc, "See vq.client.consumer.deliver.asking."},
    {Py_tp_init, asking_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, asking_dealloc},
    {Py_tp_traverse, asking_traverse},
    {Py_tp_clear, asking_clear},
    {Py_tp_members, asking_members},
    {Py_am_aiter, PyObject_SelfIter},
    {Py_am_anext, next_step},
    {0, NULL},
};

static PyType_Spec asking_spec = {
    .name = "vq.client.consumer.deliver._asking.Asking",
    .basicsize = sizeof(asking_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = asking_slots,
};

/* A step ------------------------------------------------------------------------------------------ */

/* Begin: take the message at hand, or have a coroutine wait for one. Returns the message, or NULL: with
 * an exception, or without one when there is a coroutine. */
static PyObject *begin(step_t *step)
{
    asking_t *asking = (asking_t *)step->asking;
    step->asking = NULL;
    PyObject *message = asking->inbox ? take(asking) : NULL;
    if (!message && !PyErr_Occurred()) {
        step->coroutine = PyObject_CallMethodNoArgs((PyObject *)asking, names.following);
        if (step->coroutine)
            PyObject_GC_Track(step);
    }
    Py_DECREF(asking);
    return message;
}

static void refuse_reuse(void)
{
    PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
}

static PySendResult step_send(step_t *step, PyObject *value, PyObject **result)
{
    *result = NULL;
    if (step->asking) {
        *result = begin(step);
        if (*result)
            return PYGEN_RETURN;
        if (PyErr_Occurred())
            return PYGEN_ERROR;
    }
    if (!step->coroutine) {
        refuse_reuse();
        return PYGEN_ERROR;
    }
    PyObject *coroutine = Py_NewRef(step->coroutine);
    PySendResult sent = PyIter_Send(coroutine, value, result);
    Py_DECREF(coroutine);
    return sent;
}

/* A second task that awaits it would resume, and end, what the first one waits for. */
static PyObject *step_await(step_t *step)
{
    if (step->coroutine) {
        PyObject *frame = PyObject_GetAttr(step->coroutine, names.frame);
        if (frame && frame != Py_None) /* it is not over */
            PyErr_SetString(PyExc_RuntimeError, "coroutine is being awaited already");
        Py_XDECREF(frame);
        if (PyErr_Occurred())
            return NULL;
    }
    return Py_NewRef(step);
}

/* The same as an iterator says it: the result is in a StopIteration. */
static PyObject *said(PySendResult sent, PyObject *result)
{
    if (sent != PYGEN_RETURN)
        return result;
    PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result); /* a tuple stays one */
    Py_DECREF(result);
    if (stop) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
    return NULL;
}

static PyObject *step_next(step_t *step)
{
    PyObject *result;
    PySendResult sent = step_send(step, Py_None, &result);
    return said(sent, result);
}

static PyObject *step_send_method(step_t *step, PyObject *value)
{
    PyObject *result;
    PySendResult sent = step_send(step, value, &result);
    return said(sent, result);
}

/* Raise what throw() was given: a class or an error, a value, a traceback. */
static void raise_given(PyObject *const *args, Py_ssize_t count)
{
    PyObject *value = count > 1 ? args[1] : Py_None, *error;
    if (PyExceptionInstance_Check(args[0]))
        error = Py_NewRef(args[0]);
    else if (!PyExceptionClass_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "throw() takes an exception");
        return;
    } else if (PyExceptionInstance_Check(value))
        error = Py_NewRef(value);
    else
        error = value == Py_None ? PyObject_CallNoArgs(args[0]) : PyObject_CallOneArg(args[0], value);
    if (!error)
        return;
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
}

static PyObject *step_throw(step_t *step, PyObject *const *args, Py_ssize_t count)
{
    if (count < 1 || count > 3) {
        PyErr_SetString(PyExc_TypeError, "throw() takes one to three arguments");
        return NULL;
    }
    if (!step->coroutine && !step->asking) { /* it is over */
        refuse_reuse();
        return NULL;
    }
    if (!step->coroutine) { /* it has not begun */
        Py_CLEAR(step->asking);
        raise_given(args, count);
        return NULL;
    }
    PyObject *coroutine = Py_NewRef(step->coroutine);
    PyObject *throw = PyObject_GetAttr(coroutine, names.throw);
    PyObject *result = throw ? PyObject_Vectorcall(throw, args, (size_t)count, NULL) : NULL;
    Py_XDECREF(throw);
    Py_DECREF(coroutine);
    return result;
}

static PyObject *step_close(step_t *step, PyObject *unused)
{
    (void)unused;
    Py_CLEAR(step->asking);
    if (!step->coroutine)
        Py_RETURN_NONE;
    PyObject *coroutine = Py_NewRef(step->coroutine);
    PyObject *result = PyObject_CallMethodNoArgs(coroutine, names.close);
    Py_DECREF(coroutine);
    return result;
}

static int step_traverse(step_t *step, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(step));
    Py_VISIT(step->asking);
    Py_VISIT(step->coroutine);
    return 0;
}

static int step_clear(step_t *step)
{
    Py_CLEAR(step->asking);
    Py_CLEAR(step->coroutine);
    return 0;
}

static void step_dealloc(step_t *step)
{
    PyTypeObject *type = Py_TYPE(step);
    PyObject_GC_UnTrack(step);
    step_clear(step);
    PyObject_GC_Del(step);
    Py_DECREF(type);
}

static PyMethodDef step_methods[] = {
    {"send", (PyCFunction)step_send_method, METH_O, NULL},
    {"throw", (PyCFunction)(void (*)(void))step_throw, METH_FASTCALL, NULL},
    {"close", (PyCFunction)step_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot step_slots[] = {
    {Py_tp_doc, "A step of an iteration: to be awaited once."},
    {Py_tp_dealloc, step_dealloc},
    {Py_tp_traverse, step_traverse},
    {Py_tp_clear, step_clear},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, step_next},
    {Py_tp_methods, step_methods},
    {Py_am_await, step_await},
    {Py_am_send, step_send},
    {0, NULL},
};

static PyType_Spec step_spec = {
    .name = "vq.client.consumer.deliver._asking.Step",
    .basicsize = sizeof(step_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = step_slots,
};

/* The module ------------------------------------------------------------------------------------- */

static int fill_module(PyObject *module)
{
    static const struct {
        PyObject **to;
        const char *text;
    } texts[] = {{&names.at_hand, "at_hand"}, {&names.left, "left"},           {&names.now, "now"},
                 {&names.until, "until"},     {&names.following, "_following"}, {&names.throw, "throw"},
                 {&names.close, "close"},   {&names.frame, "cr_frame"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!*texts[i].to && !(*texts[i].to = PyUnicode_InternFromString(texts[i].text)))
            return -1;
    if (!names.step && !(names.step = (PyTypeObject *)PyType_FromSpec(&step_spec)))
        return -1;
    PyObject *asking = PyType_FromModuleAndSpec(module, &asking_spec, NULL);
    int failed = !asking || PyModule_AddObjectRef(module, "Asking", asking) < 0;
    Py_XDECREF(asking);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill_module}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vq.client.consumer.deliver._asking",
    .m_doc = "Steps of an iteration, compiled; see vq.client.consumer.deliver.asking.",
    .m_size = 0,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__asking(void) { return PyModuleDef_Init(&definition); }
