/* Small compressed contents, decompressed by the libraries of the system where it has them.
 *
 * A library's Python package makes objects, takes and gives up the lock, and allocates a state for each
 * stream: for a small content that is more than half of the time. The libraries are looked for by the
 * names that their stable interfaces have (libz.so.1 is the one that Python's own zlib uses), and
 * what they need is declared here, so a build needs none of them. Where one is missing, and for
 * whatever is not a whole small stream, vq/store/records/compression.py does the work: it is the
 * reference, has the bounds, and says what is wrong.
 *
 * Nothing of these states is shared between threads: the interpreter's lock is held.
 */
#ifndef VQ_STREAMS_H
#define VQ_STREAMS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__linux__)
#include <dlfcn.h>
/* A library of its own before glibc 2.34, which Python has loaded. */
#pragma weak dlopen
#pragma weak dlsym
#define HAS_LIBRARIES (dlopen && dlsym)
#else
#define HAS_LIBRARIES 0
#define RTLD_NOW 0
#define RTLD_LOCAL 0
static inline void *dlopen(const char *name, int flags) { return (void)name, (void)flags, NULL; }
static inline void *dlsym(void *library, const char *name) { return (void)library, (void)name, NULL; }
#endif

/* The kinds of vq/store/records/format.py. */
enum { ZLIB = 1, ZSTD = 2, LZ4 = 3 };
/* Larger ones would keep the lock for long. */
enum { STREAM_BYTES_MAX = 16 << 10, CONTENT_BYTES_MAX = 64 << 10 };

/* zlib.h */
typedef struct {
    const uint8_t *next_in;
    unsigned int avail_in;
    unsigned long total_in;
    uint8_t *next_out;
    unsigned int avail_out;
    unsigned long total_out;
    const char *msg;
    void *state;
    void *(*zalloc)(void *, unsigned int, unsigned int);
    void (*zfree)(void *, void *);
    void *opaque;
    int data_type;
    unsigned long adler, reserved;
} z_stream_t;
enum { Z_FINISHES = 4, Z_ENDED = 1, Z_WINDOW_BITS = 15 };

/* zstd.h, and the magic number of a frame; lz4frame.h, and where a frame says how large its blocks are.
 * Of larger ones than 64 KiB a context would keep the memory. */
static const uint8_t ZSTD_MAGIC[] = {0x28, 0xb5, 0x2f, 0xfd}, LZ4_MAGIC[] = {0x04, 0x22, 0x4d, 0x18};
enum { LZ4_VERSION = 100, LZ4_HEADER_MIN = 7, LZ4_BLOCKS_AT = 5, LZ4_BLOCKS_64_KIB = 4 << 4 };

static struct {
    int sought; /* bits of the kinds */
    uint8_t *content;
    z_stream_t zlib;
    int (*inflate)(z_stream_t *, int);
    int (*inflate_reset)(z_stream_t *);
    void *zstd, *lz4;
    size_t (*zstd_decompress)(void *, void *, size_t, const void *, size_t);
    size_t (*zstd_frame)(const void *, size_t);
    unsigned long long (*zstd_content)(const void *, size_t);
    size_t (*lz4_decompress)(void *, void *, size_t *, const void *, size_t *, const void *);
    void (*lz4_reset)(void *);
} streams;

/* Find the function of a library that has this name. */
#define FIND(to, library, name) (*(void **)&(to) = dlsym(library, name))

static void open_zlib(void)
{
    int (*init)(z_stream_t *, int, const char *, int);
    const char *(*version)(void);
    void *library = dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library || !FIND(init, library, "inflateInit2_") || !FIND(version, library, "zlibVersion") ||
        !FIND(streams.inflate_reset, library, "inflateReset") ||
        !FIND(streams.inflate, library, "inflate"))
        streams.inflate = NULL;
    else if (init(&streams.zlib, Z_WINDOW_BITS, version(), sizeof streams.zlib))
        streams.inflate = NULL;
}

static void open_zstd(void)
{
    void *(*make)(void);
    void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library && FIND(make, library, "ZSTD_createDCtx") &&
        FIND(streams.zstd_decompress, library, "ZSTD_decompressDCtx") &&
        FIND(streams.zstd_frame, library, "ZSTD_findFrameCompressedSize") &&
        FIND(streams.zstd_content, library, "ZSTD_getFrameContentSize"))
        streams.zstd = make();
}

static void open_lz4(void)
{
    size_t (*make)(void **, unsigned int);
    void *library = dlopen("liblz4.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library && FIND(make, library, "LZ4F_createDecompressionContext") &&
        FIND(streams.lz4_decompress, library, "LZ4F_decompress") &&
        FIND(streams.lz4_reset, library, "LZ4F_resetDecompressionContext") &&
        make(&streams.lz4, LZ4_VERSION))
        streams.lz4 = NULL;
}

/* Each of these returns the size of the content, or -1 if the stream is none, or has more. */
static int64_t content_of_zlib(const uint8_t *data, size_t size)
{
    z_stream_t *stream = &streams.zlib;
    if (!streams.inflate || streams.inflate_reset(stream))
        return -1;
    stream->next_in = data;
    stream->avail_in = (unsigned int)size;
    stream->next_out = streams.content;
    stream->avail_out = CONTENT_BYTES_MAX;
    if (streams.inflate(stream, Z_FINISHES) != Z_ENDED || stream->avail_in)
        return -1;
    return CONTENT_BYTES_MAX - (int64_t)stream->avail_out;
}

static int64_t content_of_zstd(const uint8_t *data, size_t size)
{
    if (!streams.zstd || size < sizeof ZSTD_MAGIC || memcmp(data, ZSTD_MAGIC, sizeof ZSTD_MAGIC))
        return -1;
    unsigned long long content = streams.zstd_content(data, size);
    if (!content || content > CONTENT_BYTES_MAX || streams.zstd_frame(data, size) != size ||
        streams.zstd_decompress(streams.zstd, streams.content, content, data, size) != content)
        return -1;
    return (int64_t)content;
}

static int64_t content_of_lz4(const uint8_t *data, size_t size)
{
    size_t content = CONTENT_BYTES_MAX, taken = size;
    if (!streams.lz4 || size < LZ4_HEADER_MIN || memcmp(data, LZ4_MAGIC, sizeof LZ4_MAGIC) ||
        data[LZ4_BLOCKS_AT] != LZ4_BLOCKS_64_KIB)
        return -1;
    if (!streams.lz4_decompress(streams.lz4, streams.content, &content, data, &taken, NULL) &&
        taken == size)
        return (int64_t)content;
    streams.lz4_reset(streams.lz4); /* what ends is ready for the next one */
    return -1;
}

static const struct {
    void (*open)(void);
    int64_t (*content)(const uint8_t *, size_t);
} KINDS[] = {[ZLIB] = {open_zlib, content_of_zlib},
             [ZSTD] = {open_zstd, content_of_zstd},
             [LZ4] = {open_lz4, content_of_lz4}};

/* Decompress a small stream; return the size of its content, which is in ``streams.content`` until the
 * next call. -1: another one has to look at it. */
static int64_t decompress_small(uint32_t kind, const uint8_t *data, size_t size)
{
    if (!HAS_LIBRARIES || kind >= sizeof KINDS / sizeof *KINDS || !KINDS[kind].open ||
        size > STREAM_BYTES_MAX)
        return -1;
    if (!(streams.sought & 1 << kind)) {
        streams.sought |= 1 << kind;
        if (!streams.content)
            streams.content = malloc(CONTENT_BYTES_MAX);
        if (streams.content)
            KINDS[kind].open();
    }
    return streams.content ? KINDS[kind].content(data, size) : -1;
}

#endif
