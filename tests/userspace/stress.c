/* SPDX-License-Identifier: Apache-2.0
 *
 * Works the marker library hard, for the sanitizers, and checks what it can see itself. Prints "ok" and the counters.
 */
#define _GNU_SOURCE
#include "rlscope_markers.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern struct rlscope_registry rlscope_markers_registry;

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);      \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

static uint64_t counter(const uint64_t *place)
{
    return __atomic_load_n(place, __ATOMIC_RELAXED);
}

/* Nested, from a temporary buffer, deeper than names are kept, one end too many. */
static void work(int seed, int rounds)
{
    uint32_t start = rlscope_operation_depth();
    for (int i = 0; i < rounds; i++) {
        char name[300];
        int depth = (seed + i) % 80;
        for (int d = 0; d < depth; d++) {
            snprintf(name, sizeof(name), "operation %d of %d", d, (seed + i) % 50);
            rlscope_operation_begin(name);
            memset(name, 'x', sizeof(name) - 1); /* the library must not look at it any more */
        }
        CHECK(rlscope_operation_depth() == start + (uint32_t)depth);
        if (depth > 0 && start == 0) {
            snprintf(name, sizeof(name), "operation %d of %d", 0, (seed + i) % 50);
            CHECK(strcmp(rlscope_operation_name(0), name) == 0);
        }
        for (int d = 0; d < depth; d++)
            rlscope_operation_end();
        memset(name, 'n', sizeof(name) - 1);
        name[299] = '\0';
        rlscope_operation_begin_python(name);
        CHECK(start >= RLSCOPE_MAX_DEPTH || strlen(rlscope_operation_name(start)) == RLSCOPE_NAME_MAX);
        rlscope_operation_end_python();
        rlscope_progress((uint64_t)i, 0);
        snprintf(name, sizeof(name), "phase %d", i % 5);
        rlscope_phase(name);
        rlscope_metadata("seed", name);
        snprintf(name, sizeof(name), "key %d", (seed + i) % 40);
        rlscope_metadata(name, "value");
    }
    CHECK(rlscope_operation_depth() == start);
}

static void *thread_main(void *argument)
{
    work((int)(intptr_t)argument, 300);
    rlscope_operation_begin("left open at thread exit");
    return NULL;
}

static uint32_t records_in_use(void)
{
    const struct rlscope_registry *r = &rlscope_markers_registry;
    uint32_t used = 0, first = 0;
    for (unsigned k = 0; k < r->chunk_count; k++) {
        uint32_t size = r->first_chunk << k;
        const struct rlscope_thread_record *chunk = r->chunks[k];
        for (uint32_t i = 0; chunk && i < size && first + i < r->records; i++)
            used += chunk[i].tid != 0;
        first += size;
    }
    return used;
}

static const struct rlscope_thread_record *own_record(void)
{
    const struct rlscope_registry *r = &rlscope_markers_registry;
    for (unsigned k = 0; k < r->chunk_count; k++)
        for (uint32_t i = 0; r->chunks[k] && i < r->first_chunk << k; i++)
            if (r->chunks[k][i].tid == (uint32_t)syscall(SYS_gettid))
                return &r->chunks[k][i];
    return NULL;
}

static void *forker(void *argument)
{
    (void)argument;
    rlscope_operation_begin("outer");
    rlscope_operation_begin("inner");
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            CHECK(rlscope_markers_registry.pid == (uint32_t)getpid());
            CHECK(rlscope_operation_depth() == 2);
            CHECK(strcmp(rlscope_operation_name(1), "inner") == 0);
            CHECK(records_in_use() == 1);
            CHECK(own_record() && own_record()->depth == 2);
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, thread_main, (void *)1) == 0);
            pthread_join(thread, NULL);
            work(7, 20);
            rlscope_operation_end();
            rlscope_operation_end();
            CHECK(rlscope_operation_depth() == 0);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    rlscope_operation_end();
    rlscope_operation_end();
    return NULL;
}

static volatile sig_atomic_t signals;
static void on_signal(int number)
{
    (void)number;
    rlscope_operation_begin("signal");
    rlscope_operation_end();
    signals++;
}

int main(int argc, char **argv)
{
    /* "busy": fork while other threads work; "alone": while none does (a sanitizer's own allocator needs that);
     * "never". */
    const char *forks = argc > 1 ? argv[1] : "busy";
    int busy = strcmp(forks, "busy") == 0;
    enum { THREADS = 24 };
    pthread_t threads[THREADS], fork_thread;
    uint32_t before;

    rlscope_operation_end(); /* before any begin */
    CHECK(counter(&rlscope_markers_registry.unbalanced_ends) == 1);
    CHECK(rlscope_operation_depth() == 0 && rlscope_operation_name(0) == NULL);
    rlscope_operation_begin(NULL);
    CHECK(strcmp(rlscope_operation_name(0), "") == 0);
    rlscope_operation_end();
    rlscope_metadata(NULL, NULL);
    rlscope_phase(NULL);

    /* A cut never splits a character: 126 bytes and a 3-byte character that does not fit any more. */
    char wide[200];
    memset(wide, 'w', 126);
    strcpy(wide + 126, "\xe2\x82\xac and more");
    CHECK(strlen(rlscope_intern(wide)) == 126);
    memset(wide, '\x80', 199); /* no UTF-8 at all */
    wide[199] = '\0';
    CHECK(strlen(rlscope_intern(wide)) == 127);
    CHECK(rlscope_intern("same") == rlscope_intern("same"));
    CHECK(rlscope_intern("same") != rlscope_intern("other"));

    before = records_in_use();
    CHECK(before == 1);
    for (int round = 0; round < 3; round++) {
        if (busy)
            CHECK(pthread_create(&fork_thread, NULL, forker, NULL) == 0);
        for (intptr_t i = 0; i < THREADS; i++)
            CHECK(pthread_create(&threads[i], NULL, thread_main, (void *)i) == 0);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        if (busy)
            pthread_join(fork_thread, NULL);
        if (strcmp(forks, "alone") == 0)
            forker(NULL);
    }
    CHECK(records_in_use() == before);
    CHECK(rlscope_markers_registry.records <= THREADS + 2); /* they were used again */
    CHECK(rlscope_markers_registry.lost_threads == 0);

    signal(SIGALRM, on_signal);
    for (int i = 0; i < 200; i++) {
        ualarm(50, 0);
        work(i, 3);
    }
    signal(SIGALRM, SIG_IGN);
    CHECK(rlscope_operation_depth() == 0);
    CHECK(own_record()->changes % 2 == 0);

    /* More names than are kept. */
    for (int i = 0; i < RLSCOPE_NAMES_MAX + 1000; i++) {
        char name[32];
        snprintf(name, sizeof(name), "flood %d", i);
        rlscope_operation_begin(name);
        rlscope_operation_end();
    }
    CHECK(rlscope_markers_registry.names == RLSCOPE_NAMES_MAX);
    CHECK(rlscope_markers_registry.dropped_names >= 1000);
    CHECK(strcmp(rlscope_intern("one more"), "(too many names)") == 0);
    CHECK(strcmp(rlscope_intern("flood 1"), "flood 1") == 0);

    printf("ok signals=%d records=%u cut=%llu deep=%llu metadata=%llu\n", (int)signals, rlscope_markers_registry.records,
           (unsigned long long)rlscope_markers_registry.truncated_names,
           (unsigned long long)rlscope_markers_registry.too_deep,
           (unsigned long long)rlscope_markers_registry.lost_metadata);
    return 0;
}
