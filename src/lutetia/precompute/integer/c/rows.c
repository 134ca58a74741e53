
int main(void)
{
    static int place[LUTETIA_COLUMNS];
#ifdef LUTETIA_TEXTS
    static double values[LUTETIA_VALUES];
    const int n_plain = LUTETIA_COLUMNS - LUTETIA_TEXTS;
#else
    static double values[LUTETIA_COLUMNS];
    const int n_plain = LUTETIA_COLUMNS;
#endif
#ifdef LUTETIA_READINGS
    static sample_t numbers[LUTETIA_COLUMNS];
#endif
    static input_t x[LUTETIA_INPUTS];
    int column, i, width;
    look_at_file();
    width = read_row();
    for (column = 0; column < LUTETIA_COLUMNS; column++) {
        for (i = 0; i < width && !has_name(i, lutetia_columns[column]); i++)
            ;
        if (i == width)
            stop("the first line has no column ", lutetia_columns[column]);
        place[column] = i;
    }
#ifdef LUTETIA_INTERVALS
    write_names();
#endif
    while ((i = read_row()) > 0) {
        if (i != width)
            stop("the row has another number of cells than the first line", "");
        for (column = 0; column < n_plain; column++)
            values[column] = value_of(cells[place[column]], column);
#ifdef LUTETIA_TEXTS
        for (; column < LUTETIA_COLUMNS; column++)
            lutetia_text(column - n_plain, is_missing(cells[place[column]], 0) ? 0 : cells[place[column]], values);
#endif
#ifdef LUTETIA_READINGS
        column = lutetia_numbers(values, numbers);
        if (column >= 0)
            stop("none was missing in the training data, so there has to be a value in column ", lutetia_columns[column]);
        lutetia_encode(numbers, x);
#else
        lutetia_encode(values, x);
#endif
        write_answer(x);
    }
    if (n_unknown)
        fprintf(stderr, "%ld cells hold a category that the model has not seen: taken for missing\n", n_unknown);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "the answers cannot be written\n");
        return 1;
    }
    return 0;
}
