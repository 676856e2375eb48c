/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds libcupti. The one that the process has mapped comes first: PyTorch brings its own, and two in one process do
 * not get on. Otherwise it lies beside the CUDA runtime that the process uses, or wherever the system finds it.
 */
#define _GNU_SOURCE
#include "cupti_helper.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cupti cupti;

int cupti_result(enum cupti_call call, int result)
{
    if (result != CU_OK) {
        count(errors);
        store(rlscope_gpu_state.error, (uint32_t)result);
        store(rlscope_gpu_state.failed_call, (uint32_t)call);
    }
    return result;
}

struct mapped {
    char cupti[PATH_MAX];   /* the first libcupti */
    char runtime[PATH_MAX]; /* the first libcudart */
};

static void keep(char *to, const char *path)
{
    if (!*to && strlen(path) < PATH_MAX)
        strcpy(to, path);
}

static int look(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct mapped *found = argument;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;

    (void)size;
    if (slash && !strncmp(slash, "/libcupti.so", 12))
        keep(found->cupti, info->dlpi_name);
    if (slash && !strncmp(slash, "/libcudart.so", 13))
        keep(found->runtime, info->dlpi_name);
    return 0;
}

/* Opens DIRECTORY/BETWEEN/NAME. */
static void *open_beside(const char *directory, const char *between, const char *name)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s%s", directory, between, name);

    return length > 0 && length < (int)sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void *find(void)
{
    /* From the runtime's folder: a toolkit; wheels, which have folders of their own for 12 and share one for 13. */
    static const char *const folders[] = {"", "../extras/CUPTI/lib64/", "../../../extras/CUPTI/lib64/",
                                          "../../cuda_cupti/lib/"};
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};
    static struct mapped found;
    const char *chosen = getenv("RLSCOPE_LIBCUPTI");
    void *handle = NULL;
    char *end;

    memset(&found, 0, sizeof found);
    dl_iterate_phdr(look, &found);
    if (*found.cupti)
        return dlopen(found.cupti, RTLD_NOW | RTLD_LOCAL);
    if (chosen && *chosen)
        return dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
    end = strrchr(found.runtime, '/');
    if (end) {
        const char *major = strstr(end, ".so.");
        int newest = !(major && !strncmp(major, ".so.12", 6));
        *end = '\0';
        for (size_t i = 0; !handle && i < sizeof folders / sizeof *folders; i++)
            handle = open_beside(found.runtime, folders[i], names[!newest]);
    }
    for (size_t i = 0; !handle && i < sizeof names / sizeof *names; i++)
        handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; !handle && i < sizeof names / sizeof *names; i++)
        handle = open_beside("/usr/local/cuda/extras/CUPTI/lib64", "", names[i]);
    return handle;
}

int cupti_open(void)
{
    struct cupti opened = {0};
    int missing = 0;

    if (cupti.handle)
        return 1;
    opened.handle = find();
    if (!opened.handle)
        return 0;
#define FIND(name, arguments) opened.name = (__typeof__(opened.name))dlsym(opened.handle, #name);
#define CHECK(name, arguments) missing += !opened.name;
    CU_REQUIRED(FIND)
    CU_OPTIONAL(FIND)
    CU_REQUIRED(CHECK)
    if (missing) /* too old; it stays open: closing a library that others may use is not ours */
        return 0;
    cupti = opened;
    store(rlscope_gpu_state.simulated, dlsym(opened.handle, "simcupti_get") != NULL);
    return 1;
}
