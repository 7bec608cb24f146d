/* The loop that takes verified records apart into columns, compiled.
 *
 * vq/store/records/columns.py has the same function in Python: it is the reference and what runs where this
 * could not be built; one suite of tests holds both against each other. Columns are laid out as
 * Apache Arrow has them: little-endian numbers, texts back to back with the offsets of their ends,
 * and one bit for each row that is not null.
 *
 * No Python object is made for a message, and no Python code runs in here: a record that needs more
 * than this loop knows ends it, and the caller handles that record.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "_records.h"

enum { DIGITS_MAX = 24, TAGS_MAX = 64 };

/* One bytearray that grows. */
typedef struct {
    PyObject *array; /* borrowed; NULL: nobody wants this column */
    uint8_t *data;
    size_t size, capacity;
} buffer_t;

/* Their order is that of the tuple of vq.store.records.columns. */
enum {
    OFFSET, ID, TIME,
    TAG_VALID, TAG_ENDS, TAG_DATA,
    KEY_VALID, KEY_ENDS, KEY_DATA, KEY_KIND,
    HEADERS_VALID, HEADERS_ENDS, NAME_ENDS, NAME_DATA, TEXT_ENDS, TEXT_DATA,
    VALUE_ENDS, VALUE_DATA,
    BUFFERS
};

typedef struct {
    buffer_t buffers[BUFFERS];
    size_t rows, entries;
} table_t;

typedef struct {
    unsigned long long low, high, id_low, id_high;
    text_t tags[TAGS_MAX];
    int tag_count; /* -1: any message */
    uint32_t known_flags, control_flag;
    long long id_shift, id_epoch_ms;
} wanted_t;

/* One message, taken apart; all texts lie in the record. */
typedef struct {
    unsigned long long offset, id;
    text_t tag, value;
    properties_t properties; /* an integer as a key is in digits, too, which are its text */
    int has_tag;
    char digits[DIGITS_MAX];
} row_t;

/* Growing ---------------------------------------------------------------------------------------- */

static int grow(buffer_t *buffer, size_t more)
{
    size_t capacity = buffer->capacity + buffer->capacity / 2 + more + 256;
    if (PyByteArray_Resize(buffer->array, (Py_ssize_t)capacity) < 0)
        return -1;
    buffer->data = (uint8_t *)PyByteArray_AS_STRING(buffer->array);
    buffer->capacity = capacity;
    return 0;
}

static inline int put(buffer_t *buffer, const void *data, size_t size)
{
    if (!buffer->array)
        return 0;
    if (buffer->capacity - buffer->size < size && grow(buffer, size) < 0)
        return -1;
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
    return 0;
}

static inline int put_u64(buffer_t *buffer, uint64_t number) { return put(buffer, &number, 8); }

/* Append a text and where it ends. */
static inline int put_text(buffer_t *ends, buffer_t *data, const text_t *text)
{
    if (!ends->array)
        return 0;
    if (put(data, text->data, text->size) < 0)
        return -1;
    int32_t end = (int32_t)data->size;
    return put(ends, &end, 4);
}

static inline int put_bit(buffer_t *bits, size_t row, int bit)
{
    uint8_t none = 0;
    if (!bits->array)
        return 0;
    if (row % 8 == 0 && put(bits, &none, 1) < 0)
        return -1;
    bits->data[row / 8] |= (uint8_t)(bit << row % 8);
    return 0;
}

/* Rows ------------------------------------------------------------------------------------------- */

static int is_wanted_tag(const wanted_t *wanted, const row_t *row)
{
    if (wanted->tag_count < 0)
        return 1;
    if (row->has_tag)
        for (int i = 0; i < wanted->tag_count; i++)
            if (wanted->tags[i].size == row->tag.size &&
                !memcmp(wanted->tags[i].data, row->tag.data, row->tag.size))
                return 1;
    return 0;
}

/* Take a message apart. Returns 0 if the caller must look closer at it. */
static int read_row(const uint8_t *head, uint32_t flag, row_t *row)
{
    text_t body = {head + HEADER_BYTES, load_u32(head)}, field;
    row->has_tag = 0;
    row->tag = (text_t){body.data, 0};
    row->properties = (properties_t){.key = row->tag, .headers = row->tag};
    if (flag & TAG) {
        if (!cut_field(&body, &row->tag) || !is_utf8(row->tag.data, row->tag.size))
            return 0;
        row->has_tag = 1;
    }
    if (flag & PROPERTIES && (!cut_field(&body, &field) || !read_properties(field, &row->properties)))
        return 0;
    if (row->properties.kind == KIND_INT)
        row->properties.key =
            (text_t){(const uint8_t *)row->digits,
                     (size_t)snprintf(row->digits, sizeof row->digits, "%lld",
                                      (long long)row->properties.number)};
    row->value = body;
    return 1;
}

static int put_headers(table_t *table, const row_t *row)
{
    buffer_t *b = table->buffers;
    text_t from = row->properties.headers, name, text;
    if (!b[HEADERS_ENDS].array)
        return 0;
    for (size_t i = 0; i < row->properties.entries; i++) {
        cut_entry(&from, &name, &text);
        if (put_text(&b[NAME_ENDS], &b[NAME_DATA], &name) < 0 ||
            put_text(&b[TEXT_ENDS], &b[TEXT_DATA], &text) < 0)
            return -1;
    }
    table->entries += row->properties.entries;
    int32_t end = (int32_t)table->entries;
    return put(&b[HEADERS_ENDS], &end, 4) < 0 ||
                   put_bit(&b[HEADERS_VALID], table->rows, row->properties.entries > 0) < 0
               ? -1
               : 0;
}

static int put_row(table_t *table, const wanted_t *wanted, const row_t *row)
{
    buffer_t *b = table->buffers;
    uint8_t kind = (uint8_t)row->properties.kind;
    uint64_t time_us = ((row->id >> wanted->id_shift) + (uint64_t)wanted->id_epoch_ms) * 1000;
    if (put_u64(&b[OFFSET], row->offset) < 0 || put_u64(&b[ID], row->id) < 0 ||
        put_u64(&b[TIME], time_us) < 0 || put_text(&b[TAG_ENDS], &b[TAG_DATA], &row->tag) < 0 ||
        put_bit(&b[TAG_VALID], table->rows, row->has_tag) < 0 ||
        put_text(&b[KEY_ENDS], &b[KEY_DATA], &row->properties.key) < 0 ||
        put_bit(&b[KEY_VALID], table->rows, kind != KIND_NONE) < 0 ||
        put(&b[KEY_KIND], &kind, 1) < 0 || put_headers(table, row) < 0 ||
        put_text(&b[VALUE_ENDS], &b[VALUE_DATA], &row->value) < 0)
        return -1;
    table->rows++;
    return 0;
}

/* Take apart the records in [position, end) of data, as far as they are of the common kinds. Returns
 * where that ends, or -1 with an exception. */
static Py_ssize_t fill(table_t *table, const wanted_t *wanted, const uint8_t *data, Py_ssize_t position,
                       Py_ssize_t end, unsigned long long base)
{
    while (end - position >= HEADER_BYTES) {
        const uint8_t *head = data + position;
        uint32_t length = load_u32(head), flag = load_u32(head + FLAG_AT);
        Py_ssize_t next = position + HEADER_BYTES + (Py_ssize_t)length;
        row_t row = {.offset = base + (unsigned long long)position, .id = load_u64(head + ID_AT)};
        if (next > end)
            break;
        if (flag != wanted->control_flag) {
            if (flag & ~wanted->known_flags || row.id >> 63 || !read_row(head, flag, &row))
                break;
            if (row.offset >= wanted->low && row.offset < wanted->high && row.id >= wanted->id_low &&
                row.id < wanted->id_high && is_wanted_tag(wanted, &row) &&
                put_row(table, wanted, &row) < 0)
                return -1;
        }
        position = next;
    }
    return position;
}

/* The function ----------------------------------------------------------------------------------- */

static int open_buffers(table_t *table, PyObject *columns)
{
    if (PyTuple_GET_SIZE(columns) != BUFFERS) {
        PyErr_Format(PyExc_ValueError, "columns are a tuple of %d", BUFFERS);
        return -1;
    }
    for (int i = 0; i < BUFFERS; i++) {
        PyObject *array = PyTuple_GET_ITEM(columns, i);
        buffer_t *buffer = &table->buffers[i];
        *buffer = (buffer_t){NULL, NULL, 0, 0};
        if (array == Py_None)
            continue;
        if (!PyByteArray_CheckExact(array)) {
            PyErr_SetString(PyExc_TypeError, "a column is a bytearray or None");
            return -1;
        }
        buffer->array = array;
        buffer->data = (uint8_t *)PyByteArray_AS_STRING(array);
        buffer->size = buffer->capacity = (size_t)PyByteArray_GET_SIZE(array);
    }
    static const int groups[][3] = {{TAG_VALID, TAG_ENDS, TAG_DATA}, {KEY_VALID, KEY_ENDS, KEY_DATA},
                                    {HEADERS_VALID, HEADERS_ENDS, NAME_ENDS},
                                    {NAME_DATA, TEXT_ENDS, TEXT_DATA}, {NAME_ENDS, NAME_DATA, TEXT_ENDS},
                                    {VALUE_ENDS, VALUE_DATA, VALUE_DATA}};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        for (int k = 1; k < 3; k++)
            if (!table->buffers[groups[i][0]].array != !table->buffers[groups[i][k]].array) {
                PyErr_SetString(PyExc_ValueError, "a column needs all of its buffers");
                return -1;
            }
    size_t bits = (table->rows + 7) / 8;
    const int valid[] = {TAG_VALID, KEY_VALID, HEADERS_VALID};
    for (size_t i = 0; i < sizeof valid / sizeof *valid; i++)
        if (table->buffers[valid[i]].array && table->buffers[valid[i]].size != bits) {
            PyErr_SetString(PyExc_ValueError, "the bits of a column are not those of its rows");
            return -1;
        }
    size_t names = table->buffers[NAME_ENDS].size / 4; /* the first end is 0 */
    table->entries = names ? names - 1 : 0;
    return 0;
}

/* Give the bytearrays their real sizes; also after an error, which stays. */
static int close_buffers(table_t *table)
{
    PyObject *type, *value, *trace;
    int failed = 0;
    PyErr_Fetch(&type, &value, &trace);
    for (int i = 0; i < BUFFERS; i++) {
        buffer_t *buffer = &table->buffers[i];
        if (buffer->array && buffer->size != buffer->capacity &&
            PyByteArray_Resize(buffer->array, (Py_ssize_t)buffer->size) < 0)
            failed = -1;
    }
    if (type)
        PyErr_Restore(type, value, trace);
    return failed;
}

static int read_tags(wanted_t *wanted, PyObject *tags)
{
    wanted->tag_count = -1;
    if (tags == Py_None)
        return 0;
    if (!PyTuple_CheckExact(tags) || PyTuple_GET_SIZE(tags) > TAGS_MAX) {
        PyErr_Format(PyExc_ValueError, "tags are None or a tuple of at most %d", TAGS_MAX);
        return -1;
    }
    wanted->tag_count = (int)PyTuple_GET_SIZE(tags);
    for (int i = 0; i < wanted->tag_count; i++) {
        PyObject *tag = PyTuple_GET_ITEM(tags, i);
        if (!PyBytes_CheckExact(tag)) {
            PyErr_SetString(PyExc_TypeError, "a tag is bytes");
            return -1;
        }
        wanted->tags[i] =
            (text_t){(const uint8_t *)PyBytes_AS_STRING(tag), (size_t)PyBytes_GET_SIZE(tag)};
    }
    return 0;
}

PyDoc_STRVAR(fill_doc, "fill(data, position, end, base, rows, columns, low, high, id_low, id_high, tags, "
                       "known_flags, control_flag, id_shift, id_epoch_ms, /)\n--\n\n"
                       "See vq.store.records.columns.");

static PyObject *fill_columns(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data, *columns, *tags;
    Py_ssize_t position, end, rows;
    unsigned long long base;
    table_t table;
    wanted_t wanted;
    unsigned int known_flags, control_flag;
    if (!PyArg_ParseTuple(args, "SnnKnO!KKKKOIILL:fill", &data, &position, &end, &base, &rows,
                          &PyTuple_Type, &columns, &wanted.low, &wanted.high, &wanted.id_low,
                          &wanted.id_high, &tags, &known_flags, &control_flag, &wanted.id_shift,
                          &wanted.id_epoch_ms))
        return NULL;
    /* Every end in a column has 31 bits; integers as digits take more space than in a record. */
    if (position < 0 || position > end || end > PyBytes_GET_SIZE(data) || rows < 0 ||
        end - position > INT32_MAX / 16) {
        PyErr_SetString(PyExc_ValueError, "position, end or rows are outside their range");
        return NULL;
    }
    if (wanted.id_shift < 0 || wanted.id_shift > 63) {
        PyErr_SetString(PyExc_ValueError, "id_shift is outside [0, 63]");
        return NULL;
    }
    wanted.known_flags = known_flags;
    wanted.control_flag = control_flag;
    table.rows = (size_t)rows;
    if (read_tags(&wanted, tags) < 0 || open_buffers(&table, columns) < 0)
        return NULL;
    for (int i = 0; i < BUFFERS; i++)
        if (table.buffers[i].size > INT32_MAX / 2) {
            PyErr_SetString(PyExc_ValueError, "a column is larger than 1 GiB");
            return NULL;
        }
    position = fill(&table, &wanted, (const uint8_t *)PyBytes_AS_STRING(data), position, end, base);
    if (close_buffers(&table) < 0 || position < 0)
        return NULL;
    return Py_BuildValue("nn", position, (Py_ssize_t)table.rows);
}

/* The module ----------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"fill", fill_columns, METH_VARARGS, fill_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vq.store.records._columns",
    .m_doc = "Records taken apart into columns, compiled; see vq.store.records.columns.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__columns(void) { return PyModuleDef_Init(&definition); }
