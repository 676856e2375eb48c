/* Stub. */
#ifndef RLSCOPE_STUB_PAGE_H
#define RLSCOPE_STUB_PAGE_H
#define PAGE_SIZE 4096UL
#endif
