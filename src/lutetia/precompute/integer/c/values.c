
/* ---- the program ----------------------------------------------------------------------------------------------------- */

#define MOST_NAMES 20 /* categories in a message */

static long n_unknown;

#define LONGEST_UNIT 12 /* characters */

/* Whether a text is empty, or a unit that may stand behind a number. */
static int is_unit(const char *at)
{
    int n = 0;
    if (!*at)
        return 1;
    at += *at == ' ';
    if (!*at || is_space(*at) || strchr("0123456789.,;:+-*/_", *at))
        return 0;
    for (; *at; at++) {
        if (is_space(*at) || strchr(",;:", *at))
            return 0;
        n += (*at & 0xc0) != 0x80;
    }
    return n <= LONGEST_UNIT;
}

/* Writes a point into 12,5 and 12,5 mm. */
static void write_point(char *cell)
{
    const char *at = cell + (*cell == '-' || *cell == '+');
    char *comma;
    skip_digits(&at);
    comma = cell + (at - cell);
    if (*comma != ',' || !is_digit(*++at))
        return;
    skip_digits(&at);
    if (*at == 'e' || *at == 'E') {
        const char *exponent = at + 1 + (at[1] == '-' || at[1] == '+');
        if (is_digit(*exponent)) {
            skip_digits(&exponent);
            at = exponent;
        }
    }
    if (is_unit(at))
        *comma = '.';
}

/* Reads the next row that holds anything, and returns the number of its cells; 0 at the end of the file. */
static int read_row(void)
{
    int i, count = read_filled();
    for (i = 0; has_decimal_commas && i < count; i++)
        write_point(cells[i]);
    return count;
}

/* Finds what stands between the cells. Where that is no comma, there may be commas in the numbers: if none has a point. */
static void look_at_file(void)
{
    int i, count, has_points = 0;
    read_first();
    for (i = 1; i < (int)sizeof MARKS; i++)
        delimiter = count_cells(MARKS[i]) > count_cells(delimiter) ? MARKS[i] : delimiter;
    if (delimiter == ',')
        return;
    while ((count = read_filled()) > 0)
        for (i = 0; i < count; i++)
            has_points |= strchr(cells[i], '.') && is_plain(cells[i]);
    has_decimal_commas = !has_points;
    line = 1;
    if (fseek(stdin, 0, SEEK_SET))
        stop("a file with semicolons, tabs or | is read twice, so it cannot come through a pipe", "");
    read_first();
}

/* Says what is wrong with a cell, and what was expected there: a phrase, and the first of some names. */
static void refuse(const char *cell, int column, const char *expected, const char *const *names)
{
    int i;
    fflush(stdout);
    fprintf(stderr, "line %ld, column ", line);
    show(lutetia_columns[column]);
    fputs(": ", stderr);
    show(cell);
    fprintf(stderr, ", expected %s", expected);
    for (i = 0; names && names[i] && i < MOST_NAMES; i++) {
        fputs(i ? ", " : " ", stderr);
        show(names[i]);
    }
    fputc('\n', stderr);
    exit(1);
}

/* The value of a cell: a number, a date in seconds, or the number of a category; NAN where it is missing. */
static double value_of(const char *cell, int column)
{
    const char *const *names = lutetia_categories[column];
    const char *const unit[] = {lutetia_units[column], 0};
    double value;
    int is_date = 0;
#ifdef LUTETIA_DATES
    is_date = lutetia_dates[column];
#endif
    if (is_missing(cell, is_date))
        return NAN;
    if (names) {
        int number = category_of(cell, names);
        if (number < 0 && !LUTETIA_UNKNOWN_IS_MISSING)
            refuse(cell, column, "one of the categories", names);
        n_unknown += number < 0;
        return number < 0 ? (double)NAN : number;
    }
#ifdef LUTETIA_DATES
    if (is_date) {
        static const char *const expected[] = {"a date such as 2024-02-29", "a date with the day first, such as 29/02/2024",
                                               "a date with the month first, such as 02/29/2024"};
        value = date_of(cell, is_date);
        if (value != value)
            refuse(cell, column, expected[is_date - 1], 0);
        return value;
    }
#endif
    value = measured_of(cell, unit[0]);
    if (value != value)
        refuse(cell, column, *unit[0] ? "a number in" : "a number", *unit[0] ? unit : 0);
    return value;
}

#ifdef LUTETIA_INTERVALS
/* Writes a name, and what follows it, as a cell of a CSV file. */
static void write_name(const char *name, const char *end)
{
    int quoted = strpbrk(name, ",\"\r\n") != 0;
    if (quoted)
        putchar('"');
    for (; *name; name++) {
        if (*name == '"')
            putchar('"');
        putchar(*name);
    }
    fputs(end, stdout);
    if (quoted)
        putchar('"');
}

static void write_names(void)
{
    write_name(lutetia_classes[0], "");
    putchar(',');
    write_name(lutetia_classes[0], " low");
    putchar(',');
    write_name(lutetia_classes[0], " high");
    putchar('\n');
}
#endif

static void write_answer(const input_t *x)
{
#ifdef LUTETIA_WIDTH_UNIT
    double mean = exp(lutetia_answer(x) * LUTETIA_UNIT), width = lutetia_half_width(x) * LUTETIA_WIDTH_UNIT;
    double low = mean - width, high = mean + width;
    printf("%.9g,%.9g,%.9g\n", mean, low > 1e-6 * high ? low : 0.0, high); /* less is 0 but for rounding */
#elif defined LUTETIA_INTERVALS
    double answer = lutetia_answer(x), width = lutetia_half_width(x);
    printf("%.9g,%.9g,%.9g\n", answer * LUTETIA_UNIT, (answer - width) * LUTETIA_UNIT, (answer + width) * LUTETIA_UNIT);
#elif defined LUTETIA_LOG
    printf("%.9g\n", exp(lutetia_answer(x) * LUTETIA_UNIT));
#elif defined LUTETIA_UNIT
    printf("%.9g\n", lutetia_answer(x) * LUTETIA_UNIT);
#else
    printf("%s\n", lutetia_classes[lutetia_answer(x)]);
#endif
}

/* Whether a cell of the first line is the name of a column; where it is empty, the number of the cell is its name. */
static int has_name(int number, const char *name)
{
    char own[30];
    sprintf(own, "column %d", number);
    return !strcmp(*cells[number] ? cells[number] : own, name);
}
