/* What stacks.c, its library and its plugins agree upon. */
#ifndef STACKS_H
#define STACKS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef void callback(void *argument);

/* Of the library: calls what it is given; 1. */
typedef int run_callback_function(callback *function, void *argument);

/* Of a plugin: that many calls of run_callback which end in an unusual way; how many did. */
typedef long unusual_rounds_function(run_callback_function *run_callback, long rounds);

#ifdef __cplusplus
}
#endif

#endif
