/* BCC carries its own copy of the BPF user API. */
#include <bcc/bpf.h>
