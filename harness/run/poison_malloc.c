/* Fills what malloc hands out, so that a program that reads before it writes gives other answers.

   LD_PRELOAD of a server that is not torch; `mla-harness serve` compiles it. calloc promises zeros and mmap too, so
   these stay as they are. POISON_MALLOC_BYTE is the byte, 255 by default: NaN in every type of floats, -1 as an
   integer. At the end of the process a line says how much was filled. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The allocator of glibc by its own names: dlsym would allocate before it has found it. */
extern void *__libc_malloc(size_t);
extern void *__libc_memalign(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static int byte = 255;
static uint64_t blocks, bytes;

static void *filled(void *memory, size_t start, size_t size) {
    if (memory && size > start) {
        memset((char *)memory + start, byte, size - start);
        __atomic_add_fetch(&blocks, 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&bytes, size - start, __ATOMIC_RELAXED);
    }
    return memory;
}

void *malloc(size_t size) { return filled(__libc_malloc(size), 0, size); }
void *memalign(size_t align, size_t size) { return filled(__libc_memalign(align, size), 0, size); }
void *aligned_alloc(size_t align, size_t size) { return memalign(align, size); }

int posix_memalign(void **found, size_t align, size_t size) {
    if (align % sizeof(void *) || align & (align - 1) || !align) return EINVAL;
    void *memory = memalign(align, size);
    if (!memory) return ENOMEM;
    *found = memory;
    return 0;
}

void *realloc(void *old, size_t size) {
    /* What the program wrote to the old block may reach to the end of it. */
    size_t kept = old ? malloc_usable_size(old) : 0;
    return filled(__libc_realloc(old, size), kept, size);
}

__attribute__((constructor)) static void begin(void) {
    const char *given = getenv("POISON_MALLOC_BYTE");
    if (given) byte = atoi(given);
}

__attribute__((destructor)) static void end(void) {
    if (getenv("POISON_MALLOC_TELL"))
        fprintf(stderr, "poison-malloc: %llu blocks, %llu MiB filled with byte %d\n",
                (unsigned long long)blocks, (unsigned long long)(bytes >> 20), byte);
}
