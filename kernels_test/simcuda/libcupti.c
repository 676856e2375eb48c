/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated CUPTI: subscribers, callbacks, settings. Records and buffers: simcupti_buffers.c.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "simcupti_state.h"
#include "simcupti_ids.h"
#include "simcuda_call.h"

#define MAX_ID 1024

struct simcupti simcupti = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct {
    void *handle;
    cu_callback callback;
    void *user;
} subscriber;
static uint8_t enabled[3][MAX_ID]; /* by domain and callback id */
static int64_t enabled_count, finalized, finalized_outside, called;
static __thread int in_exit_callback;

#define DRIVER_ID(name, id) [SIMCUDA_##name] = id,
#define RUNTIME_ID(name, version, id) [SIMCUDA_##name] = id,
static const uint16_t ids[SIMCUDA_FUNCTIONS] = {SIMCUPTI_DRIVER_IDS(DRIVER_ID) SIMCUPTI_RUNTIME_IDS(RUNTIME_ID)};
#define DRIVER_NAME(name, id) [id] = #name,
#define RUNTIME_NAME(name, version, id) [id] = #name "_v" #version,
static const char *const driver_names[MAX_ID] = {SIMCUPTI_DRIVER_IDS(DRIVER_NAME)};
static const char *const runtime_names[MAX_ID] = {SIMCUPTI_RUNTIME_IDS(RUNTIME_NAME)};

/* -- settings ----------------------------------------------------------------------------------------------------- */

#define FUNCTION_NAME(name, arguments) #name,
static const char *const functions[] = {CU_REQUIRED(FUNCTION_NAME) CU_OPTIONAL(FUNCTION_NAME)};
#define FUNCTIONS (sizeof functions / sizeof *functions)
static int failures[FUNCTIONS];

static int failure(const char *name)
{
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (!strcmp(functions[i], name))
            return __atomic_load_n(&failures[i], __ATOMIC_RELAXED);
    abort();
}
#define MAY_FAIL()                                                                                                     \
    do {                                                                                                               \
        int told = failure(__func__);                                                                                  \
        if (told)                                                                                                      \
            return told;                                                                                               \
        simcupti_begin();                                                                                              \
    } while (0)

int simcupti_set(const char *name, int64_t value)
{
    static const struct {
        const char *name;
        int64_t *place;
    } settings[] = {
        {"zero", &simcupti.zero},         {"reversed", &simcupti.reversed}, {"future", &simcupti.future},
        {"nameless", &simcupti.nameless}, {"unknown", &simcupti.unknown},   {"drop", &simcupti.drop},
        {"broken", &simcupti.broken},     {"unordered", &simcupti.unordered}, {"version", &simcupti.version},
    };

    if (!strncmp(name, "fail.", 5)) {
        for (size_t i = 0; i < FUNCTIONS; i++)
            if (!strcmp(functions[i], name + 5)) {
                __atomic_store_n(&failures[i], (int)value, __ATOMIC_RELAXED);
                return 0;
            }
        return -1;
    }
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!strcmp(settings[i].name, name)) {
            __atomic_store_n(settings[i].place, value, __ATOMIC_RELAXED);
            return 0;
        }
    return -1;
}

int64_t simcupti_get(const char *name)
{
    int64_t found = -1;

    pthread_mutex_lock(&simcupti.lock);
    if (!strcmp(name, "subscribers"))
        found = subscriber.handle != NULL;
    else if (!strcmp(name, "kinds"))
        found = __builtin_popcountll(simcupti.kinds);
    else if (!strcmp(name, "callbacks"))
        found = enabled_count;
    else if (!strcmp(name, "clock"))
        found = simcupti.clock != NULL;
    else if (!strcmp(name, "buffers"))
        found = simcupti.buffers;
    else if (!strcmp(name, "records"))
        found = simcupti.records;
    else if (!strcmp(name, "dropped"))
        found = simcupti.dropped_ever;
    else if (!strcmp(name, "finalized"))
        found = finalized;
    else if (!strcmp(name, "finalized_outside"))
        found = finalized_outside;
    else if (!strcmp(name, "called"))
        found = __atomic_load_n(&called, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&simcupti.lock);
    return found;
}

__attribute__((constructor)) static void read_environment(void)
{
    const char *given = getenv("SIMCUPTI");
    char *copy = given ? strdup(given) : NULL, *rest = copy, *item;

    while (copy && (item = strsep(&rest, ","))) {
        char *equals = strchr(item, '=');
        if (!*item)
            continue;
        if (equals)
            *equals++ = '\0';
        if (!equals || simcupti_set(item, strtoll(equals, NULL, 10))) {
            fprintf(stderr, "simcupti: SIMCUPTI: \"%s\" is no setting.\n", item);
            abort(); /* a typing error must not become a wrong truth */
        }
    }
    free(copy);
}

/* -- callbacks ---------------------------------------------------------------------------------------------------- */

static uint8_t unrecorded[3][MAX_ID]; /* by domain and callback id: no activity records of it */
static int system_threads;
static __thread uint32_t depth; /* of calls */
static __thread int64_t entered;

static void record_call(uint32_t domain, uint32_t id, const int *result, uint32_t correlation)
{
    if (!result) {
        if (!depth++)
            entered = simcuda_now();
        return;
    }
    if (!depth || --depth || unrecorded[domain][id]) /* what a call of the runtime makes is none of its own */
        return;
    simcupti_call(&(struct simcupti_api){
        .kind = domain == CU_DOMAIN_DRIVER ? SIMCUPTI_KIND_DRIVER : SIMCUPTI_KIND_RUNTIME,
        .function = id,
        .start = (uint64_t)entered,
        .end = (uint64_t)simcuda_now(),
        .process = (uint32_t)getpid(),
        .thread = system_threads ? (uint32_t)gettid() : (uint32_t)pthread_self(),
        .correlation = correlation,
        .result = (uint32_t)*result,
    });
}

static void api(uint32_t domain, uint32_t function, const int *result, uint32_t correlation, uint64_t *own)
{
    uint32_t id = ids[function];
    struct cu_callback_data data = {
        .site = result ? CU_SITE_EXIT : CU_SITE_ENTER,
        .function = simcuda_name(function),
        .result = result,
        .context_id = SIMCUDA_CONTEXT,
        .own = own,
        .correlation = correlation,
    };

    if (id)
        record_call(domain, id, result, correlation);
    if (!id || !__atomic_load_n(&enabled[domain][id], __ATOMIC_ACQUIRE))
        return;
    cu_callback callback = __atomic_load_n(&subscriber.callback, __ATOMIC_ACQUIRE);
    if (!callback)
        return;
    __atomic_fetch_add(&called, 1, __ATOMIC_RELAXED);
    in_exit_callback += result != NULL;
    callback(__atomic_load_n(&subscriber.user, __ATOMIC_RELAXED), domain, id, &data);
    in_exit_callback -= result != NULL;
}

static const struct simcuda_profiler profiler = {api, simcupti_item};

/* What any call of CUPTI's does first. */
void simcupti_begin(void)
{
    pthread_mutex_lock(&simcupti.lock);
    if (!simcupti.begun)
        simcuda_set_profiler(&profiler);
    simcupti.begun = 1;
    pthread_mutex_unlock(&simcupti.lock);
}

int cuptiGetVersion(uint32_t *version)
{
    int64_t told = __atomic_load_n(&simcupti.version, __ATOMIC_RELAXED);

    MAY_FAIL();
    *version = told ? (uint32_t)told : SIMCUPTI_MAJOR == 12 ? 18 : 130001;
    return CU_OK;
}

int cuptiGetTimestamp(uint64_t *time)
{
    MAY_FAIL();
    pthread_mutex_lock(&simcupti.lock);
    *time = (uint64_t)(simcuda_now() + simcupti_shift());
    pthread_mutex_unlock(&simcupti.lock);
    return CU_OK;
}

int cuptiSubscribe(void **handle, cu_callback callback, void *user)
{
    int result = CU_OK;

    MAY_FAIL();
    if (!handle || !callback)
        return CU_INVALID_PARAMETER;
    pthread_mutex_lock(&simcupti.lock);
    if (subscriber.handle) {
        result = CU_MULTIPLE_SUBSCRIBERS;
    } else {
        *handle = subscriber.handle = &subscriber;
        __atomic_store_n(&subscriber.user, user, __ATOMIC_RELAXED);
        __atomic_store_n(&subscriber.callback, callback, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&simcupti.lock);
    return result;
}

/* The lock is held. */
static void forget_subscriber(void)
{
    subscriber.handle = NULL;
    __atomic_store_n(&subscriber.callback, NULL, __ATOMIC_RELEASE);
    for (int domain = 0; domain < 3; domain++)
        for (int id = 0; id < MAX_ID; id++)
            __atomic_store_n(&enabled[domain][id], 0, __ATOMIC_RELEASE);
    enabled_count = 0;
}

int cuptiUnsubscribe(void *handle)
{
    int result = CU_OK;

    MAY_FAIL();
    pthread_mutex_lock(&simcupti.lock);
    if (!handle || handle != subscriber.handle)
        result = CU_INVALID_PARAMETER;
    else
        forget_subscriber();
    pthread_mutex_unlock(&simcupti.lock);
    return result;
}

static const char *name_of(uint32_t domain, uint32_t id)
{
    if (id >= MAX_ID || (domain != CU_DOMAIN_DRIVER && domain != CU_DOMAIN_RUNTIME))
        return NULL;
    return domain == CU_DOMAIN_DRIVER ? driver_names[id] : runtime_names[id];
}

/* The lock is held. */
static int enable(uint32_t on, const void *handle, uint32_t domain, uint32_t id)
{
    if (!handle || handle != subscriber.handle || !name_of(domain, id))
        return CU_INVALID_PARAMETER;
    enabled_count += !!on - enabled[domain][id];
    __atomic_store_n(&enabled[domain][id], !!on, __ATOMIC_RELEASE);
    return CU_OK;
}

int cuptiEnableCallback(uint32_t on, void *handle, uint32_t domain, uint32_t id)
{
    MAY_FAIL();
    pthread_mutex_lock(&simcupti.lock);
    int result = enable(on, handle, domain, id);
    pthread_mutex_unlock(&simcupti.lock);
    return result;
}

int cuptiEnableDomain(uint32_t on, void *handle, uint32_t domain)
{
    int result = CU_OK;

    MAY_FAIL();
    pthread_mutex_lock(&simcupti.lock);
    if (!handle || handle != subscriber.handle || domain < CU_DOMAIN_DRIVER || domain > CU_DOMAIN_RUNTIME)
        result = CU_INVALID_PARAMETER;
    for (uint32_t id = 0; !result && id < MAX_ID; id++)
        if (name_of(domain, id))
            enable(on, handle, domain, id);
    pthread_mutex_unlock(&simcupti.lock);
    return result;
}

int cuptiGetCallbackName(uint32_t domain, uint32_t id, const char **name)
{
    MAY_FAIL();
    if (!name || !name_of(domain, id))
        return CU_INVALID_PARAMETER;
    *name = name_of(domain, id);
    return CU_OK;
}

static int set_recorded(uint32_t domain, uint32_t function, uint8_t on)
{
    simcupti_begin();
    if (function < MAX_ID)
        unrecorded[domain][function] = !on;
    return CU_OK;
}

int cuptiActivityEnableDriverApi(uint32_t function, uint8_t on)
{
    return set_recorded(CU_DOMAIN_DRIVER, function, on);
}

int cuptiActivityEnableRuntimeApi(uint32_t function, uint8_t on)
{
    return set_recorded(CU_DOMAIN_RUNTIME, function, on);
}

int cuptiSetThreadIdType(uint32_t type)
{
    system_threads = type == 1;
    return CU_OK;
}

int cuptiFinalize(void)
{
    MAY_FAIL();
    simcuda_set_profiler(NULL);
    simcupti_stop_worker();
    pthread_mutex_lock(&simcupti.lock);
    forget_subscriber();
    simcupti_forget_buffers();
    finalized++;
    finalized_outside += !in_exit_callback;
    simcupti.begun = 0;
    pthread_mutex_unlock(&simcupti.lock);
    return CU_OK;
}

int simcupti_failure(const char *name)
{
    return failure(name);
}
