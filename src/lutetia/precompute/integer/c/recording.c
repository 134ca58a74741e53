
/* A value as a sample: the nearest whole number of steps, of two the even one. */
static int32_t sample_of(double value, double steps)
{
    int32_t whole;
    double rest;
    value *= steps;
    if (value <= LUTETIA_LEAST)
        return LUTETIA_LEAST;
    if (value >= LUTETIA_MOST)
        return LUTETIA_MOST;
    whole = (int32_t)value;
    rest = value - whole;
    if (rest > 0.5 || (rest == 0.5 && whole % 2))
        whole++;
    if (rest < -0.5 || (rest == -0.5 && whole % 2))
        whole--;
    return whole;
}

/* The place of a column in the first line; -1 where it has none of this name. */
static int find(const char *name, int width)
{
    int i;
    for (i = 0; i < width; i++)
        if (has_name(i, name))
            return i;
    return -1;
}

int main(void)
{
    static int place[LUTETIA_SIGNALS];
    static int32_t sample[LUTETIA_SIGNALS];
    static char recording[LONGEST];
    int signal, series = -1, width, count, is_first = 1;
    look_at_file();
    width = read_row();
    for (signal = 0; signal < LUTETIA_SIGNALS; signal++)
        if ((place[signal] = find(lutetia_columns[signal], width)) < 0)
            stop("the first line has no column ", lutetia_columns[signal]);
    if (*SERIES)
        series = find(SERIES, width);
#ifdef LUTETIA_INTERVALS
    write_names();
#endif
    while ((count = read_row()) > 0) {
        if (count != width)
            stop("the row has another number of cells than the first line", "");
        if (series >= 0) {
            if (is_missing(cells[series], 0))
                stop("there is no name of a recording in column ", SERIES);
            if (!is_first && strcmp(recording, cells[series]))
                lutetia_restart();
            strcpy(recording, cells[series]);
            is_first = 0;
        }
        for (signal = 0; signal < LUTETIA_SIGNALS; signal++) {
            double value = value_of(cells[place[signal]], signal);
            if (value != value)
                stop("there is no sample in column ", lutetia_columns[signal]);
            sample[signal] = sample_of(value, STEPS[signal]);
        }
        if (lutetia_push(sample))
            write_answer(lutetia_window);
    }
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "the answers cannot be written\n");
        return 1;
    }
    return 0;
}
