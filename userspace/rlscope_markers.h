/* SPDX-License-Identifier: Apache-2.0
 *
 * Annotations for rlscope-ebpf: say which part of a training loop runs. Link with -lrlscope_markers.
 *
 *     rlscope_operation_begin("simulation");
 *     step(environment);
 *     rlscope_operation_end();
 *
 * Every function may be called from any thread at any time, costs nanoseconds while no profiler listens, and never
 * exits, throws, prints or waits: what cannot be done is counted (struct rlscope_registry). Names are UTF-8; a name of
 * more than 127 bytes is cut at a character boundary and counted. The library copies names, so they may lie in
 * temporary memory. After fork() the child keeps the operations of the thread that forked. A signal handler may call
 * the functions if it ends what it begins and its thread has made a marker call before.
 *
 * Each function begins with one 5-byte nop (0f 1f 44 00 00) on x86-64.
 */
#ifndef RLSCOPE_MARKERS_H
#define RLSCOPE_MARKERS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opens an operation on the calling thread. Operations nest, also in themselves. NULL counts as "". */
void rlscope_operation_begin(const char *name);
/* Closes the operation opened last on the calling thread; one too many is counted and changes nothing. */
void rlscope_operation_end(void);
/* The process is in this phase from now on. */
void rlscope_phase(const char *name);
/* One iteration of the training loop is done. total: how many there will be, 0 if unknown. */
void rlscope_progress(uint64_t step, uint64_t total);
/* A fact about the run. A later value of the same key replaces the earlier one. */
void rlscope_metadata(const char *key, const char *value);
/* The same as rlscope_metadata("process_name", name), by way of that function. */
void rlscope_process_name(const char *name);

/* For language bindings: the same as the functions without the suffix, called by a thread that runs the Python
 * interpreter (holds the GIL). They tell the profiler where it is the interpreter's time. */
void rlscope_operation_begin_python(const char *name);
void rlscope_operation_end_python(void);

/* For language bindings. `rlscope_intern` returns the library's own copy of a name: same name, same pointer, valid as
 * long as the process lives, and the fastest argument of rlscope_operation_begin. Never NULL. */
const char *rlscope_intern(const char *name);
/* Number of operations open on the calling thread. */
uint32_t rlscope_operation_depth(void);
/* Name of the calling thread's open operation number `level` (0: outermost), NULL if there is none or its level is
 * beyond RLSCOPE_MAX_DEPTH. */
const char *rlscope_operation_name(uint32_t level);

/*
 * What a profiler reads from outside, by process_vm_readv or from a BPF program.
 *
 * The data symbol `rlscope_markers_registry` is a struct rlscope_registry, valid from the moment the library is
 * mapped. Version 1 of the layout; a reader checks magic, version and record_size. All integers are in the machine's
 * byte order, all pointers 8 bytes. Nothing that these structures point to is ever unmapped or freed.
 *
 * Records of threads lie in chunks that are never moved: chunk k holds first_chunk << k records, so record number n
 * lies in the chunk k for which first_chunk * (2^k - 1) <= n < first_chunk * (2^(k+1) - 1). Numbers from 0 to
 * records - 1 have been handed out; a record is in use while its tid is not 0. A thread gets its record with its first
 * operation and gives it back when it exits; then another thread may get it, with the next generation.
 *
 * Only the owner writes a record. `changes` is odd while it does and grows by at least 2 with each change, so
 * a reader takes a copy as good if `changes` is even and the same before and after. (A thread that was preempted
 * in the middle of a change keeps it odd; depth is then written, but perhaps not the innermost name.)
 */
#define RLSCOPE_MARKERS_MAGIC "RLSMARK1" /* 8 bytes, without the terminating zero */
#define RLSCOPE_MARKERS_VERSION 1
#define RLSCOPE_NAME_MAX 127    /* bytes of a name, without the terminating zero */
#define RLSCOPE_NAMES_MAX 65536 /* different names; beyond, "(too many names)" takes their place */
#define RLSCOPE_MAX_DEPTH 64    /* nested operations that are kept by name; deeper ones are only counted in depth */
#define RLSCOPE_METADATA_MAX 32 /* different keys */
#define RLSCOPE_FIRST_CHUNK 32  /* records in the first chunk */
#define RLSCOPE_CHUNKS 12       /* 131,040 threads at once */

struct rlscope_thread_record {
    uint64_t changes;                     /* offset 0: sequence counter, odd while a change is being made */
    uint32_t tid;                         /* 8: thread id in the process's own pid namespace; 0: not in use */
    uint32_t depth;                       /* 12: operations open, also those beyond RLSCOPE_MAX_DEPTH */
    uint64_t generation;                  /* 16: threads that have had this record */
    uint32_t index;                       /* 24: number of this record */
    uint32_t next_free;                   /* 28: private */
    void *cache;                          /* 32: private */
    uint64_t reserved[3];                 /* 40 */
    const char *names[RLSCOPE_MAX_DEPTH]; /* 64: open operations, outermost first; the first min(depth, 64) are valid */
};

struct rlscope_metadata_entry {
    const char *key;   /* NULL: unused, and so are all entries after it */
    const char *value; /* NULL: being written */
};

struct rlscope_registry {
    char magic[8];         /* offset 0 */
    uint32_t version;      /* 8 */
    uint32_t size;         /* 12: of this structure */
    uint32_t record_size;  /* 16: distance of two records in a chunk */
    uint32_t names_offset; /* 20: of `names` in a record */
    uint32_t max_depth;    /* 24 */
    uint32_t name_max;     /* 28 */
    uint32_t first_chunk;  /* 32 */
    uint32_t chunk_count;  /* 36: length of `chunks` */
    uint32_t pid;          /* 40: process id in its own pid namespace; 0 before the first thread record */
    uint32_t records;      /* 44: records handed out so far */

    /* Counters of what could not be done. */
    uint64_t truncated_names;  /* 48: calls whose name was cut */
    uint64_t dropped_names;    /* 56: calls that got "(too many names)" */
    uint64_t unbalanced_ends;  /* 64: ends without a begin */
    uint64_t too_deep;         /* 72: begins beyond RLSCOPE_MAX_DEPTH */
    uint64_t lost_threads;     /* 80: threads without a record */
    uint64_t lost_metadata;    /* 88: calls with a new key beyond RLSCOPE_METADATA_MAX */
    uint64_t failed_mappings;  /* 96: memory that the kernel refused */

    uint64_t names;            /* 104: different names kept */
    const char *phase;         /* 112: current phase; NULL: none named yet */
    uint64_t progress_reports; /* 120 */
    uint64_t progress_step;    /* 128: of the latest report */
    uint64_t progress_total;   /* 136 */
    struct rlscope_thread_record *chunks[RLSCOPE_CHUNKS];         /* 144: NULL: not allocated yet */
    struct rlscope_metadata_entry metadata[RLSCOPE_METADATA_MAX]; /* 240 */
    uint64_t free_records;     /* 752: private */
};

#ifdef __cplusplus
}

namespace rlscope {
/* An operation as long as the object lives; also an exception closes it. */
class operation {
public:
    explicit operation(const char *name) { rlscope_operation_begin(name); }
    ~operation() { rlscope_operation_end(); }
    operation(const operation &) = delete;
    operation &operator=(const operation &) = delete;
};
} // namespace rlscope
#endif

#endif
