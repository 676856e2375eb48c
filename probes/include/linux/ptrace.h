/* Stub: the kernel's register layout for BPF programs on uprobes (x86-64: arch/x86/include/asm/ptrace.h). */
#ifndef RLSCOPE_STUB_PTRACE_H
#define RLSCOPE_STUB_PTRACE_H
#if defined(__x86_64__) || defined(__TARGET_ARCH_x86)
struct pt_regs {
    unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#else
#error "rlscope-ebpf's register layout is not known for this architecture"
#endif
#endif
