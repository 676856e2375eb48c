/* Stub: BCC compares against this; uprobe programs are not tied to a version. */
#ifndef RLSCOPE_STUB_VERSION_H
#define RLSCOPE_STUB_VERSION_H
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + ((c) > 255 ? 255 : (c)))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 15, 0)
#endif
