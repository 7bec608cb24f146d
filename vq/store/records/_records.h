/* What the compiled loops over records share: the layout of a record, numbers, texts.
 *
 * vq/store/records/format.py is the home of the layout; all numbers are big-endian:
 *
 *   length u32 | checksum 4 bytes | id u64 | flag u32
 *     | [tag length u32 | tag] | [properties length u32 | properties] | payload
 */
#ifndef VQ_RECORDS_H
#define VQ_RECORDS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "written for little-endian machines; elsewhere the Python functions do the work"
#endif

/* Not every module uses every function. */
#define SHARED static inline __attribute__((unused))

enum { HEADER_BYTES = 20, CHECKSUM_AT = 4, ID_AT = 8, FLAG_AT = 16, TAG = 1, PROPERTIES = 2 };
/* Properties; see vq/store/records/record.py for the keys. A header is an entry of a name and a value. */
enum { KEY_FIELD = 0x0a, KEY_BYTES_FIELD = 0x32, KEY_INT_FIELD = 0x38, VARINT_BYTES_MAX = 10 };
enum { HEADERS_FIELD = 0x12, ENTRY_KEY = 0x0a, ENTRY_VALUE = 0x12, LENGTH_BYTES_MAX = 3 };
enum { KIND_NONE, KIND_TEXT, KIND_BYTES, KIND_INT };

typedef struct {
    const uint8_t *data;
    size_t size;
} text_t;

/* The key and the headers of a record; all texts lie in the record. */
typedef struct {
    int kind;       /* of the key */
    text_t key;     /* if it is a text or bytes */
    int64_t number; /* if it is an integer */
    text_t headers; /* all entries, in rising order of their names */
    size_t entries;
} properties_t;

SHARED uint32_t load_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return __builtin_bswap32(value);
}

SHARED uint64_t load_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, 8);
    return __builtin_bswap64(value);
}

SHARED void store_u32(uint8_t *at, uint32_t value)
{
    value = __builtin_bswap32(value);
    memcpy(at, &value, 4);
}

SHARED void store_u64(uint8_t *at, uint64_t value)
{
    value = __builtin_bswap64(value);
    memcpy(at, &value, 8);
}

/* Cut a field with its length before it off the front of a body. Returns 0 if it is longer than that. */
SHARED int cut_field(text_t *body, text_t *field)
{
    if (body->size < 4 || load_u32(body->data) > body->size - 4)
        return 0;
    *field = (text_t){body->data + 4, load_u32(body->data)};
    body->data += 4 + field->size;
    body->size -= 4 + field->size;
    return 1;
}

/* Whether Python's strict decoder takes these bytes: no overlong forms, no surrogates. */
SHARED int is_utf8(const uint8_t *text, size_t size)
{
    for (size_t i = 0; i < size;) {
        uint8_t first = text[i], low = 0x80, high = 0xbf;
        size_t more;
        if (first < 0x80) {
            uint64_t eight;
            i++;
            while (size - i >= 8 && (memcpy(&eight, text + i, 8), !(eight & 0x8080808080808080)))
                i += 8;
            continue;
        }
        if (first >= 0xc2 && first <= 0xdf) {
            more = 1;
        } else if (first >= 0xe0 && first <= 0xef) {
            more = 2;
            low = first == 0xe0 ? 0xa0 : low;
            high = first == 0xed ? 0x9f : high;
        } else if (first >= 0xf0 && first <= 0xf4) {
            more = 3;
            low = first == 0xf0 ? 0x90 : low;
            high = first == 0xf4 ? 0x8f : high;
        } else {
            return 0;
        }
        if (size - i <= more || text[i + 1] < low || text[i + 1] > high)
            return 0;
        for (size_t k = 2; k <= more; k++)
            if ((text[i + k] & 0xc0) != 0x80)
                return 0;
        i += more + 1;
    }
    return 1;
}

/* Cut a varint of up to 64 bits off the front of a text. Returns 0 if there is none. */
SHARED int cut_varint(text_t *from, uint64_t *value)
{
    *value = 0;
    for (size_t at = 0; at < from->size && at < VARINT_BYTES_MAX; at++) {
        uint8_t byte = from->data[at];
        if (at == VARINT_BYTES_MAX - 1 && byte > 1)
            return 0;
        *value |= (uint64_t)(byte & 0x7f) << 7 * at;
        if (byte < 0x80) {
            from->data += at + 1;
            from->size -= at + 1;
            return 1;
        }
    }
    return 0;
}

/* Cut a text with the varint of its length before it off the front. Returns 0 if there is none. */
SHARED int cut_short(text_t *from, text_t *text)
{
    size_t size = 0, at = 0;
    for (;; at++) {
        if (at == LENGTH_BYTES_MAX || at == from->size)
            return 0;
        size |= (size_t)(from->data[at] & 0x7f) << 7 * at;
        if (from->data[at] < 0x80)
            break;
    }
    at++;
    if (size > from->size - at)
        return 0;
    *text = (text_t){from->data + at, size};
    from->data += at + size;
    from->size -= at + size;
    return 1;
}

/* Take one header apart: its name, then its value, and nothing else. */
SHARED int cut_entry(text_t *from, text_t *name, text_t *text)
{
    text_t entry;
    if (!from->size || from->data[0] != HEADERS_FIELD)
        return 0;
    from->data++, from->size--;
    if (!cut_short(from, &entry) || !entry.size || entry.data[0] != ENTRY_KEY)
        return 0;
    entry.data++, entry.size--;
    if (!cut_short(&entry, name) || !entry.size || entry.data[0] != ENTRY_VALUE)
        return 0;
    entry.data++, entry.size--;
    return cut_short(&entry, text) && !entry.size;
}

SHARED int is_below(const text_t *one, const text_t *other)
{
    size_t least = one->size < other->size ? one->size : other->size;
    int order = memcmp(one->data, other->data, least);
    return order < 0 || (order == 0 && one->size < other->size);
}

/* Take properties apart: a key at most, and headers in rising order of their names, as vq writes
 * them. Returns 0 for anything else. */
SHARED int read_properties(text_t from, properties_t *found)
{
    text_t name, text, last = {from.data, 0};
    *found = (properties_t){.key = last, .headers = last};
    while (from.size) {
        uint8_t field = from.data[0];
        if (field == HEADERS_FIELD) {
            const uint8_t *here = from.data;
            if (!cut_entry(&from, &name, &text) || !is_utf8(name.data, name.size) ||
                !is_utf8(text.data, text.size))
                return 0;
            if (!found->entries)
                found->headers.data = here;
            else if (here != found->headers.data + found->headers.size || !is_below(&last, &name))
                return 0;
            found->headers.size = (size_t)(from.data - found->headers.data);
            found->entries++;
            last = name;
            continue;
        }
        if (found->kind)
            return 0;
        from.data++, from.size--;
        if (field == KEY_INT_FIELD) {
            uint64_t zigzag;
            if (!cut_varint(&from, &zigzag))
                return 0;
            found->number = (int64_t)(zigzag >> 1 ^ (~(zigzag & 1) + 1));
            found->kind = KIND_INT;
        } else if (field == KEY_FIELD || field == KEY_BYTES_FIELD) {
            if (!cut_short(&from, &found->key) || (field == KEY_FIELD && !found->key.size))
                return 0;
            if (field == KEY_FIELD && !is_utf8(found->key.data, found->key.size))
                return 0;
            found->kind = field == KEY_FIELD ? KIND_TEXT : KIND_BYTES;
        } else {
            return 0;
        }
    }
    return 1;
}

#endif
