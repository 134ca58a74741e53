/* ---- the program ----------------------------------------------------------------------------------------------------- */

#ifndef LUTETIA_NO_MAIN

#ifdef LUTETIA_PIXELS
typedef uint8_t sample_t;
enum { SAMPLE = LUTETIA_PIXELS, LARGEST = 255 };
#else
typedef input_t sample_t;
enum { SAMPLE = LUTETIA_INPUTS, LARGEST = LUTETIA_LARGEST };
#endif

static int refuse(long line, const char *why, long value)
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
        long value = 0;
        while (is_between(c))
            c = getchar();
        if (c == '\n' || c == EOF)
            break;
        if (c < '0' || c > '9')
            return -refuse(line, "the character of code %ld is no part of a whole number", c);
        for (; c >= '0' && c <= '9'; c = getchar()) {
            value = (value << 3) + (value << 1) + (c - '0');
            if (value > LARGEST)
                return -refuse(line, "a number is larger than %ld, the largest input", LARGEST);
        }
        if (!is_between(c) && c != '\n' && c != EOF)
            return -refuse(line, "the character of code %ld is no part of a whole number", c);
        if (n < SAMPLE)
            x[n] = (sample_t)value;
        n++;
        if (n > SAMPLE)
            return -refuse(line, "there are more than %ld numbers", SAMPLE);
    }
    if (n < SAMPLE) {
        fprintf(stderr, "line %ld: there are %d numbers, expected %d\n", line, n, SAMPLE);
        return -1;
    }
    return 1;
}

int main(int argc, char **argv)
{
    static sample_t sample[SAMPLE];
#ifdef LUTETIA_PIXELS
    static input_t x[LUTETIA_INPUTS];
#else
    const input_t *x = sample;
#endif
    long line = 1;
    int got;
    if (argc > 1) {
        fprintf(stderr, "usage: %s < SAMPLES\none sample a line, %d whole numbers from 0 to %d; writes one answer a line\n", argv[0],
                SAMPLE, LARGEST);
        return 2;
    }
    while ((got = read_sample(sample, line)) > 0) {
#ifdef LUTETIA_PIXELS
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
