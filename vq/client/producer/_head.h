/* The head of a usual message with a key or headers, and the partition of its key.
 *
 * vq/client/producer/intake/stages.py makes the heads of all messages, and spread/partitioner.py
 * chooses the partitions of all keys. What is made here is the same, byte by byte. Usual is: text in
 * ASCII, a key of 1 to 127 bytes or of 64 bits, few headers, in all at most PROPERTIES_MAX bytes.
 */
#ifndef VQ_HEAD_H
#define VQ_HEAD_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* Flags of a record (vq/store/records/format.py), and fields of its properties (record.py). */
enum { FLAG_PROPERTIES = 2, KEY_FIELD = 0x0a, HEADER_FIELD = 0x12, KEY_BYTES_FIELD = 0x32,
       KEY_INT_FIELD = 0x38, NAME_FIELD = 0x0a, VALUE_FIELD = 0x12 };
enum { PROPERTIES_MAX = 1024, HEADERS_MAX = 16, SHORT_MAX = 127 };

typedef struct {
    const uint8_t *data;
    size_t size;
} bytes_t;

/* How the names of headers begin that only vq gives: vq.reserved.PREFIX. */
static const bytes_t reserved = {(const uint8_t *)"_vq.", 4};

typedef struct {
    bytes_t name, value;
} header_t;

typedef struct {
    uint8_t data[PROPERTIES_MAX];
    size_t size;
} properties_t;

/* Return whether an object is text of ASCII characters, and give its bytes. */
static int is_ascii(PyObject *text, bytes_t *bytes)
{
    if (!PyUnicode_CheckExact(text) || !PyUnicode_IS_COMPACT_ASCII(text))
        return 0;
    *bytes = (bytes_t){PyUnicode_DATA(text), (size_t)PyUnicode_GET_LENGTH(text)};
    return 1;
}

static void put(properties_t *to, const bytes_t *bytes)
{
    memcpy(to->data + to->size, bytes->data, bytes->size);
    to->size += bytes->size;
}

/* Put a field of up to SHORT_MAX bytes; 0: there is no room. */
static int put_short(properties_t *to, uint8_t field, const bytes_t *bytes)
{
    if (bytes->size > SHORT_MAX || to->size + 2 + bytes->size > PROPERTIES_MAX)
        return 0;
    to->data[to->size++] = field;
    to->data[to->size++] = (uint8_t)bytes->size;
    put(to, bytes);
    return 1;
}

/* Keys ----------------------------------------------------------------------------------------- */

/* CRC-32 of zlib; keys are short. */
static uint32_t crc_of(const bytes_t *bytes)
{
    static uint32_t table[256]; /* filled under the interpreter lock */
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t value = i;
            for (int bit = 0; bit < 8; bit++)
                value = value & 1 ? value >> 1 ^ UINT32_C(0xedb88320) : value >> 1;
            table[i] = value;
        }
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes->size; i++)
        crc = crc >> 8 ^ table[(crc ^ bytes->data[i]) & 0xff];
    return ~crc;
}

typedef struct {
    uint8_t field; /* 0: there is no key */
    bytes_t bytes;
    long long number;
} usual_key_t;

/* Read a key; 0 if it is not usual. */
static int read_key(PyObject *key, usual_key_t *read)
{
    read->field = 0;
    if (key == Py_None)
        return 1;
    if (PyLong_CheckExact(key)) {
        int overflows;
        read->field = KEY_INT_FIELD;
        read->number = PyLong_AsLongLongAndOverflow(key, &overflows);
        return !overflows;
    }
    if (PyBytes_CheckExact(key)) {
        read->field = KEY_BYTES_FIELD;
        read->bytes =
            (bytes_t){(const uint8_t *)PyBytes_AS_STRING(key), (size_t)PyBytes_GET_SIZE(key)};
    } else if (is_ascii(key, &read->bytes))
        read->field = KEY_FIELD;
    return read->field && read->bytes.size > 0 && read->bytes.size <= SHORT_MAX;
}

/* Return the partition of a key, of so many. */
static int partition_of(const usual_key_t *key, Py_ssize_t partitions)
{
    if (key->field != KEY_INT_FIELD)
        return (int)(crc_of(&key->bytes) % (uint32_t)partitions);
    long long rest = key->number % partitions;
    return (int)(rest < 0 ? rest + partitions : rest);
}

static int put_integer(properties_t *to, long long number)
{
    uint64_t rest = (uint64_t)number << 1 ^ (number < 0 ? UINT64_MAX : 0); /* zigzag */
    if (to->size + 11 > PROPERTIES_MAX)
        return 0;
    to->data[to->size++] = KEY_INT_FIELD;
    for (; rest > 0x7f; rest >>= 7)
        to->data[to->size++] = (uint8_t)(rest | 0x80);
    to->data[to->size++] = (uint8_t)rest;
    return 1;
}

/* Headers -------------------------------------------------------------------------------------- */

static int is_behind(const bytes_t *one, const bytes_t *other)
{
    size_t common = one->size < other->size ? one->size : other->size;
    int order = memcmp(one->data, other->data, common);
    return order > 0 || (!order && one->size > other->size);
}

static int begins_with(const bytes_t *text, const bytes_t *begin)
{
    return text->size >= begin->size && !memcmp(text->data, begin->data, begin->size);
}

/* Read headers in the order of their names; return how many, -1 if they are not usual. */
static int read_headers(PyObject *headers, header_t *read)
{
    Py_ssize_t position = 0;
    PyObject *name, *value;
    int count = 0;
    if (headers == Py_None)
        return 0;
    if (!PyDict_CheckExact(headers) || PyDict_GET_SIZE(headers) > HEADERS_MAX)
        return -1;
    while (PyDict_Next(headers, &position, &name, &value)) {
        header_t each;
        if (!is_ascii(name, &each.name) || !is_ascii(value, &each.value) || !each.name.size ||
            begins_with(&each.name, &reserved))
            return -1;
        int at = count++;
        for (; at > 0 && is_behind(&read[at - 1].name, &each.name); at--)
            read[at] = read[at - 1];
        read[at] = each;
    }
    for (int i = 1; i < count; i++)
        if (begins_with(&read[i].name, &read[i - 1].name))
            return -1; /* protobuf's libraries differ in the order of these */
    return count;
}

/* Put a header: an entry of a map, whose size takes one or two bytes. 0: there is no room. */
static int put_header(properties_t *to, const header_t *header)
{
    size_t size = 4 + header->name.size + header->value.size;
    if (header->name.size > SHORT_MAX || header->value.size > SHORT_MAX ||
        to->size + 3 + size > PROPERTIES_MAX)
        return 0;
    to->data[to->size++] = HEADER_FIELD;
    if (size > SHORT_MAX)
        to->data[to->size++] = (uint8_t)(size | 0x80);
    to->data[to->size++] = (uint8_t)(size > SHORT_MAX ? size >> 7 : size);
    return put_short(to, NAME_FIELD, &header->name) && put_short(to, VALUE_FIELD, &header->value);
}

/* Heads ---------------------------------------------------------------------------------------- */

/* Encode key and headers; 0 if they are not usual, or none. */
static int encode_properties(const usual_key_t *key, PyObject *headers, properties_t *to)
{
    header_t read[HEADERS_MAX];
    int count = read_headers(headers, read);
    to->size = 0;
    if (count < 0 || (key->field == KEY_FIELD && !put_short(to, KEY_FIELD, &key->bytes)))
        return 0;
    for (int i = 0; i < count; i++)
        if (!put_header(to, &read[i]))
            return 0;
    if (key->field == KEY_BYTES_FIELD && !put_short(to, KEY_BYTES_FIELD, &key->bytes))
        return 0;
    if (key->field == KEY_INT_FIELD && !put_integer(to, key->number))
        return 0;
    return to->size > 0;
}

/* Return the head that has these properties behind that of a tag, which is None without one. */
static PyObject *head_with(PyObject *of_tag, const properties_t *properties)
{
    long flag = FLAG_PROPERTIES;
    bytes_t tag = {(const uint8_t *)"", 0};
    if (of_tag != Py_None) {
        PyObject *before = PyTuple_GET_ITEM(of_tag, 1);
        flag |= PyLong_AsLong(PyTuple_GET_ITEM(of_tag, 0));
        tag = (bytes_t){(const uint8_t *)PyBytes_AS_STRING(before),
                        (size_t)PyBytes_GET_SIZE(before)};
    }
    PyObject *bytes =
        PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(tag.size + 4 + properties->size));
    PyObject *number = bytes ? PyLong_FromLong(flag) : NULL;
    PyObject *head = number ? PyTuple_New(2) : NULL;
    if (!head) {
        Py_XDECREF(bytes);
        Py_XDECREF(number);
        return NULL;
    }
    uint8_t *to = (uint8_t *)PyBytes_AS_STRING(bytes);
    memcpy(to, tag.data, tag.size);
    to += tag.size;
    to[0] = to[1] = 0; /* PROPERTIES_MAX has two bytes */
    to[2] = (uint8_t)(properties->size >> 8);
    to[3] = (uint8_t)properties->size;
    memcpy(to + 4, properties->data, properties->size);
    PyTuple_SET_ITEM(head, 0, number);
    PyTuple_SET_ITEM(head, 1, bytes);
    PyObject_GC_UnTrack(head); /* nothing in it can refer back to it */
    return head;
}

#endif
