
/* The nearest number, of two the even one. */
static sample_t nearest(double place, int column)
{
    long long whole;
    double rest;
    place = place < LEAST[column] ? LEAST[column] : place > MOST[column] ? MOST[column] : place;
    whole = (long long)place;
    rest = place - (double)whole;
    if (rest > 0.5 || (rest == 0.5 && whole % 2))
        whole++;
    if (rest < -0.5 || (rest == -0.5 && whole % 2))
        whole--;
    return (sample_t)whole;
}

int lutetia_numbers(const double values[LUTETIA_COLUMNS], sample_t numbers[LUTETIA_COLUMNS])
{
    int column;
    for (column = 0; column < LUTETIA_COLUMNS; column++) {
        double value = values[column];
        if (value == value)
            numbers[column] = nearest((value - ZERO[column]) / STEP[column], column);
#ifdef LUTETIA_MISSING
        else if (MAY_MISS[column])
            numbers[column] = LUTETIA_MISSING;
#endif
        else
            return column;
    }
    return -1;
}
