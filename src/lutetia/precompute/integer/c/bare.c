/* Runs a model without a C library under the user mode of qemu: system calls, and the three functions that compilers call.
 *
 * A classifier reads samples as arrays of input_t, or as those that lutetia_encode takes; of windows of signals, samples as int32_t. It
 * writes its answers as int32_t, each with the half width of its interval where it has one. A language model reads one byte, how many bytes to write, then the prompt.
 */
#include "model.h"

#include <stddef.h>

#if defined(__arm__)
enum { EXIT = 1, READ = 3, WRITE = 4 };

static long call(long number, long first, void *place, long size)
{
    register long r7 __asm__("r7") = number;
    register long r0 __asm__("r0") = first;
    register void *r1 __asm__("r1") = place;
    register long r2 __asm__("r2") = size;
    __asm__ volatile("svc 0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2) : "memory");
    return r0;
}
#else
enum { EXIT = 93, READ = 63, WRITE = 64 };

static long call(long number, long first, void *place, long size)
{
    register long a7 __asm__("a7") = number;
    register long a0 __asm__("a0") = first;
    register void *a1 __asm__("a1") = place;
    register long a2 __asm__("a2") = size;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2) : "memory");
    return a0;
}
#endif

void *memmove(void *to, const void *from, size_t n)
{
    char *a = to;
    const char *b = from;
    size_t i;
    if (a <= b)
        for (i = 0; i < n; i++)
            a[i] = b[i];
    else
        for (i = n; i > 0; i--)
            a[i - 1] = b[i - 1];
    return to;
}

void *memcpy(void *to, const void *from, size_t n)
{
    return memmove(to, from, n);
}

void *memset(void *to, int value, size_t n)
{
    char *a = to;
    size_t i;
    for (i = 0; i < n; i++)
        a[i] = (char)value;
    return to;
}

/* Reads exactly n bytes: 1, or 0 at the end of the input. */
static int take(void *place, long n)
{
    char *to = place;
    while (n > 0) {
        long got = call(READ, 0, to, n);
        if (got <= 0)
            return 0;
        to += got;
        n -= got;
    }
    return 1;
}

void _start(void);
void _start(void)
{
#ifdef LUTETIA_INPUTS
#ifndef LUTETIA_SIGNALS
    static input_t x[LUTETIA_INPUTS];
#endif
    int32_t answer;
#ifdef LUTETIA_ENCODES
    static sample_t sample[LUTETIA_SAMPLE];
    while (take(sample, sizeof sample)) {
        lutetia_encode(sample, x);
#elif defined LUTETIA_SIGNALS
    static int32_t sample[LUTETIA_SIGNALS];
    const input_t *x = lutetia_window;
    while (take(sample, sizeof sample)) {
        if (!lutetia_push(sample))
            continue;
#else
    while (take(x, sizeof x)) {
#endif
        answer = lutetia_answer(x);
        call(WRITE, 1, &answer, sizeof answer);
#ifdef LUTETIA_INTERVALS
        answer = lutetia_half_width(x);
        call(WRITE, 1, &answer, sizeof answer);
#endif
    }
#else
    static lutetia_state state;
    uint8_t count = 0, byte;
    lutetia_reset(&state);
    take(&count, 1);
    while (take(&byte, 1))
        lutetia_put(&state, byte);
    for (; count > 0; count--) {
        byte = (uint8_t)lutetia_best(&state);
        call(WRITE, 1, &byte, 1);
        if (count > 1)
            lutetia_put(&state, byte);
    }
#endif
    call(EXIT, 0, 0, 0);
    for (;;)
        ;
}
