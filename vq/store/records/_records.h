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
/* Keys; see vq/store/records/record.py. */
enum { KEY_FIELD = 0x0a, KEY_BYTES_FIELD = 0x32, KEY_INT_FIELD = 0x38, VARINT_BYTES_MAX = 10 };

typedef struct {
    const uint8_t *data;
    size_t size;
} text_t;

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
            i++;
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

#endif
