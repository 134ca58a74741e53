/* ---- the program ----------------------------------------------------------------------------------------------------- */

#ifndef LUTETIA_NO_MAIN

#ifndef LUTETIA_ENCODES
#define LUTETIA_SAMPLE LUTETIA_INPUTS
#define LUTETIA_LEAST 0
#define LUTETIA_MOST LUTETIA_LARGEST
typedef input_t sample_t;
#endif

static int refuse(long line, const char *why, long long value)
{
    fprintf(stderr, "line %ld: ", line);
    fprintf(stderr, why, value);
    fprintf(stderr, "\n");
    return 1;
}

static int is_between(int c)
{
    return c == ' ' || c == '\t' || c == ',' || c == '\r';
}

/* Reads one sample from a line, up to its end: 1, or 0 at the end of the input, or -1 after a message. */
static int read_sample(sample_t *x, long line)
{
    int c = getchar(), n = 0;
    if (c == EOF)
        return 0;
    for (;;) {
        long long value = 0;
        int is_negative;
        while (is_between(c))
            c = getchar();
        if (c == '\n' || c == EOF)
            break;
        is_negative = c == '-' && LUTETIA_LEAST < 0;
        c = is_negative ? getchar() : c;
        if (c < '0' || c > '9')
            return -refuse(line, "the character of code %lld is no part of a whole number", c);
        for (; c >= '0' && c <= '9'; c = getchar()) {
            value = (value << 3) + (value << 1) + (c - '0');
            if (!is_negative && value > LUTETIA_MOST)
                return -refuse(line, "a number is larger than %lld, the largest input", LUTETIA_MOST);
            if (is_negative && -value < LUTETIA_LEAST)
                return -refuse(line, "a number is smaller than %lld, the smallest input", LUTETIA_LEAST);
        }
        if (!is_between(c) && c != '\n' && c != EOF)
            return -refuse(line, "the character of code %lld is no part of a whole number", c);
        if (n < LUTETIA_SAMPLE)
            x[n] = (sample_t)(is_negative ? -value : value);
        n++;
        if (n > LUTETIA_SAMPLE)
            return -refuse(line, "there are more than %lld numbers", LUTETIA_SAMPLE);
    }
    if (n < LUTETIA_SAMPLE) {
        fprintf(stderr, "line %ld: there are %d numbers, expected %d\n", line, n, LUTETIA_SAMPLE);
        return -1;
    }
    return 1;
}

int main(int argc, char **argv)
{
    static sample_t sample[LUTETIA_SAMPLE];
#ifdef LUTETIA_ENCODES
    static input_t x[LUTETIA_INPUTS];
#else
    const input_t *x = sample;
#endif
    long line = 1;
    int got;
    if (argc > 1) {
        fprintf(stderr, "usage: %s < SAMPLES\none sample a line, %d whole numbers from %lld to %lld; writes one answer a line\n",
                argv[0], LUTETIA_SAMPLE, (long long)LUTETIA_LEAST, (long long)LUTETIA_MOST);
        return 2;
    }
    while ((got = read_sample(sample, line)) > 0) {
#ifdef LUTETIA_ENCODES
        lutetia_encode(sample, x);
#endif
#ifdef LUTETIA_WIDTH_UNIT
        printf("%ld %ld\n", (long)lutetia_answer(x), (long)lutetia_half_width(x)); /* which have different units */
#elif defined LUTETIA_INTERVALS
        long answer = lutetia_answer(x), width = lutetia_half_width(x);
        printf("%ld %ld %ld\n", answer, answer - width, answer + width);
#else
        printf("%ld\n", (long)lutetia_answer(x));
#endif
        line++;
    }
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "the answers cannot be written\n");
        return 1;
    }
    return got < 0 ? 1 : 0;
}

#endif
