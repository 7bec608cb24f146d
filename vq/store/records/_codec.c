/* The loops of clients and brokers that run once per message, compiled.
 *
 * vq/store/records/codec.py has the same functions in Python: they are the reference and what runs where
 * this could not be built; one suite of tests holds both against each other. Nothing else belongs in
 * here. _records.h shows the layout of a record.
 *
 * The checksum of a message is the first four bytes of the MD5 (RFC 1321) of everything behind it, id
 * and flag included (_md5.h); that of a control record covers what is behind the header.
 *
 * The interpreter's lock is held throughout: a call takes well under a millisecond, and getting the
 * lock back from a busy thread would take longer.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_md5.h"
#include "_records.h"
#include "_streams.h"

enum { MESSAGE_FIELDS = 12, RECORD_FIELDS = 7 };
/* Of a batch's control record: version and size of its payload, and where its append time is. */
enum { CONTROL_VERSION = 1, CONTROL_PAYLOAD = 68, APPEND_TIME_AT = 32 };
enum { COMPRESSION = 0x70, COMPRESSION_SHIFT = 4 };
/* After so many bytes of contents one compressed record goes to Python code, which gives the lock to a
 * thread that waits for it: those in between take less than a millisecond. A stream takes as long as so
 * many bytes do, however small it is. */
enum { BYTES_BEFORE_PYTHON = 128 << 10, BYTES_OF_A_STREAM = 400 };
/* So many texts of headers, names and values, are compared with those of the message before. */
enum { TEXTS_KEPT = 16 };
/* Records are loaded into the processor's cache so many bytes before they are read: the sixteen whose
 * checksums are computed side by side lie as far apart. */
enum { LOADED_AHEAD = 4096, CACHE_LINE = 64 };
/* So many tags are compared with those seen last, a power of two. */
enum { TAGS_KEPT = 16 };

/* Encoding ------------------------------------------------------------------------------------- */

/* Take a head apart: None, or (flag, bytes). The bytes stay the tuple's. */
static int read_head(PyObject *head, uint32_t *flag, PyObject **before)
{
    *flag = 0;
    *before = NULL;
    if (head == Py_None)
        return 0;
    if (!PyTuple_CheckExact(head) || PyTuple_GET_SIZE(head) != 2 ||
        !PyLong_CheckExact(PyTuple_GET_ITEM(head, 0)) || !PyBytes_CheckExact(PyTuple_GET_ITEM(head, 1))) {
        PyErr_SetString(PyExc_TypeError, "a head is None or a tuple of flag and bytes");
        return -1;
    }
    unsigned long value = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(head, 0));
    if (value == (unsigned long)-1 && PyErr_Occurred())
        return -1;
    if (value > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a flag has 32 bits");
        return -1;
    }
    *flag = (uint32_t)value;
    *before = PyTuple_GET_ITEM(head, 1);
    return 0;
}

/* Check everything and sum the sizes; no Python code runs in here. Returns -1 with an exception. */
static Py_ssize_t measure(PyObject *contents, PyObject *heads, PyObject *ids, PyObject *sizes)
{
    Py_ssize_t count = PyList_GET_SIZE(contents), total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *content = PyList_GET_ITEM(contents, i), *before;
        uint32_t flag;
        if (!PyBytes_CheckExact(content) || !PyLong_CheckExact(PyList_GET_ITEM(ids, i))) {
            PyErr_SetString(PyExc_TypeError, "contents are bytes, ids are int");
            return -1;
        }
        if (read_head(PyList_GET_ITEM(heads, i), &flag, &before) < 0)
            return -1;
        Py_ssize_t size = PyBytes_GET_SIZE(content) + (before ? PyBytes_GET_SIZE(before) : 0);
        if (size > (Py_ssize_t)INT32_MAX || total > PY_SSIZE_T_MAX - size - HEADER_BYTES) {
            PyErr_SetString(PyExc_OverflowError, "a record is longer than a length can say");
            return -1;
        }
        PyObject *number = PyLong_FromSsize_t(size + HEADER_BYTES);
        if (!number)
            return -1;
        PyList_SET_ITEM(sizes, i, number);
        total += size + HEADER_BYTES;
    }
    return total;
}

/* Read an id; -1 with an exception. The first way is the faster one. */
static int read_id(PyObject *number, unsigned long long *id)
{
    int overflows;
    long found = PyLong_AsLongAndOverflow(number, &overflows);
    if (found >= 0) {
        *id = (unsigned long long)found;
        return 0;
    }
    *id = PyLong_AsUnsignedLongLong(number);
    return *id == (unsigned long long)-1 && PyErr_Occurred() ? -1 : 0;
}

static int write_records(PyObject *contents, PyObject *heads, PyObject *ids, uint8_t *to, text_t *texts)
{
    Py_ssize_t count = PyList_GET_SIZE(contents);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *content = PyList_GET_ITEM(contents, i), *before;
        uint32_t flag;
        uint8_t *body = to + HEADER_BYTES;
        size_t size = 0;
        unsigned long long id;
        if (read_id(PyList_GET_ITEM(ids, i), &id) < 0)
            return -1;
        if (read_head(PyList_GET_ITEM(heads, i), &flag, &before) < 0)
            return -1;
        if (before) {
            size = (size_t)PyBytes_GET_SIZE(before);
            memcpy(body, PyBytes_AS_STRING(before), size);
        }
        memcpy(body + size, PyBytes_AS_STRING(content), (size_t)PyBytes_GET_SIZE(content));
        size += (size_t)PyBytes_GET_SIZE(content);
        store_u32(to, (uint32_t)size);
        store_u64(to + ID_AT, id);
        store_u32(to + FLAG_AT, flag);
        texts[i] = (text_t){to + ID_AT, HEADER_BYTES - ID_AT + size};
        to = body + size;
    }
    return 0;
}

PyDoc_STRVAR(encode_records_doc, "encode_records(contents, heads, ids, /)\n--\n\nSee vq.store.records.codec.");

static PyObject *encode_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 3 || !PyList_CheckExact(args[0]) || !PyList_CheckExact(args[1]) ||
        !PyList_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "encode_records takes three lists");
        return NULL;
    }
    PyObject *contents = args[0], *heads = args[1], *ids = args[2];
    /* Made first: making a list may run a garbage collection, and that any code. */
    PyObject *sizes = PyList_New(PyList_GET_SIZE(contents));
    if (!sizes)
        return NULL;
    PyObject *data = NULL, *result = NULL;
    Py_ssize_t count = PyList_GET_SIZE(contents);
    text_t *texts = PyMem_New(text_t, count + 1);
    uint32_t *digests = PyMem_New(uint32_t, count + 1);
    if (!texts || !digests) {
        PyErr_NoMemory();
        goto done;
    }
    if (PyList_GET_SIZE(heads) != count || PyList_GET_SIZE(ids) != count ||
        PyList_GET_SIZE(sizes) != count) {
        PyErr_SetString(PyExc_ValueError, "contents, heads and ids differ in length");
        goto done;
    }
    Py_ssize_t total = measure(contents, heads, ids, sizes);
    if (total < 0)
        goto done;
    data = PyBytes_FromStringAndSize(NULL, total);
    if (!data || write_records(contents, heads, ids, (uint8_t *)PyBytes_AS_STRING(data), texts) < 0)
        goto done;
    digest_all(texts, count, digests);
    for (Py_ssize_t i = 0; i < count; i++)
        memcpy((uint8_t *)texts[i].data - ID_AT + CHECKSUM_AT, &digests[i], 4);
    result = PyTuple_Pack(2, data, sizes);
done:
    PyMem_Free(texts);
    PyMem_Free(digests);
    Py_XDECREF(data);
    Py_DECREF(sizes);
    return result;
}

/* Places --------------------------------------------------------------------------------------- */

enum { PLACE_FIELDS = 3 };

/* Gives memory for a message without a detour by the collector, from vq/_message.c; NULL: nobody does. */
static PyObject *(*take_untracked)(PyTypeObject *, Py_ssize_t);

/* Return a new instance of a named tuple without fields; NULL with an exception. */
static PyObject *new_tuple(PyTypeObject *type, int count)
{
    PyObject *made = take_untracked ? take_untracked(type, count) : NULL;
    if (made || PyErr_Occurred())
        return made;
    made = type->tp_alloc(type, count);
    if (made)
        PyObject_GC_UnTrack(made);
    return made;
}

/* Return a new instance of a named tuple. Takes over the fields, which may be NULL; they must be such
 * that nothing in them can refer back to it: the collector need not look at it then. */
static PyObject *named_tuple(PyTypeObject *type, PyObject **fields, int count)
{
    PyObject *made = NULL;
    int whole = 1;
    for (int i = 0; i < count; i++)
        whole = whole && fields[i];
    if (whole)
        made = new_tuple(type, count);
    for (int i = 0; i < count; i++) {
        if (made)
            PyTuple_SET_ITEM(made, i, fields[i]);
        else
            Py_XDECREF(fields[i]);
    }
#if PY_VERSION_HEX >= 0x030E0000
    if (made)
        ((PyTupleObject *)made)->ob_hash = -1; /* not computed yet */
#endif
    return made;
}

static int check_type(PyObject *type)
{
    if (PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type) &&
        ((PyTypeObject *)type)->tp_basicsize == PyTuple_Type.tp_basicsize)
        return 0;
    PyErr_SetString(PyExc_TypeError, "the type is no named tuple");
    return -1;
}

PyDoc_STRVAR(places_doc, "places(type, partition, offset, sizes, ids, /)\n--\n\nSee vq.store.records.codec.");

static PyObject *places(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *type, *partition, *sizes, *ids;
    long long offset;
    if (!PyArg_ParseTuple(args, "OO!LO!O!:places", &type, &PyLong_Type, &partition, &offset,
                          &PyList_Type, &sizes, &PyList_Type, &ids))
        return NULL;
    if (check_type(type) < 0)
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(sizes);
    PyObject *made = PyList_New(count);
    if (!made)
        return NULL;
    /* Making a tuple may run a garbage collection and that any code: look again each time. */
    for (Py_ssize_t i = 0;; i++) {
        if (PyList_GET_SIZE(sizes) != count || PyList_GET_SIZE(ids) != count) {
            PyErr_SetString(PyExc_ValueError, "sizes and ids differ in length");
            goto failed;
        }
        if (i == count)
            return made;
        PyObject *size = PyList_GET_ITEM(sizes, i), *id = PyList_GET_ITEM(ids, i);
        if (!PyLong_CheckExact(size) || !PyLong_CheckExact(id)) {
            PyErr_SetString(PyExc_TypeError, "sizes and ids are int");
            goto failed;
        }
        long long step = PyLong_AsLongLong(size);
        if (step == -1 && PyErr_Occurred())
            goto failed;
        PyObject *fields[PLACE_FIELDS] = {Py_NewRef(partition), PyLong_FromLongLong(offset),
                                          Py_NewRef(id)};
        PyObject *place = named_tuple((PyTypeObject *)type, fields, PLACE_FIELDS);
        if (!place)
            goto failed;
        PyList_SET_ITEM(made, i, place);
        if (__builtin_add_overflow(offset, step, &offset)) {
            PyErr_SetString(PyExc_OverflowError, "an offset has 63 bits");
            goto failed;
        }
    }
failed:
    Py_DECREF(made);
    return NULL;
}

/* Decoding ------------------------------------------------------------------------------------- */

/* The headers that were read last, as they lie in the data and as Python has them: most messages have
 * the names of the message before, and many have some of its values. */
typedef struct {
    text_t texts[TEXTS_KEPT];
    PyObject *made[TEXTS_KEPT];
} headers_t;

/* Tags that were read last, as they lie in the data and as Python has them. */
typedef struct {
    text_t texts[TAGS_KEPT];
    PyObject *made[TAGS_KEPT];
} tags_t;

typedef struct {
    PyObject *topic, *partition, *tags, *out, *read_properties;
    PyObject *decompress, *corrupt; /* and the class of its errors */
    PyObject *appended; /* append time of the batch at hand, or None */
    PyTypeObject *type;
    int gives_records; /* and not messages: only data, base, out, appended and type count */
    const uint8_t *data;
    long long base;
    long long room; /* so many bytes may be decompressed still; the last content may exceed it */
    long long behind;        /* where the last message ended, */
    PyObject *behind_number; /* and as Python has it: most begin there; NULL: there was none */
    long long streams;       /* bytes decompressed here since Python code ran */
    headers_t headers;
    tags_t last_tags;
} reader_t;

/* Return the tag of a body as text (a new reference) out of the tags seen so far, or NULL: with an
 * exception, or without one when it is no UTF-8. */
static PyObject *look_up_tag(const reader_t *reader, const text_t *tag)
{
    PyObject *key = PyBytes_FromStringAndSize((const char *)tag->data, (Py_ssize_t)tag->size);
    if (!key)
        return NULL;
    PyObject *text = Py_XNewRef(PyDict_GetItemWithError(reader->tags, key));
    if (!text && !PyErr_Occurred()) {
        text = PyUnicode_DecodeUTF8((const char *)tag->data, (Py_ssize_t)tag->size, NULL);
        if (text) {
            if (PyDict_SetItem(reader->tags, key, text) < 0)
                Py_CLEAR(text);
        } else if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            PyErr_Clear();
        }
    }
    Py_DECREF(key);
    return text;
}

/* The same, with a look at those that were read last before. */
static PyObject *tag_of(reader_t *reader, const text_t *tag)
{
    size_t place = (tag->size + (tag->size ? tag->data[tag->size - 1] : 0)) & (TAGS_KEPT - 1);
    PyObject **kept = &reader->last_tags.made[place];
    text_t *text = &reader->last_tags.texts[place];
    if (*kept && text->size == tag->size && !memcmp(text->data, tag->data, tag->size))
        return Py_NewRef(*kept);
    PyObject *made = look_up_tag(reader, tag);
    if (made) {
        *text = *tag;
        Py_XSETREF(*kept, Py_NewRef(made));
    }
    return made;
}

/* Return a key as Python has it (a new reference), or NULL with an exception. */
static PyObject *key_of(const properties_t *properties)
{
    const char *text = (const char *)properties->key.data;
    Py_ssize_t size = (Py_ssize_t)properties->key.size;
    switch (properties->kind) {
    case KIND_TEXT:
        return PyUnicode_DecodeUTF8(text, size, NULL);
    case KIND_BYTES:
        return PyBytes_FromStringAndSize(text, size);
    case KIND_INT:
        return PyLong_FromLongLong(properties->number);
    default:
        return Py_NewRef(Py_None);
    }
}

/* Return a name or a value of headers (a new reference), the number-th text of them, or NULL with an
 * exception. */
static PyObject *text_of(headers_t *last, size_t number, const text_t *text)
{
    int is_kept = number < TEXTS_KEPT;
    if (is_kept && last->made[number] && last->texts[number].size == text->size &&
        !memcmp(last->texts[number].data, text->data, text->size))
        return Py_NewRef(last->made[number]);
    PyObject *made = PyUnicode_DecodeUTF8((const char *)text->data, (Py_ssize_t)text->size, NULL);
    if (made && is_kept) {
        last->texts[number] = *text;
        Py_XSETREF(last->made[number], Py_NewRef(made));
    }
    return made;
}

/* Return headers as Python has them (a new reference), or NULL with an exception. */
static PyObject *headers_of(headers_t *last, const properties_t *properties)
{
    if (!properties->entries)
        return Py_NewRef(Py_None);
    text_t from = properties->headers, name, text;
    PyObject *headers = PyDict_New();
    for (size_t i = 0; headers && i < properties->entries && cut_entry(&from, &name, &text); i++) {
        PyObject *key = text_of(last, 2 * i, &name);
        PyObject *value = key ? text_of(last, 2 * i + 1, &text) : NULL;
        if (!value || PyDict_SetItem(headers, key, value) < 0)
            Py_CLEAR(headers);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return headers;
}

/* Have Python read properties that no vq has written so. Returns 1 with two new references, 0 if
 * they are none, -1 with an exception. */
static int ask_for_properties(const reader_t *reader, const text_t *properties, PyObject **key,
                              PyObject **headers)
{
    PyObject *data =
        PyBytes_FromStringAndSize((const char *)properties->data, (Py_ssize_t)properties->size);
    if (!data)
        return -1;
    PyObject *found = PyObject_CallOneArg(reader->read_properties, data);
    Py_DECREF(data);
    if (!found)
        return -1;
    int is_pair = PyTuple_CheckExact(found) && PyTuple_GET_SIZE(found) == 2;
    if (is_pair) {
        *key = Py_NewRef(PyTuple_GET_ITEM(found, 0));
        *headers = Py_NewRef(PyTuple_GET_ITEM(found, 1));
    }
    Py_DECREF(found);
    return is_pair;
}

/* Take the properties off the front of a body. Returns as ask_for_properties does. */
static int take_properties(reader_t *reader, text_t *body, PyObject **key, PyObject **headers)
{
    text_t field;
    properties_t properties;
    if (!cut_field(body, &field))
        return 0;
    if (!read_properties(field, &properties))
        return ask_for_properties(reader, &field, key, headers);
    *key = key_of(&properties);
    *headers = *key ? headers_of(&reader->headers, &properties) : NULL;
    return *headers ? 1 : -1;
}

/* Return the content of a small compressed record (a new reference), or NULL: with an exception, or
 * without one when another one has to look at it. */
static PyObject *small_content_of(reader_t *reader, const text_t *body, uint32_t kind)
{
    int64_t size = -1;
    if (reader->streams < BYTES_BEFORE_PYTHON)
        size = decompress_small(kind, body->data, body->size);
    if (size < 0) {
        reader->streams = 0;
        return NULL;
    }
    reader->streams += BYTES_OF_A_STREAM + size;
    reader->room -= (long long)size;
    return PyBytes_FromStringAndSize((const char *)streams.content, (Py_ssize_t)size);
}

/* Return the content of a message (a new reference), or NULL: with an exception, or without one when
 * it cannot be had here. */
static PyObject *content_of(reader_t *reader, const text_t *body, uint32_t kind)
{
    if (kind) {
        PyObject *content = small_content_of(reader, body, kind);
        if (content || PyErr_Occurred())
            return content;
    }
    PyObject *payload = PyBytes_FromStringAndSize((const char *)body->data, (Py_ssize_t)body->size);
    if (!kind || !payload)
        return payload;
    PyObject *number = PyLong_FromUnsignedLong(kind);
    PyObject *args[] = {NULL, payload, number};
    PyObject *content = number ? PyObject_Vectorcall(reader->decompress, args + 1,
                                                     2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
                               : NULL;
    Py_XDECREF(number);
    Py_DECREF(payload);
    if (!content && PyErr_ExceptionMatches(reader->corrupt))
        PyErr_Clear();
    if (content && !PyBytes_CheckExact(content)) {
        PyErr_SetString(PyExc_TypeError, "decompress returns bytes");
        Py_CLEAR(content);
    }
    if (content)
        reader->room -= (long long)PyBytes_GET_SIZE(content);
    return content;
}

/* Return an offset as Python has it (a new reference), the same object as the end of the message before
 * if it is that; NULL with an exception. */
static PyObject *offset_of(const reader_t *reader, long long offset)
{
    if (reader->behind_number && reader->behind == offset)
        return Py_NewRef(reader->behind_number);
    return PyLong_FromLongLong(offset);
}

/* Append one verified record as a message. Returns 1, 0 if it is none of the common kinds after all,
 * -1 with an exception. */
static int append_message(reader_t *reader, const uint8_t *head)
{
    uint32_t length = load_u32(head), flag = load_u32(head + FLAG_AT);
    uint32_t kind = (flag & COMPRESSION) >> COMPRESSION_SHIFT;
    text_t body = {head + HEADER_BYTES, length}, field;
    PyObject *tag = Py_None, *key = NULL, *headers = NULL, *content;
    long long offset, next_offset;
    if (__builtin_add_overflow(reader->base, (long long)(head - reader->data), &offset) ||
        __builtin_add_overflow(offset, HEADER_BYTES + (long long)length, &next_offset))
        return 0; /* Python's integers have no bound */
    if (kind && reader->room <= 0)
        return 0;
    if (flag & TAG) {
        if (!cut_field(&body, &field))
            return 0;
        tag = tag_of(reader, &field);
        if (!tag)
            return PyErr_Occurred() ? -1 : 0;
    } else
        Py_INCREF(tag);
    int found = flag & PROPERTIES ? take_properties(reader, &body, &key, &headers) : 1;
    if (found != 1 || !(content = content_of(reader, &body, kind))) {
        Py_DECREF(tag);
        Py_XDECREF(key);
        Py_XDECREF(headers);
        return PyErr_Occurred() ? -1 : 0;
    }
    PyObject *begin = offset_of(reader, offset);
    PyObject *end = PyLong_FromLongLong(next_offset);
    Py_XSETREF(reader->behind_number, Py_XNewRef(end));
    reader->behind = next_offset;
    PyObject *fields[MESSAGE_FIELDS] = {
        Py_NewRef(reader->topic),
        content,
        tag,
        key ? key : Py_NewRef(Py_None),
        headers ? headers : Py_NewRef(Py_None),
        Py_NewRef(reader->partition),
        begin,
        end,
        PyLong_FromUnsignedLongLong(load_u64(head + ID_AT)),
        Py_NewRef(reader->appended),
        Py_NewRef(Py_None), /* deliver_at and delay_s: of messages to send */
        Py_NewRef(Py_None),
    };
    PyObject *message = named_tuple(reader->type, fields, MESSAGE_FIELDS);
    if (!message)
        return -1;
    int failed = PyList_Append(reader->out, message);
    Py_DECREF(message);
    return failed ? -1 : 1;
}

/* Append one verified record as it is; returns as append_message does. */
static int append_record(const reader_t *reader, const uint8_t *head)
{
    uint32_t length = load_u32(head), flag = load_u32(head + FLAG_AT);
    text_t body = {head + HEADER_BYTES, length}, tag, properties;
    long long offset, next_offset;
    if (__builtin_add_overflow(reader->base, (long long)(head - reader->data), &offset) ||
        __builtin_add_overflow(offset, HEADER_BYTES + (long long)length, &next_offset) ||
        (flag & TAG && !cut_field(&body, &tag)) ||
        (flag & PROPERTIES && !cut_field(&body, &properties)))
        return 0;
    PyObject *fields[RECORD_FIELDS] = {
        PyLong_FromLongLong(offset),
        PyLong_FromLongLong(next_offset),
        PyLong_FromUnsignedLongLong(load_u64(head + ID_AT)),
        PyLong_FromUnsignedLong(flag),
        flag & TAG ? PyBytes_FromStringAndSize((const char *)tag.data, (Py_ssize_t)tag.size)
                   : Py_NewRef(Py_None),
        flag & PROPERTIES
            ? PyBytes_FromStringAndSize((const char *)properties.data, (Py_ssize_t)properties.size)
            : Py_NewRef(Py_None),
        PyBytes_FromStringAndSize((const char *)body.data, (Py_ssize_t)body.size),
    };
    PyObject *record = named_tuple(reader->type, fields, RECORD_FIELDS);
    if (!record)
        return -1;
    int failed = PyList_Append(reader->out, record);
    Py_DECREF(record);
    return failed ? -1 : 1;
}

/* Which records a loop takes: messages with no other bits in their flags, and control records. */
typedef struct {
    uint32_t common, control, control_size;
} kinds_t;

/* Records that follow one another: what the checksums of the common ones and of the control records
 * among them cover. */
typedef struct {
    text_t messages[LANES], controls[LANES];
    int batches[LANES]; /* of each message: how many of the control records stand before it */
    int message_count, control_count;
    uint32_t digests[LANES]; /* of the messages */
    const uint8_t *damaged;  /* the head of the first control record that is; NULL: none */
} group_t;

static int differs(const uint8_t *head, uint32_t digest) { return memcmp(head + CHECKSUM_AT, &digest, 4); }

static void digest_group(group_t *group)
{
    uint32_t digests[LANES];
    digest_all(group->controls, group->control_count, digests);
    group->damaged = NULL;
    for (int i = group->control_count - 1; i >= 0; i--)
        if (differs(group->controls[i].data - HEADER_BYTES, digests[i]))
            group->damaged = group->controls[i].data - HEADER_BYTES;
    digest_all(group->messages, group->message_count, group->digests);
}

/* Take the next common records and control records from *position on into the group, with their
 * digests; return how many. *position comes to stand behind the last one. */
static int gather(const uint8_t *data, Py_ssize_t size, Py_ssize_t *position, const kinds_t *kinds,
                  group_t *group)
{
    group->message_count = group->control_count = 0;
    while (group->message_count < LANES && group->control_count < LANES &&
           *position <= size - HEADER_BYTES) {
        const uint8_t *head = data + *position;
        uint32_t length = load_u32(head), flag = load_u32(head + FLAG_AT);
        if ((Py_ssize_t)length > size - *position - HEADER_BYTES)
            break;
        if (!(flag & ~kinds->common)) {
            group->batches[group->message_count] = group->control_count;
            group->messages[group->message_count++] =
                (text_t){head + ID_AT, HEADER_BYTES - ID_AT + (size_t)length};
        } else if (flag == kinds->control && length == kinds->control_size && !load_u64(head + ID_AT))
            group->controls[group->control_count++] = (text_t){head + HEADER_BYTES, length};
        else
            break;
        Py_ssize_t end = *position + HEADER_BYTES + (Py_ssize_t)length;
        for (Py_ssize_t at = *position; at < end && at < size - LOADED_AHEAD; at += CACHE_LINE)
            __builtin_prefetch(data + at + LOADED_AHEAD);
        *position = end;
    }
    digest_group(group);
    return group->message_count + group->control_count;
}

static int check_reader(const reader_t *reader, PyObject *type)
{
    if (check_type(type) < 0)
        return -1;
    if (!PyUnicode_CheckExact(reader->topic) || !PyLong_CheckExact(reader->partition) ||
        !PyDict_CheckExact(reader->tags) || !PyList_CheckExact(reader->out)) {
        PyErr_SetString(PyExc_TypeError, "topic is str, partition int, tags a dict, out a list");
        return -1;
    }
    return 0;
}

/* Take the append time of the batch that a verified control record begins; -1 with an exception. */
static int enter_batch(reader_t *reader, const text_t *control)
{
    PyObject *appended = Py_None;
    if (control->size == CONTROL_PAYLOAD && control->data[0] == CONTROL_VERSION)
        appended = PyLong_FromUnsignedLongLong(load_u64(control->data + APPEND_TIME_AT));
    else
        Py_INCREF(appended);
    if (!appended)
        return -1;
    Py_SETREF(reader->appended, appended);
    return 0;
}

/* Append the messages of a group. Returns where to read on: behind the group if all is well. NULL with an
 * exception. */
static const uint8_t *append_group(reader_t *reader, const group_t *group, const uint8_t *behind)
{
    int entered = 0;
    for (int i = 0; i < group->message_count; i++) {
        const uint8_t *head = group->messages[i].data - ID_AT;
        int taken = 0;
        if (group->damaged && head > group->damaged)
            break;
        if (group->batches[i] > entered) {
            entered = group->batches[i];
            if (enter_batch(reader, &group->controls[entered - 1]) < 0)
                return NULL;
        }
        if (!differs(head, group->digests[i]))
            taken = reader->gives_records ? append_record(reader, head) : append_message(reader, head);
        if (taken < 0)
            return NULL;
        if (!taken) /* damaged, or of another kind: the caller looks closer */
            return head;
    }
    int intact = 0; /* control records before the damage, behind the last message */
    while (intact < group->control_count &&
           (!group->damaged || group->controls[intact].data - HEADER_BYTES < group->damaged))
        intact++;
    if (intact > entered && enter_batch(reader, &group->controls[intact - 1]) < 0)
        return NULL;
    return group->damaged ? group->damaged : behind;
}

PyDoc_STRVAR(decode_common_doc,
             "decode_common(data, position, base, topic, partition, message, tags, out, "
             "read_properties, control_flag, control_size, times=None, room=None, decompress=None, "
             "corrupt=None, /)\n--\n\n"
             "See vq.store.records.codec.");

/* Decode from a position on; NULL with an exception. */
static const uint8_t *decode_from(reader_t *reader, Py_ssize_t position, Py_ssize_t size,
                                  const kinds_t *kinds)
{
    for (;;) {
        group_t group;
        Py_ssize_t behind = position;
        if (!gather(reader->data, size, &behind, kinds, &group))
            return reader->data + behind;
        const uint8_t *end = append_group(reader, &group, reader->data + behind);
        if (end != reader->data + behind)
            return end;
        position = behind;
    }
}

/* Return the one element of a list, borrowed; None for no list. NULL with an exception. */
static PyObject *only_one(PyObject *list, const char *name)
{
    if (list == Py_None)
        return Py_None;
    if (PyList_CheckExact(list) && PyList_GET_SIZE(list) == 1)
        return PyList_GET_ITEM(list, 0);
    PyErr_Format(PyExc_TypeError, "%s is a list of one element, or None", name);
    return NULL;
}

/* Put a value, of which this takes the reference, into a list of one element. Code that ran meanwhile
 * may have changed the list. Returns -1 with an exception. */
static int give_back(PyObject *list, PyObject *value)
{
    if (!value)
        return -1;
    if (list != Py_None && PyList_GET_SIZE(list) == 1)
        return PyList_SetItem(list, 0, value);
    Py_DECREF(value);
    return 0;
}

static PyObject *decode_common(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data, *type, *times = Py_None, *rooms = Py_None, *time, *room;
    Py_ssize_t position;
    kinds_t kinds = {.common = TAG | PROPERTIES};
    reader_t reader = {.decompress = Py_None, .corrupt = Py_None};
    if (!PyArg_ParseTuple(args, "SnLOOOOOOII|OOOO:decode_common", &data, &position, &reader.base,
                          &reader.topic, &reader.partition, &type, &reader.tags, &reader.out,
                          &reader.read_properties, &kinds.control, &kinds.control_size, &times,
                          &rooms, &reader.decompress, &reader.corrupt))
        return NULL;
    if (check_reader(&reader, type) < 0 || !(time = only_one(times, "times")) ||
        !(room = only_one(rooms, "room")))
        return NULL;
    if (rooms != Py_None) {
        reader.room = PyLong_AsLongLong(room);
        if (reader.room == -1 && PyErr_Occurred())
            return NULL;
        kinds.common |= COMPRESSION;
    }
    Py_ssize_t size = PyBytes_GET_SIZE(data);
    if (position < 0 || position > size) {
        PyErr_SetString(PyExc_ValueError, "position is outside the data");
        return NULL;
    }
    reader.type = (PyTypeObject *)type;
    reader.data = (const uint8_t *)PyBytes_AS_STRING(data);
    reader.appended = Py_NewRef(time);
    const uint8_t *end = decode_from(&reader, position, size, &kinds);
    for (int i = 0; i < TEXTS_KEPT; i++)
        Py_XDECREF(reader.headers.made[i]);
    for (int i = 0; i < TAGS_KEPT; i++)
        Py_XDECREF(reader.last_tags.made[i]);
    Py_XDECREF(reader.behind_number);
    if (!end) {
        PyObject *error, *value, *trace;
        PyErr_Fetch(&error, &value, &trace);
        if (give_back(times, reader.appended) < 0)
            PyErr_Clear();
        PyErr_Restore(error, value, trace);
        return NULL;
    }
    if (give_back(times, reader.appended) < 0 ||
        (rooms != Py_None && give_back(rooms, PyLong_FromLongLong(reader.room)) < 0))
        return NULL;
    return PyLong_FromSsize_t(end - reader.data);
}

PyDoc_STRVAR(decompress_doc, "decompress(payload, kind, /)\n--\n\nSee vq.store.records.compression.");

static PyObject *decompress(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || !PyBytes_CheckExact(args[0]) || !PyLong_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "decompress takes bytes and a kind");
        return NULL;
    }
    int overflows;
    long kind = PyLong_AsLongAndOverflow(args[1], &overflows);
    int64_t size = -1;
    if (kind > 0 && kind <= COMPRESSION >> COMPRESSION_SHIFT)
        size = decompress_small((uint32_t)kind, (const uint8_t *)PyBytes_AS_STRING(args[0]),
                                (size_t)PyBytes_GET_SIZE(args[0]));
    if (size < 0)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)streams.content, (Py_ssize_t)size);
}

PyDoc_STRVAR(decode_records_doc,
             "decode_records(data, base, record, out, control_flag, control_size, /)\n--\n\n"
             "See vq.store.records.record.");

static PyObject *decode_records(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data, *type;
    kinds_t kinds = {.common = TAG | PROPERTIES};
    reader_t reader = {.gives_records = 1};
    if (!PyArg_ParseTuple(args, "SLOO!II:decode_records", &data, &reader.base, &type, &PyList_Type,
                          &reader.out, &kinds.control, &kinds.control_size))
        return NULL;
    if (check_type(type) < 0)
        return NULL;
    reader.type = (PyTypeObject *)type;
    reader.data = (const uint8_t *)PyBytes_AS_STRING(data);
    reader.appended = Py_NewRef(Py_None);
    const uint8_t *end = decode_from(&reader, 0, PyBytes_GET_SIZE(data), &kinds);
    Py_DECREF(reader.appended);
    return end ? PyLong_FromSsize_t(end - reader.data) : NULL;
}

/* Checking ------------------------------------------------------------------------------------- */

PyDoc_STRVAR(intact_doc,
             "intact(data, position, control_flag, control_size, /)\n--\n\nSee vq.store.records.codec.");

static PyObject *intact(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer data;
    Py_ssize_t position;
    kinds_t kinds = {.common = TAG | PROPERTIES};
    if (!PyArg_ParseTuple(args, "y*nII:intact", &data, &position, &kinds.control, &kinds.control_size))
        return NULL;
    if (position < 0 || position > data.len) {
        PyBuffer_Release(&data);
        PyErr_SetString(PyExc_ValueError, "position is outside the data");
        return NULL;
    }
    const uint8_t *damaged = NULL;
    group_t group;
    while (!damaged &&
           gather(data.buf, data.len, &position, &kinds, &group)) {
        damaged = group.damaged;
        for (int i = group.message_count - 1; i >= 0; i--) {
            const uint8_t *head = group.messages[i].data - ID_AT;
            if (differs(head, group.digests[i]) && (!damaged || head < damaged))
                damaged = head;
        }
    }
    if (damaged)
        position = damaged - (const uint8_t *)data.buf;
    PyBuffer_Release(&data);
    return PyLong_FromSsize_t(position);
}

typedef struct {
    unsigned long long payload_max, tag_max, properties_max;
    uint32_t flags_mask;
} bounds_t;

/* Whether the record whose header is at head, with size bytes of data from there on, is well-formed. */
static int is_well_formed(const uint8_t *head, size_t size, const bounds_t *bounds)
{
    uint32_t length = load_u32(head), flag = load_u32(head + FLAG_AT);
    text_t body = {head + HEADER_BYTES, length}, field;
    if (length > size - HEADER_BYTES || head[ID_AT] & 0x80 || flag & ~bounds->flags_mask)
        return 0;
    if (flag & TAG &&
        (!cut_field(&body, &field) || field.size > bounds->tag_max || !is_utf8(field.data, field.size)))
        return 0;
    if (flag & PROPERTIES && (!cut_field(&body, &field) || field.size > bounds->properties_max))
        return 0;
    return body.size <= bounds->payload_max;
}

PyDoc_STRVAR(well_formed_doc,
             "well_formed(data, count, payload_max, tag_max, properties_max, flags_mask, /)\n--\n\n"
             "See vq.store.records.codec.");

static PyObject *well_formed(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data;
    Py_ssize_t count, found = 0;
    unsigned int flags_mask;
    bounds_t bounds;
    if (!PyArg_ParseTuple(args, "SnKKKI:well_formed", &data, &count, &bounds.payload_max,
                          &bounds.tag_max, &bounds.properties_max, &flags_mask))
        return NULL;
    bounds.flags_mask = flags_mask;
    const uint8_t *start = (const uint8_t *)PyBytes_AS_STRING(data);
    size_t size = (size_t)PyBytes_GET_SIZE(data), position = 0;
    while (found < count && size - position >= HEADER_BYTES &&
           is_well_formed(start + position, size - position, &bounds)) {
        position += HEADER_BYTES + load_u32(start + position);
        found++;
    }
    return Py_BuildValue("nn", found, (Py_ssize_t)position);
}

/* The module ----------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"encode_records", (PyCFunction)(void (*)(void))encode_records, METH_FASTCALL, encode_records_doc},
    {"places", places, METH_VARARGS, places_doc},
    {"decode_common", decode_common, METH_VARARGS, decode_common_doc},
    {"decode_records", decode_records, METH_VARARGS, decode_records_doc},
    {"decompress", (PyCFunction)(void (*)(void))decompress, METH_FASTCALL, decompress_doc},
    {"intact", intact, METH_VARARGS, intact_doc},
    {"well_formed", well_formed, METH_VARARGS, well_formed_doc},
    {NULL, NULL, 0, NULL},
};

static int find_take(PyObject *module)
{
    (void)module;
    take_untracked = (PyObject * (*)(PyTypeObject *, Py_ssize_t))
        PyCapsule_Import("vq._message.take_untracked", 0);
    if (!take_untracked) /* it was not compiled */
        PyErr_Clear();
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)find_take}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_slots = module_slots,
    .m_name = "vq.store.records._codec",
    .m_doc = "The record codec's loops, compiled; see vq.store.records.codec.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__codec(void) { return PyModuleDef_Init(&definition); }
