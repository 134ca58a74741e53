
static sample_t ring[LUTETIA_WINDOW][LUTETIA_SIGNALS];
static int oldest = 0;                /* where the next sample goes; in a full window the oldest one is there */
static int32_t left = LUTETIA_WINDOW; /* samples until a window is full */
input_t lutetia_window[LUTETIA_INPUTS];

void lutetia_restart(void)
{
    oldest = 0;
    left = LUTETIA_WINDOW;
}

/* Sample t of a signal, the oldest is number 0. */
static total_t at(int t, int signal)
{
    t += oldest;
    return ring[t >= LUTETIA_WINDOW ? t - LUTETIA_WINDOW : t][signal];
}

static total_t apart(total_t a, total_t b)
{
    return a > b ? a - b : b - a;
}

/* The sum of some samples. */
static total_t sum_of(int signal, int begin, int end)
{
    total_t sum = 0;
    for (; begin < end; begin++)
        sum += at(begin, signal);
    return sum;
}

/* The mean of a window, rounded down, below 0 too. */
static total_t mean_of(int signal)
{
    total_t sum = sum_of(signal, 0, LUTETIA_WINDOW), mean = sum / LUTETIA_WINDOW;
    return mean - (mean * LUTETIA_WINDOW > sum);
}

/* How far some samples are from those `lag` before, added up. */
static total_t change(int signal, int begin, int end, int lag)
{
    total_t sum = 0;
    for (begin += lag; begin < end; begin++)
        sum += apart(at(begin, signal), at(begin - lag, signal));
    return sum;
}

/* The place of the first smallest sample, or largest, of some. */
static int place(int signal, int begin, int end, int is_largest)
{
    int best = begin;
    for (begin++; begin < end; begin++)
        if (is_largest ? at(begin, signal) > at(best, signal) : at(begin, signal) < at(best, signal))
            best = begin;
    return best;
}

static total_t range(int signal, int begin, int end)
{
    return at(place(signal, begin, end, 1), signal) - at(place(signal, begin, end, 0), signal);
}

#ifdef LUTETIA_SHAPES
/* At how many places three of nine samples are above the six others: three times their sum, less that of all nine, is above a
 * constant. One place and the place `apart` after it share eight of the nine. */
static total_t count_shape(int number, int signal)
{
    int apart_by = APART[number], places = LUTETIA_WINDOW - 8 * apart_by, first, t;
    total_t count = 0;
    for (first = 0; first < apart_by && first < places; first++) {
        total_t nine = 0;
        for (t = first; t <= first + 8 * apart_by; t += apart_by)
            nine += at(t, signal);
        for (t = first; t < places; t += apart_by) {
            total_t three = at(t + RAISED[number][0], signal) + at(t + RAISED[number][1], signal) + at(t + RAISED[number][2], signal);
            count += three + three + three - nine > ABOVE[number];
            if (t + apart_by < places)
                nine += at(t + 9 * apart_by, signal) - at(t, signal);
        }
    }
    return count;
}
#endif

/* What is made of a signal: one of the kinds of signals.h, whose lag, part or shape is `number`; `mean` is rounded down. */
static total_t measure(int kind, int number, int signal, total_t mean)
{
    int parts = kind == QUARTER_CHANGE || kind == QUARTER_RANGE ? 4 : 8;
    int begin = (int)((int32_t)number * LUTETIA_WINDOW / parts), end = (int)(((int32_t)number + 1) * LUTETIA_WINDOW / parts);
    total_t sum = 0;
    int t;
    switch (kind) {
    case MEAN:
        return sum_of(signal, 0, LUTETIA_WINDOW);
    case MINIMUM:
        return at(place(signal, 0, LUTETIA_WINDOW, 0), signal);
    case MAXIMUM:
        return at(place(signal, 0, LUTETIA_WINDOW, 1), signal);
    case RANGE:
        return range(signal, 0, LUTETIA_WINDOW);
    case DEVIATION:
        for (t = 0; t < LUTETIA_WINDOW; t++)
            sum += apart(at(t, signal), mean);
        return sum;
    case CROSSINGS:
        for (t = 1; t < LUTETIA_WINDOW; t++)
            sum += (at(t, signal) > mean) != (at(t - 1, signal) > mean);
        return sum;
    case CHANGE:
        return change(signal, 0, LUTETIA_WINDOW, number);
    case AGREEMENT:
        for (t = number; t < LUTETIA_WINDOW; t++)
            sum += (at(t, signal) > mean) == (at(t - number, signal) > mean);
        return sum;
    case PLACE_OF_THE_MAXIMUM:
        return place(signal, 0, LUTETIA_WINDOW, 1);
    case PLACE_OF_THE_MINIMUM:
        return place(signal, 0, LUTETIA_WINDOW, 0);
    case PART:
        return sum_of(signal, begin, end);
    case PART_ABOVE:
        for (t = begin; t < end; t++)
            sum += at(t, signal) - mean;
        return sum;
    case QUARTER_CHANGE:
        return change(signal, begin, end, 1);
#ifdef LUTETIA_SHAPES
    case SHAPE:
        return count_shape(number, signal);
#endif
    default:
        return range(signal, begin, end);
    }
}

int lutetia_push(const int32_t sample[LUTETIA_SIGNALS])
{
    total_t mean = 0;
    int i, signal, known = -1;
    for (signal = 0; signal < LUTETIA_SIGNALS; signal++) {
        int32_t value = sample[signal];
        value = value < LUTETIA_LEAST ? LUTETIA_LEAST : value > LUTETIA_MOST ? LUTETIA_MOST : value;
        ring[oldest][signal] = (sample_t)value;
    }
    oldest = oldest + 1 == LUTETIA_WINDOW ? 0 : oldest + 1;
    if (--left)
        return 0;
    left = LUTETIA_STEP;
    for (i = 0; i < LUTETIA_INPUTS; i++) {
        lutetia_window[i] = 1;
        if (START[i] == START[i + 1]) /* nothing is asked of it */
            continue;
        signal = SIGNAL[i];
        if (signal != known) {
            mean = mean_of(signal);
            known = signal;
        }
        lutetia_window[i] = code_of(i, measure(KIND[i], NUMBER[i], signal, mean));
    }
    return 1;
}
