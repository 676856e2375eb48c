// A plugin of stacks.c: threads that are cancelled in the middle of a call of the library that sleeps. What they hold is
// given back by a destructor, which runs only if the call can be unwound.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
#include "stacks.h"

typedef void rest_function(long);

static rest_function *rest;
static long given_back;

struct Holder {
    ~Holder() { given_back++; }
};

static void *hold(void *)
{
    Holder holder;
    rest(1000);
    return nullptr;
}

extern "C" __attribute__((visibility("default"))) long unusual_rounds(run_callback_function *run_callback, long rounds)
{
    Dl_info library;
    if (!dladdr(reinterpret_cast<void *>(run_callback), &library))
        return 0;
    rest = reinterpret_cast<rest_function *>(dlsym(dlopen(library.dli_fname, RTLD_NOW | RTLD_NOLOAD), "rest"));
    given_back = 0;
    for (long i = 0; i < rounds / 10; i++) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, hold, nullptr))
            break;
        usleep(1000);
        pthread_cancel(thread);
        pthread_join(thread, nullptr);
    }
    return given_back * 10;
}
