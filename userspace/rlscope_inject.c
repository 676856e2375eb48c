/* SPDX-License-Identifier: Apache-2.0
 *
 * librlscope_inject.so: what is loaded into a running process to load the GPU helper. Frida takes a library away again
 * as soon as its entry returns, so it cannot be the helper itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

/* `path`: of the helper, which is loaded, unless one is there, and started. */
__attribute__((visibility("default"))) void rlscope_inject(const char *path, int *unload_policy, void *injector)
{
    void *helper = dlopen("librlscope_cupti.so", RTLD_NOW | RTLD_NOLOAD);
    uint32_t (*start)(uint32_t flags, uint32_t patience_ms) = NULL;

    (void)unload_policy, (void)injector;
    if (!helper)
        helper = dlopen(path, RTLD_NOW | RTLD_NODELETE);
    if (helper)
        *(void **)&start = dlsym(helper, "rlscope_gpu_start");
    if (start)
        start(0, 0);
}
