/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cupti_host.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define BREAKPOINT 0xcc
#define BEGINNING_BYTES 2 /* a push and a pop */

struct host_heard *heard;
static uint8_t first_byte;

static void take_records(const struct rlscope_gpu_record *records, uint32_t count, uint64_t before)
{
    /* `before` goes on while nobody listens; here somebody always does from the first record on. */
    heard->missed += before != heard->records + heard->missed ? before - heard->records - heard->missed : 0;
    heard->batches++;
    if (count > heard->largest_batch)
        heard->largest_batch = count;
    for (uint32_t i = 0; i < count && heard->records < HOST_RECORDS; i++)
        heard->record[heard->records++] = records[i];
}

static void take_name(uint32_t id, const char *text, uint32_t length)
{
    if (id >= HOST_NAMES || length > RLSCOPE_GPU_NAME_MAX)
        abort();
    heard->names++;
    heard->name[id].told++;
    heard->name[id].length = length;
    memcpy(heard->name[id].text, text, length + 1);
}

static void trap(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    uintptr_t at = (uintptr_t)registers[REG_RIP] - 1;

    (void)number, (void)info;
    if (at == (uintptr_t)rlscope_gpu_records)
        take_records((const void *)registers[REG_RDI], (uint32_t)registers[REG_RSI], (uint64_t)registers[REG_RDX]);
    else if (at == (uintptr_t)rlscope_gpu_name)
        take_name((uint32_t)registers[REG_RDI], (const void *)registers[REG_RSI], (uint32_t)registers[REG_RDX]);
    else if (at == (uintptr_t)rlscope_gpu_status)
        __atomic_fetch_add(&heard->statuses, 1, __ATOMIC_RELAXED);
    else
        abort();
    registers[REG_RIP] = (greg_t)(at + BEGINNING_BYTES);
}

void host_prepare(void)
{
    struct sigaction action = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO};

    heard = mmap(NULL, sizeof *heard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (heard == MAP_FAILED || sigaction(SIGTRAP, &action, NULL))
        abort();
    first_byte = *(const uint8_t *)rlscope_gpu_records;
}

void host_listen(int on)
{
    void *const functions[] = {(void *)rlscope_gpu_records, (void *)rlscope_gpu_name, (void *)rlscope_gpu_status};
    uint8_t byte = on ? BREAKPOINT : first_byte;
    int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);

    /* What is written first is what tells the helper: names and state must be heard from then on. */
    for (int i = 2; i >= 0; i--)
        if (memory < 0 || pwrite(memory, &byte, 1, (off_t)(uintptr_t)functions[i]) != 1)
            abort();
    close(memory);
}

void host_forget(void)
{
    heard->missed += heard->records;
    heard->records = heard->batches = heard->names = 0;
    memset(heard->name, 0, sizeof heard->name[0] * 64);
}

uint64_t host_heard_of(uint8_t kind, uint64_t *total_ns)
{
    uint64_t found = 0, sum = 0;

    for (uint64_t i = 0; i < heard->records; i++)
        if (heard->record[i].kind == kind) {
            found++;
            sum += heard->record[i].end_ns - heard->record[i].start_ns;
        }
    if (total_ns)
        *total_ns = sum;
    return found;
}

void host_pause(uint64_t ns)
{
    struct timespec pause = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

    while (nanosleep(&pause, &pause))
        ;
}

void host_await(uint32_t state)
{
    uint64_t until = now_ns() + 30000000000u;

    while (load_acquire(rlscope_gpu_state.state) != state) {
        if (now_ns() > until)
            fprintf(stderr, "waited for state %u\n", state);
        CHECK(now_ns() <= until);
        host_pause(1000000);
    }
}

void host_start(uint32_t flags)
{
    rlscope_gpu_start(flags, 0);
    host_await(RLSCOPE_GPU_ACTIVE);
}

void host_stop(void)
{
    rlscope_gpu_stop();
    host_await(RLSCOPE_GPU_DORMANT);
}

void host_print_state(void)
{
    const struct rlscope_gpu_status *s = &rlscope_gpu_state;

    printf("{\"state\": %u, \"error\": %u, \"failed_call\": %u, \"cupti_version\": %u, \"clock\": %u, \"starts\": %u, "
           "\"finalized\": %u, \"simulated\": %u",
           load(s->state), load(s->error), load(s->failed_call), load(s->cupti_version), load(s->clock),
           load(s->starts), load(s->finalized), load(s->simulated));
#define PRINT(name) printf(", \"" #name "\": %llu", (unsigned long long)COUNTER(name));
    RLSCOPE_GPU_COUNTERS(PRINT)
    printf(", \"heard\": %llu, \"heard_names\": %llu, \"statuses\": %llu}\n", (unsigned long long)heard->records,
           (unsigned long long)heard->names, (unsigned long long)load(heard->statuses));
    fflush(stdout);
}

static void *in_cupti(const char *symbol)
{
    void *found = cupti_open() ? dlsym(cupti.handle, symbol) : NULL;

    CHECK(found);
    return found;
}

int64_t host_cupti(const char *name)
{
    int64_t (*get)(const char *) = (int64_t(*)(const char *))in_cupti("simcupti_get");

    return get(name);
}

void host_misbehave(const char *name, int64_t value)
{
    int (*set)(const char *, int64_t) = (int (*)(const char *, int64_t))in_cupti("simcupti_set");

    CHECK(set(name, value) == 0);
}

void host_check_clean(void)
{
    CHECK(host_cupti("subscribers") == 0);
    CHECK(host_cupti("kinds") == 0);
    CHECK(host_cupti("callbacks") == 0);
    CHECK(host_cupti("buffers") == 0);
}
