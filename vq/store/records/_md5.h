/* The first four bytes of the MD5 (RFC 1321) of many texts: the checksums of messages.
 *
 * MD5 of one text is a chain in which every step waits for the one before it; sixteen texts side by
 * side in vector registers take little more time than two.
 */
#ifndef VQ_MD5_H
#define VQ_MD5_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "_records.h"

enum { LANES = 16, LANES_WORTH_IT = 4, BLOCK = 64 };

typedef uint32_t lanes_t __attribute__((vector_size(4 * LANES)));

/* Wider registers where the processor has them, found out when the module is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_THIS_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_THIS_PROCESSOR
#endif

#define ROTATE(x, n) (((x) << (n)) | ((x) >> (32 - (n))))
#define F(x, y, z) ((z) ^ ((x) & ((y) ^ (z))))
/* No bit is in both parts, so they are added: the first one does not wait for the step before. */
#define G(x, y, z) (((y) & ~(z)) + ((x) & (z)))
#define H(x, y, z) ((x) ^ (y) ^ (z))
#define I(x, y, z) ((y) ^ ((x) | ~(z)))
#define STEP(f, a, b, c, d, word, shift, sine)                                                         \
    a += (word) + (sine);                                                                              \
    a += f(b, c, d);                                                                                   \
    a = ROTATE(a, shift) + b
#define FOUR(f, i, j, k, l, s1, s2, s3, s4, number)                                                    \
    STEP(f, a, b, c, d, x[i], s1, sines[number]);                                                      \
    STEP(f, d, a, b, c, x[j], s2, sines[number + 1]);                                                  \
    STEP(f, c, d, a, b, x[k], s3, sines[number + 2]);                                                  \
    STEP(f, b, c, d, a, x[l], s4, sines[number + 3])

static const uint32_t SINES[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a,
    0xa8304613, 0xfd469501, 0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be,
    0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821, 0xf61e2562, 0xc040b340,
    0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8,
    0x676f02d9, 0x8d2a4c8a, 0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c,
    0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70, 0x289b7ec6, 0xeaa127fa,
    0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92,
    0xffeff47d, 0x85845dd1, 0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1,
    0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
};

/* The 64 steps of RFC 1321, section 3.4, for one message or for several in lanes. */
#define COMPRESS(name, word_t)                                                                         \
    static inline __attribute__((always_inline)) void name(word_t state[4], const word_t x[16],        \
                                                           const uint32_t *sines)                      \
    {                                                                                                  \
        word_t a = state[0], b = state[1], c = state[2], d = state[3];                                 \
        FOUR(F, 0, 1, 2, 3, 7, 12, 17, 22, 0);                                                         \
        FOUR(F, 4, 5, 6, 7, 7, 12, 17, 22, 4);                                                         \
        FOUR(F, 8, 9, 10, 11, 7, 12, 17, 22, 8);                                                       \
        FOUR(F, 12, 13, 14, 15, 7, 12, 17, 22, 12);                                                    \
        FOUR(G, 1, 6, 11, 0, 5, 9, 14, 20, 16);                                                        \
        FOUR(G, 5, 10, 15, 4, 5, 9, 14, 20, 20);                                                       \
        FOUR(G, 9, 14, 3, 8, 5, 9, 14, 20, 24);                                                        \
        FOUR(G, 13, 2, 7, 12, 5, 9, 14, 20, 28);                                                       \
        FOUR(H, 5, 8, 11, 14, 4, 11, 16, 23, 32);                                                      \
        FOUR(H, 1, 4, 7, 10, 4, 11, 16, 23, 36);                                                       \
        FOUR(H, 13, 0, 3, 6, 4, 11, 16, 23, 40);                                                       \
        FOUR(H, 9, 12, 15, 2, 4, 11, 16, 23, 44);                                                      \
        FOUR(I, 0, 7, 14, 5, 6, 10, 15, 21, 48);                                                       \
        FOUR(I, 12, 3, 10, 1, 6, 10, 15, 21, 52);                                                      \
        FOUR(I, 8, 15, 6, 13, 6, 10, 15, 21, 56);                                                      \
        FOUR(I, 4, 11, 2, 9, 6, 10, 15, 21, 60);                                                       \
        state[0] += a;                                                                                 \
        state[1] += b;                                                                                 \
        state[2] += c;                                                                                 \
        state[3] += d;                                                                                 \
    }

COMPRESS(compress_one, uint32_t)
COMPRESS(compress_lanes, lanes_t)

static const uint32_t START[4] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};

static inline size_t blocks_of(size_t size) { return (size + 8) / BLOCK + 1; }

/* Copy fewer than BLOCK bytes, without a call. */
static inline void copy_few(uint8_t *to, const uint8_t *from, size_t size)
{
    if (size >= 16) {
        for (size_t at = 0; at < size - 16; at += 16)
            memcpy(to + at, from + at, 16);
        memcpy(to + size - 16, from + size - 16, 16);
    } else if (size >= 8) {
        memcpy(to, from, 8);
        memcpy(to + size - 8, from + size - 8, 8);
    } else
        for (size_t at = 0; at < size; at++)
            to[at] = from[at];
}

/* Write the last one or two blocks of a text: its end, the bit 1, zeros, its length in bits. */
static inline __attribute__((always_inline)) void pad(const text_t *text, uint8_t tail[2 * BLOCK])
{
    static const uint8_t zeros[16];
    size_t rest = text->size % BLOCK;
    size_t end = rest + 9 <= BLOCK ? BLOCK : 2 * BLOCK;
    uint64_t bits = (uint64_t)text->size * 8;
    for (int i = 0; i < 2 * BLOCK; i += 16) /* of a size that the compiler knows: a call takes longer */
        memcpy(tail + i, zeros, 16);
    copy_few(tail, text->data + text->size - rest, rest);
    tail[rest] = 0x80;
    memcpy(tail + end - 8, &bits, 8);
}

static inline const uint8_t *block_at(const text_t *text, const uint8_t *tail, size_t number)
{
    size_t whole = text->size / BLOCK;
    return number < whole ? text->data + number * BLOCK : tail + (number - whole) * BLOCK;
}

/* Return the first four bytes of the MD5 of one text, as they stand in memory. */
static uint32_t digest_one(const text_t *text)
{
    uint8_t tail[2 * BLOCK];
    uint32_t state[4] = {START[0], START[1], START[2], START[3]}, x[16];
    pad(text, tail);
    for (size_t number = 0, count = blocks_of(text->size); number < count; number++) {
        memcpy(x, block_at(text, tail, number), BLOCK);
        compress_one(state, x, SINES);
    }
    return state[0];
}

typedef uint32_t four_t __attribute__((vector_size(16)));

#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)
#define PICK(one, other, a, b, c, d) __builtin_shufflevector(one, other, a, b, c, d)
#else
#define PICK(one, other, a, b, c, d) __builtin_shuffle(one, other, (four_t){a, b, c, d})
#endif

static inline four_t four_at(const uint8_t *at)
{
    four_t four;
    memcpy(&four, at, sizeof four);
    return four;
}

/* Put one block of each lane into words side by side, four by four: word by word takes longer than the
 * steps of MD5. */
static inline __attribute__((always_inline)) void gather_words(const uint8_t *const blocks[LANES],
                                                               lanes_t x[16])
{
    for (int lane = 0; lane < LANES; lane += 4)
        for (int word = 0; word < 16; word += 4) {
            four_t a = four_at(blocks[lane] + 4 * word), b = four_at(blocks[lane + 1] + 4 * word);
            four_t c = four_at(blocks[lane + 2] + 4 * word), d = four_at(blocks[lane + 3] + 4 * word);
            four_t ab = PICK(a, b, 0, 4, 1, 5), cd = PICK(c, d, 0, 4, 1, 5);
            four_t ab_behind = PICK(a, b, 2, 6, 3, 7), cd_behind = PICK(c, d, 2, 6, 3, 7);
            four_t words[4] = {PICK(ab, cd, 0, 1, 4, 5), PICK(ab, cd, 2, 3, 6, 7),
                               PICK(ab_behind, cd_behind, 0, 1, 4, 5),
                               PICK(ab_behind, cd_behind, 2, 3, 6, 7)};
            for (int i = 0; i < 4; i++)
                memcpy((uint8_t *)&x[word + i] + 4 * lane, &words[i], sizeof words[i]);
        }
}

/* The same for LANES texts of similar size, side by side. A lane that has ended goes on over its last
 * block; what it gave was kept. */
FOR_THIS_PROCESSOR
static void digest_lanes(const text_t texts[LANES], size_t blocks_max, uint32_t digests[LANES])
{
    uint8_t tails[LANES][2 * BLOCK];
    size_t counts[LANES], whole_min = SIZE_MAX;
    lanes_t state[4], x[16];
    /* Read from memory: as constants in the code they take two more instructions a step. */
    const uint32_t *sines = SINES;
    __asm__("" : "+r"(sines));
    for (int lane = 0; lane < LANES; lane++) {
        size_t whole = texts[lane].size / BLOCK;
        pad(&texts[lane], tails[lane]);
        counts[lane] = blocks_of(texts[lane].size);
        whole_min = whole < whole_min ? whole : whole_min;
    }
    for (int i = 0; i < 4; i++)
        state[i] = (lanes_t){0} + START[i];
    for (size_t number = 0; number < blocks_max; number++) {
        const uint8_t *blocks[LANES];
        uint32_t found[LANES];
        int is_whole = number < whole_min; /* this block of each lane, so that none ends */
        for (int lane = 0; is_whole && lane < LANES; lane++)
            blocks[lane] = texts[lane].data + number * BLOCK;
        for (int lane = 0; !is_whole && lane < LANES; lane++) {
            size_t own = number < counts[lane] ? number : counts[lane] - 1;
            blocks[lane] = block_at(&texts[lane], tails[lane], own);
        }
        gather_words(blocks, x);
        compress_lanes(state, x, sines);
        if (is_whole)
            continue;
        memcpy(found, &state[0], sizeof found);
        for (int lane = 0; lane < LANES; lane++)
            if (number + 1 == counts[lane])
                digests[lane] = found[lane];
    }
}

/* The same for up to LANES texts of any size. */
static void digest_some(const text_t *texts, ptrdiff_t count, uint32_t *digests)
{
    text_t group[LANES];
    uint32_t found[LANES];
    size_t most = 0, sum = 0;
    for (ptrdiff_t i = 0; i < count; i++) {
        size_t blocks = blocks_of(texts[i].size);
        most = blocks > most ? blocks : most;
        sum += blocks;
    }
    /* Few texts, or one long text among short ones: most lanes would idle. */
    if (count < LANES_WORTH_IT || most * (size_t)LANES_WORTH_IT > sum) {
        for (ptrdiff_t i = 0; i < count; i++)
            digests[i] = digest_one(&texts[i]);
        return;
    }
    for (ptrdiff_t i = 0; i < LANES; i++)
        group[i] = texts[i < count ? i : count - 1];
    digest_lanes(group, most, found);
    memcpy(digests, found, (size_t)count * sizeof *found);
}

/* Fill digests with the first four bytes of each text's MD5. */
static void digest_all(const text_t *texts, ptrdiff_t count, uint32_t *digests)
{
    for (ptrdiff_t i = 0; i < count; i += LANES)
        digest_some(texts + i, count - i < LANES ? count - i : LANES, digests + i);
}

#endif
