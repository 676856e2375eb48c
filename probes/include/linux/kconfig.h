/* Stub: BCC force-includes this file. It stands for a kernel configuration with BPF. */
#ifndef RLSCOPE_STUB_KCONFIG_H
#define RLSCOPE_STUB_KCONFIG_H
#define CONFIG_BPF_SYSCALL 1
#endif
