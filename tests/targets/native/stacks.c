/* A program whose calls of a library are left in unusual ways, by a plugin.
 *
 *   stacks LIBRARY PLUGIN now|late|inside [MILLISECONDS [linger]]
 *
 * LIBRARY has run_callback(), PLUGIN unusual_rounds(): see stacks.h. The plugin is loaded before READY, after the line
 * from stdin, or after it and inside of a call of run_callback(); between its loading and its first round some time may
 * pass. Prints "READY pid", reads a line, calls the library and the plugin, prints "ROUNDS n" and exits with 0; if it is to
 * linger, it reads another line before.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "stacks.h"

#define ROUNDS 1500
#define PLAIN_CALLS 300

static run_callback_function *run_callback;
static unusual_rounds_function *unusual_rounds;
static const char *plugin;
static long milliseconds, rounds;

static void *need(void *found)
{
    if (!found) {
        fprintf(stderr, "stacks: %s\n", dlerror());
        exit(2);
    }
    return found;
}

static void load(void)
{
    unusual_rounds = (unusual_rounds_function *)need(dlsym(need(dlopen(plugin, RTLD_NOW)), "unusual_rounds"));
}

static void do_nothing(void *argument)
{
    (void)argument;
}

static void do_rounds(void *argument)
{
    (void)argument;
    if (!unusual_rounds) {
        load();
        usleep(milliseconds * 1000);
    }
    rounds = unusual_rounds(run_callback, ROUNDS);
}

int main(int argc, char **argv)
{
    char line[16];
    if (argc < 4) {
        fprintf(stderr, "usage: stacks LIBRARY PLUGIN now|late|inside [MILLISECONDS]\n");
        return 2;
    }
    run_callback = (run_callback_function *)need(dlsym(need(dlopen(argv[1], RTLD_NOW)), "run_callback"));
    plugin = argv[2];
    milliseconds = argc > 4 ? atol(argv[4]) : 0;
    if (!strcmp(argv[3], "now"))
        load();
    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 2;
    for (int i = 0; i < PLAIN_CALLS; i++)
        run_callback(do_nothing, NULL);
    if (strcmp(argv[3], "inside"))
        do_rounds(NULL);
    else
        run_callback(do_rounds, NULL);
    for (int i = 0; i < PLAIN_CALLS; i++)
        run_callback(do_nothing, NULL);
    if (argc > 5 && !fgets(line, sizeof line, stdin))
        return 2;
    printf("ROUNDS %ld\n", rounds);
    return 0;
}
