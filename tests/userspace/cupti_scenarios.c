/* SPDX-License-Identifier: Apache-2.0
 *
 * What the CUPTI helper must do, one scenario per run: `cupti_scenarios NAME [NUMBER]`. Prints the helper's state and
 * counters as one line of JSON; fails where something is not as it must be.
 */
#define _GNU_SOURCE
#include "cupti_host.h"

#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STREAMS 2
#define KERNELS 3
#define GRAPH_KERNELS 5
#define BYTES 4096

static CUstream streams[STREAMS];
static CUgraph made;
static CUgraphExec graph;
/* Each thread's own. Device memory is host memory here. */
static __thread CUevent event;
static __thread char device_memory[BYTES], host_memory[BYTES];
static const char kernels[KERNELS];
static const char *const names[KERNELS] = {"axpy", "_ZN2at6native6vectorEv", "a kernel with \"quotes\" and \xc3\xa9"};
static const int64_t durations[KERNELS] = {1500, 7000, 23000};

static void prepare(void)
{
    CUgraphNode node;

    host_prepare();
    CUDA(cuInit(0));
    for (int i = 0; i < STREAMS; i++)
        CUDA(cuStreamCreate(&streams[i], 0));
    for (int i = 0; i < KERNELS; i++)
        CHECK(simcuda_set_kernel(&kernels[i], names[i], durations[i]) == 0);
    CUDA(cuGraphCreate(&made, 0));
    for (int i = 0; i < GRAPH_KERNELS; i++) {
        CUDA_KERNEL_NODE_PARAMS params = {.func = (CUfunction)&kernels[i % KERNELS], .gridDimX = 1, .blockDimX = 32};
        CUDA(cuGraphAddKernelNode_v2(&node, made, NULL, 0, &params));
    }
    CUDA(cuGraphInstantiateWithFlags(&graph, made, 0));
}

static CUresult launch(int kernel, int stream)
{
    return cuLaunchKernel((CUfunction)&kernels[kernel], 1, 1, 1, 32, 1, 1, 0, streams[stream], NULL, NULL);
}

static void synchronize(void)
{
    CUDA(cuCtxSynchronize());
}

/* A little of everything. */
static void step(void)
{
    CUdeviceptr on_device = (CUdeviceptr)device_memory;

    if (!event)
        CUDA(cuEventCreate(&event, 0));
    for (int i = 0; i < KERNELS; i++)
        CUDA(launch(i, i % STREAMS));
    CUDA(cuMemcpyHtoDAsync_v2(on_device, host_memory, BYTES, streams[0]));
    CUDA(cuMemcpyDtoHAsync_v2(host_memory, on_device, BYTES / 2, streams[1]));
    CUDA(cuMemsetD8Async(on_device, 0, BYTES, streams[0]));
    CUDA(cuGraphLaunch(graph, streams[0]));
    CUDA(cuEventRecord(event, streams[0]));
    CUDA(cuStreamWaitEvent(streams[1], event, 0));
    CUDA(cuEventSynchronize(event));
    CUDA(cuStreamSynchronize(streams[1]));
}

static int64_t enqueued(uint32_t kind)
{
    return simcuda_enqueued(kind, NULL);
}

/* -- scenarios ------------------------------------------------------------------------------------------------ */

#define THREADS 8
static pthread_barrier_t barrier;

static void *step_in_thread(void *rounds)
{
    pthread_barrier_wait(&barrier);
    for (intptr_t i = 0; i < (intptr_t)rounds; i++)
        step();
    free(event);
    return NULL;
}

static int by_correlation(const void *left, const void *right)
{
    const struct rlscope_gpu_record *a = left, *b = right;

    if (a->correlation != b->correlation)
        return a->correlation < b->correlation ? -1 : 1;
    return (b->kind == RLSCOPE_GPU_LAUNCH) - (a->kind == RLSCOPE_GPU_LAUNCH); /* the launch first */
}

/* Every record has its launch, every launch its records, and all is as it was launched. */
static void check_records(void)
{
    const struct rlscope_gpu_record *launched = NULL;
    uint64_t works = 0;

    qsort(heard->record, heard->records, sizeof *heard->record, by_correlation);
    for (uint64_t i = 0; i <= heard->records; i++) {
        const struct rlscope_gpu_record *r = &heard->record[i];
        if (i == heard->records || r->kind == RLSCOPE_GPU_LAUNCH) {
            if (launched)
                CHECK(works == (launched->detail == RLSCOPE_GPU_LAUNCH_GRAPH ? GRAPH_KERNELS : 1));
            launched = r;
            works = 0;
            continue;
        }
        CHECK(r->end_ns >= r->start_ns);
        if (r->kind == RLSCOPE_GPU_SYNC) {
            CHECK(r->detail >= 1 && r->detail <= 4 && r->context == 1 && r->thread >= (uint32_t)getpid());
            continue;
        }
        works++;
        CHECK(launched && launched->correlation == r->correlation);
        CHECK(launched->start_ns <= launched->end_ns && launched->end_ns - launched->start_ns < 10000000000u);
        CHECK(r->start_ns >= launched->start_ns);
        CHECK(launched->thread >= (uint32_t)getpid() && launched->thread < (uint32_t)getpid() + 100000);
        CHECK(r->stream >= 13 && r->stream < 13 + STREAMS && r->context == 1 && r->device == 0);
        CHECK((launched->detail == RLSCOPE_GPU_LAUNCH_GRAPH) == (r->graph != 0));
        if (r->kind == RLSCOPE_GPU_KERNEL) {
            int k = 0;
            CHECK(r->name && heard->name[r->name].told == 1);
            while (k < KERNELS && strcmp(heard->name[r->name].text, names[k]))
                k++;
            CHECK(k < KERNELS && (int64_t)(r->end_ns - r->start_ns) == durations[k]);
            CHECK((r->graph_node != 0) == (r->graph != 0));
        } else if (r->kind == RLSCOPE_GPU_COPY) {
            CHECK(launched->detail == RLSCOPE_GPU_LAUNCH_COPY);
            CHECK(r->bytes == (r->detail == 1 ? BYTES : BYTES / 2) && (r->detail == 1 || r->detail == 2));
        } else {
            CHECK(r->kind == RLSCOPE_GPU_SET && launched->detail == RLSCOPE_GPU_LAUNCH_SET && r->bytes == BYTES);
        }
    }
}

static void check_counts(void)
{
    static const uint8_t kinds[] = {0, RLSCOPE_GPU_KERNEL, RLSCOPE_GPU_COPY, RLSCOPE_GPU_SET};

    for (uint32_t kind = SIMCUDA_KERNEL; kind <= SIMCUDA_SET; kind++) {
        int64_t ns;
        uint64_t heard_ns;
        int64_t count = simcuda_enqueued(kind, &ns);
        CHECK(host_heard_of(kinds[kind], &heard_ns) == (uint64_t)count);
        CHECK(heard_ns == (uint64_t)ns);
    }
    CHECK(host_heard_of(RLSCOPE_GPU_SYNC, NULL) == (uint64_t)enqueued(SIMCUDA_SYNC));
}

/* Threads that launch everything there is. */
static void everything(int rounds)
{
    pthread_t threads[THREADS];

    host_listen(1);
    host_start(0);
    CHECK(rlscope_gpu_start(0, 0) == RLSCOPE_GPU_ACTIVE); /* it is already */
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, step_in_thread, (void *)(intptr_t)rounds));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    synchronize();
    host_stop();
    host_check_clean();
    CHECK(heard->missed == 0 && heard->records == COUNTER(records) && heard->batches == COUNTER(batches));
    CHECK(heard->largest_batch <= RLSCOPE_GPU_BATCH && load(heard->statuses) >= 3);
    check_counts();
    check_records();
    CHECK(COUNTER(launches) == (uint64_t)(THREADS * rounds * (KERNELS + 4)));
    CHECK(COUNTER(graph_kernels) == (uint64_t)(THREADS * rounds * GRAPH_KERNELS));
}

/* Launches only, while CUPTI misbehaves as SIMCUPTI says: the test adds up. */
static void launches(int rounds)
{
    host_listen(1);
    host_start(0);
    for (int i = 0; i < rounds; i++)
        CUDA(launch(i % KERNELS, i % STREAMS));
    synchronize();
    host_stop();
    host_check_clean();
    CHECK(COUNTER(launches) == (uint64_t)rounds);
}

static void wrapped_correlation(int rounds)
{
    CHECK(simcuda_set_gpu("correlation", (int64_t)UINT32_MAX - rounds) == 0);
    everything(rounds);
}

static void failed_launches(int rounds)
{
    host_listen(1);
    host_start(0);
    for (int i = 0; i < rounds; i++) {
        simcuda_fail("cuLaunchKernel", i % 2 ? CUDA_ERROR_OUT_OF_MEMORY : 0);
        CHECK(launch(0, 0) == (i % 2 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS));
    }
    simcuda_fail("cuLaunchKernel", 0);
    synchronize();
    host_stop();
    CHECK(COUNTER(launches) == (uint64_t)(rounds + 1) / 2 && COUNTER(failed_launches) == (uint64_t)rounds / 2);
    check_counts();
}

/* Somebody else subscribed; then they left. */
static void foreign(int rounds)
{
    void *theirs = NULL;

    CHECK(cupti_open());
    CHECK(cupti.cuptiSubscribe(&theirs, (cu_callback)abort, NULL) == CU_OK);
    host_listen(1);
    rlscope_gpu_start(0, 0);
    host_await(RLSCOPE_GPU_FOREIGN);
    step();
    CHECK(host_cupti("kinds") == 0 && host_cupti("clock") == 0 && host_cupti("subscribers") == 1);
    CHECK(load(rlscope_gpu_state.error) == CU_MULTIPLE_SUBSCRIBERS);
    CHECK(cupti.cuptiUnsubscribe(theirs) == CU_OK);
    host_start(0);
    for (int i = 0; i < rounds; i++)
        step();
    host_stop();
    host_check_clean();
    CHECK(COUNTER(kernels) == (uint64_t)(rounds * (KERNELS + GRAPH_KERNELS)));
}

/* Each call of CUPTI's fails in turn; the program must not notice, and a later start must work. */
static void errors(int rounds)
{
    static const struct {
        const char *name;
        int fatal;
    } calls[] = {
        {"fail.cuptiGetVersion", 1},
        {"fail.cuptiSubscribe", 1},
        {"fail.cuptiEnableCallback", 1},
        {"fail.cuptiGetCallbackName", 1},
        {"fail.cuptiActivityRegisterCallbacks", 1},
        {"fail.cuptiActivityEnable", 1},
        {"fail.cuptiActivityFlushAll", 0},
        {"fail.cuptiActivityGetNextRecord", 0},
        {"fail.cuptiActivityGetNumDroppedRecords", 0},
        {"fail.cuptiActivityRegisterTimestampCallback", 0},
        {"fail.cuptiActivityDisable", 0},
    };

    host_listen(1);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        uint64_t before = COUNTER(errors);
        host_misbehave(calls[i].name, CU_INSUFFICIENT_PRIVILEGES);
        rlscope_gpu_start(0, 0);
        if (calls[i].fatal) {
            int version = !strcmp(calls[i].name, "fail.cuptiGetVersion");
            host_await(version ? RLSCOPE_GPU_WRONG_VERSION : RLSCOPE_GPU_FAILED);
            host_check_clean();
        } else {
            host_await(RLSCOPE_GPU_ACTIVE);
        }
        for (int n = 0; n < rounds; n++)
            step();
        if (!calls[i].fatal) {
            host_pause(250000000);
            host_stop();
        }
        if (strcmp(calls[i].name, "fail.cuptiGetCallbackName")) {
            CHECK(COUNTER(errors) > before);
            CHECK(load(rlscope_gpu_state.error) == CU_INSUFFICIENT_PRIVILEGES);
            CHECK(load(rlscope_gpu_state.failed_call) != 0);
        }
        host_misbehave(calls[i].name, 0);
    }
    host_forget();
    host_start(0); /* what could not be given back before is now */
    uint64_t kernels_before = COUNTER(kernels);
    for (int n = 0; n < rounds; n++)
        step();
    synchronize();
    host_stop();
    host_check_clean();
    CHECK(COUNTER(kernels) - kernels_before >= (uint64_t)(rounds * (KERNELS + GRAPH_KERNELS)));
}

/* The profiler is gone without a word. */
static void listener_dies(int rounds)
{
    host_listen(1);
    host_start(0);
    for (int i = 0; i < rounds; i++)
        step();
    host_listen(0);
    while (load_acquire(rlscope_gpu_state.state) != RLSCOPE_GPU_DORMANT) {
        step();
        host_pause(1000000);
    }
    host_check_clean();
    int64_t called = host_cupti("called"), records = host_cupti("records");
    for (int i = 0; i < rounds; i++)
        step();
    CHECK(host_cupti("called") == called && host_cupti("records") == records);
    /* And the next one. */
    host_forget();
    host_listen(1);
    host_start(0);
    uint64_t before = COUNTER(kernels);
    step();
    synchronize();
    host_stop();
    CHECK(heard->names == COUNTER(names)); /* told again */
    CHECK(COUNTER(kernels) - before == KERNELS + GRAPH_KERNELS);
}

/* Nobody ever comes: CUPTI is not touched. */
static void nobody(int rounds)
{
    rlscope_gpu_start(0, 1000);
    for (int i = 0; i < rounds; i++)
        step();
    CHECK(load(rlscope_gpu_state.state) == RLSCOPE_GPU_STARTING);
    host_await(RLSCOPE_GPU_DORMANT);
    CHECK(COUNTER(records) == 0 && heard->records == 0 && load(rlscope_gpu_state.starts) == 0);
    CHECK(host_cupti("called") == 0 && host_cupti("records") == 0);
    rlscope_gpu_start(0, 0);
    CHECK(rlscope_gpu_start(0, 0) == RLSCOPE_GPU_STARTING);
    host_pause(100000000);
    host_listen(1);
    host_await(RLSCOPE_GPU_ACTIVE);
    host_stop();
}

/* What was launched before the profiler listened is kept for it. */
static void listener_comes_late(int rounds)
{
    CHECK(InitializeInjection() == 1);
    CHECK(load(rlscope_gpu_state.state) == RLSCOPE_GPU_ACTIVE); /* at once: nothing is missed */
    for (int i = 0; i < rounds; i++)
        step();
    host_pause(300000000);
    host_listen(1);
    for (int i = 0; i < rounds; i++)
        step();
    synchronize();
    host_stop();
    host_check_clean();
    check_counts();
    check_records();
}

/* Nobody fetches anything, and it goes on: memory is bounded, what does not fit is counted, the program runs. */
static void flood(int rounds)
{
    struct rusage before, after;

    CHECK(simcuda_set_gpu("latency", 0) == 0);
    rlscope_gpu_start(RLSCOPE_GPU_AT_ONCE, 600000);
    CHECK(load(rlscope_gpu_state.state) == RLSCOPE_GPU_ACTIVE);
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < rounds; i++) {
        CUDA(cuGraphLaunch(graph, streams[0]));
        if (i % 1000 == 0)
            CUDA(cuStreamSynchronize(streams[0]));
    }
    synchronize();
    getrusage(RUSAGE_SELF, &after);
    CHECK(COUNTER(no_buffer) > 0);
    CHECK(after.ru_maxrss - before.ru_maxrss < 40 * 1024); /* KiB: 32 buffers of a MiB, a ring, names, stacks */
    host_listen(1);
    while (load_acquire(rlscope_gpu_state.listening) == 0)
        host_pause(1000000);
    host_stop();
    host_check_clean();
    CHECK(COUNTER(dropped) == (uint64_t)host_cupti("dropped") && COUNTER(dropped) > 0);
    CHECK(COUNTER(kernels) + COUNTER(dropped) == (uint64_t)enqueued(SIMCUDA_KERNEL));
    CHECK(COUNTER(launches) + COUNTER(syncs) + COUNTER(lost_launches) ==
          (uint64_t)rounds + (uint64_t)enqueued(SIMCUDA_SYNC));
    CHECK(COUNTER(lost_launches) > 0);
}

/* No memory for anything, from the start on. */
static void no_memory(int rounds)
{
    struct rlimit limit, none;

    host_listen(1);
    CHECK(cupti_open());
    step();
    getrlimit(RLIMIT_AS, &limit);
    none = (struct rlimit){0, limit.rlim_max};
    setrlimit(RLIMIT_AS, &none);
    rlscope_gpu_start(0, 0); /* cannot even have a thread */
    CHECK(load(rlscope_gpu_state.state) == RLSCOPE_GPU_FAILED);
    step();
    setrlimit(RLIMIT_AS, &limit);
    host_start(0);
    setrlimit(RLIMIT_AS, &none);
    for (int i = 0; i < rounds; i++)
        CUDA(launch(0, 0));
    synchronize();
    setrlimit(RLIMIT_AS, &limit);
    CHECK(COUNTER(no_buffer) > 0 && COUNTER(lost_launches) > 0);
    host_stop();
    host_check_clean();
    CHECK(COUNTER(kernels) + COUNTER(dropped) == (uint64_t)rounds);
    CHECK(COUNTER(launches) + COUNTER(syncs) + COUNTER(lost_launches) == (uint64_t)rounds + 1);
}

static uint32_t stop_launching;
static void *launch_on(void *argument)
{
    while (!load(stop_launching)) {
        step();
        host_pause(1000000); /* the simulated CUPTI has one lock, which is not fair */
        *(uint64_t *)argument += 1;
    }
    free(event);
    return NULL;
}

/* On and off, while threads launch. */
static void again(int rounds)
{
    enum { FEW = 3 };
    pthread_t threads[FEW];
    uint64_t steps[FEW] = {0};

    for (int i = 0; i < FEW; i++)
        CHECK(!pthread_create(&threads[i], NULL, launch_on, &steps[i]));
    for (int round = 0; round < rounds; round++) {
        uint64_t before = COUNTER(kernels);
        host_listen(1);
        host_start(0);
        while (COUNTER(kernels) - before < 1000)
            host_pause(1000000);
        if (round % 2)
            host_stop();
        host_listen(0);
        host_await(RLSCOPE_GPU_DORMANT);
        host_check_clean();
    }
    store(stop_launching, 1);
    for (int i = 0; i < FEW; i++) {
        pthread_join(threads[i], NULL);
        CHECK(steps[i] > 0);
    }
    CHECK(load(rlscope_gpu_state.starts) == (uint32_t)rounds);
    CHECK(COUNTER(zero_time) + COUNTER(reversed_time) + COUNTER(out_of_range) + COUNTER(errors) == 0);
}

static void *launch_some(void *argument)
{
    for (int i = 0; i < 100; i++)
        CUDA(launch(0, 0));
    return argument;
}

/* A thread that launches while another waits for it to have done so. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int orders, done;

static void *worker(void *argument)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        while (orders == done)
            pthread_cond_wait(&changed, &lock);
        if (orders < 0)
            break;
        pthread_mutex_unlock(&lock);
        CUDA(launch(0, 0));
        pthread_mutex_lock(&lock);
        done++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return argument;
}

static void order(int more)
{
    pthread_mutex_lock(&lock);
    orders = more ? orders + 1 : -1;
    pthread_cond_broadcast(&changed);
    while (more && done != orders)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void *launch_rarely(void *argument)
{
    while (!load(stop_launching)) {
        CUDA(launch(0, 0));
        host_pause(*(const uint64_t *)argument);
    }
    return NULL;
}

/* Leaves while the program goes on; whether CUPTI was finalized. */
static int leave(void (*go_on)(void))
{
    uint32_t before = load(rlscope_gpu_state.finalized);

    host_forget();
    host_start(0);
    go_on();
    rlscope_gpu_stop();
    while (load_acquire(rlscope_gpu_state.state) != RLSCOPE_GPU_DORMANT)
        go_on();
    host_check_clean();
    go_on();
    CHECK(host_cupti("finalized_outside") == 0);
    CHECK(host_cupti("finalized") == (int64_t)load(rlscope_gpu_state.finalized));
    return (int)(load(rlscope_gpu_state.finalized) - before);
}

static void launch_one(void)
{
    CUDA(launch(0, 0));
    host_pause(100000);
}

static void launch_both(void)
{
    launch_one();
    order(1);
}

static void nothing(void)
{
    host_pause(1000000);
}

/* CUPTI is finalized in the exit of a call, and only where no other thread can come in between. */
static void finalize(int rounds)
{
    static const uint64_t pauses[] = {1500000, 100000000};
    pthread_t other;

    host_listen(1);
    for (int i = 0; i < rounds; i++) {
        uint64_t kernels_before = COUNTER(kernels), launches_before = COUNTER(launches);
        int64_t enqueued_before = enqueued(SIMCUDA_KERNEL);
        CHECK(leave(launch_one) == 1 && host_cupti("clock") == 0);
        CHECK(COUNTER(launches) - launches_before >= COUNTER(kernels) - kernels_before);
        CHECK((int64_t)(COUNTER(kernels) - kernels_before) < enqueued(SIMCUDA_KERNEL) - enqueued_before);
    }
    CHECK(leave(step) == (load(rlscope_gpu_state.cupti_version) >= 24)); /* graphs, and waits */
    CHECK(!pthread_create(&other, NULL, worker, NULL));
    CHECK(leave(launch_both) == 1);
    order(0);
    pthread_join(other, NULL);
    for (size_t i = 0; i < sizeof pauses / sizeof *pauses; i++) { /* threads that do not wait for this one */
        store(stop_launching, 0);
        CHECK(!pthread_create(&other, NULL, launch_rarely, (void *)&pauses[i]));
        CHECK(leave(launch_one) == 0);
        store(stop_launching, 1);
        pthread_join(other, NULL);
    }
    CHECK(leave(nothing) == 0);
    host_start(RLSCOPE_GPU_KEEP);
    launch_one();
    rlscope_gpu_stop();
    while (load_acquire(rlscope_gpu_state.state) != RLSCOPE_GPU_DORMANT)
        launch_one();
    host_check_clean();
    CHECK(COUNTER(errors) == 0);
}

/* Somebody comes while it is leaving. */
static void started_while_leaving(int rounds)
{
    host_listen(1);
    for (int i = 0; i < rounds; i++) {
        host_start(0);
        step();
        rlscope_gpu_stop();
        host_await(RLSCOPE_GPU_LEAVING); /* nothing is called, so it takes its time */
        CHECK(rlscope_gpu_start(0, 0) == RLSCOPE_GPU_LEAVING);
        host_await(RLSCOPE_GPU_ACTIVE);
        uint64_t before = COUNTER(kernels);
        step();
        synchronize();
        host_stop();
        CHECK(COUNTER(kernels) - before == KERNELS + GRAPH_KERNELS);
        CHECK(load(rlscope_gpu_state.starts) == 2 * (uint32_t)i + 2);
    }
    host_check_clean();
}

/* Threads that come and go use the rings again; too many at a time are counted. */
static void *wait_and_launch(void *argument)
{
    pthread_barrier_wait(&barrier);
    CUDA(launch(0, 0));
    pthread_barrier_wait(&barrier);
    return argument;
}

static void many_threads(int rounds)
{
    enum { CROWD = 300 };
    static pthread_t crowd[CROWD];
    pthread_t one;

    host_listen(1);
    host_start(0);
    for (int i = 0; i < rounds; i++) {
        CHECK(!pthread_create(&one, NULL, launch_some, NULL));
        pthread_join(one, NULL);
        /* Rings of threads that have ended are free once they have been fetched. */
        while (i % 100 == 99 && COUNTER(launches) < (uint64_t)(i + 1) * 100 && COUNTER(lost_launches) == 0)
            host_pause(1000000);
    }
    CHECK(COUNTER(lost_launches) == 0);
    pthread_barrier_init(&barrier, NULL, CROWD);
    for (int i = 0; i < CROWD; i++)
        CHECK(!pthread_create(&crowd[i], NULL, wait_and_launch, NULL));
    for (int i = 0; i < CROWD; i++)
        pthread_join(crowd[i], NULL);
    synchronize();
    host_stop();
    CHECK(COUNTER(launches) + COUNTER(syncs) + COUNTER(lost_launches) == (uint64_t)(rounds * 100 + CROWD + 1));
    CHECK(COUNTER(lost_launches) >= CROWD - 256);
    CHECK(host_heard_of(RLSCOPE_GPU_KERNEL, NULL) == (uint64_t)enqueued(SIMCUDA_KERNEL));
}

static void print_at_exit(void)
{
    host_print_state();
}

/* The program ends while all is on: its last records are not lost. Prints after the helper has done its work. */
static void at_exit(int rounds)
{
    atexit(print_at_exit); /* before the helper registers its own, so it runs after that */
    host_listen(1);
    host_start(0);
    for (int i = 0; i < rounds; i++)
        CUDA(launch(0, 0));
    synchronize();
    exit(0);
}

/* A child has no helper, and may do what it likes; the parent goes on. */
static void forks(int rounds)
{
    host_listen(1);
    host_start(0);
    for (int i = 0; i < rounds; i++) {
        step();
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            CHECK(load(rlscope_gpu_state.state) == RLSCOPE_GPU_DORMANT);
            CHECK(load(rlscope_gpu_state.pid) == (uint32_t)getpid());
            exit(0); /* with the helper's atexit */
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    synchronize();
    host_stop();
    host_check_clean();
    check_counts();
}

/* More names than are kept, and one that is too long. */
static void names_flood(int rounds)
{
    static char texts[40000], text[2000];

    host_listen(1);
    host_start(0);
    memset(text, 'x', sizeof text - 1);
    simcuda_set_kernel(&texts[0], text, 10);
    CUDA(cuLaunchKernel((CUfunction)&texts[0], 1, 1, 1, 1, 1, 1, 0, streams[0], NULL, NULL));
    for (int i = 0; i < rounds; i++) {
        snprintf(text, sizeof text, "kernel number %d", i);
        simcuda_set_kernel(&kernels[0], text, 10);
        CUDA(launch(0, 0));
    }
    synchronize();
    host_stop();
    CHECK(COUNTER(kernels) == (uint64_t)rounds + 1 && COUNTER(cut_names) == 1);
    CHECK(COUNTER(names) + COUNTER(lost_names) == (uint64_t)rounds + 1);
    CHECK(heard->names == COUNTER(names));
}

/* Cannot start: no library, or one that is not known. */
static void cannot(int state)
{
    host_listen(1);
    rlscope_gpu_start(0, 0);
    host_await((uint32_t)state);
    step();
    host_await((uint32_t)state);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(int number);
        int number;
    } scenarios[] = {
        {"everything", everything, 200},
        {"launches", launches, 10000},
        {"wrapped_correlation", wrapped_correlation, 50},
        {"failed_launches", failed_launches, 999},
        {"foreign", foreign, 20},
        {"errors", errors, 5},
        {"listener_dies", listener_dies, 20},
        {"nobody", nobody, 20},
        {"listener_comes_late", listener_comes_late, 50},
        {"flood", flood, 60000},
        {"no_memory", no_memory, 500},
        {"again", again, 20},
        {"finalize", finalize, 3},
        {"started_while_leaving", started_while_leaving, 3},
        {"many_threads", many_threads, 600},
        {"at_exit", at_exit, 500},
        {"forks", forks, 5},
        {"names_flood", names_flood, 33000},
        {"cannot", cannot, RLSCOPE_GPU_NO_LIBRARY},
    };

    for (size_t i = 0; argc > 1 && i < sizeof scenarios / sizeof *scenarios; i++)
        if (!strcmp(scenarios[i].name, argv[1])) {
            prepare();
            scenarios[i].run(argc > 2 ? atoi(argv[2]) : scenarios[i].number);
            host_print_state();
            return 0;
        }
    fprintf(stderr, "no such scenario\n");
    return 2;
}
