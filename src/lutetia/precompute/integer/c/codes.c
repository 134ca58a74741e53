
/* The code of a value: the one behind the last of its edges that is below it, or 1. */
static input_t code_of(int input, value_t value)
{
    unsigned first = START[input], low = first, high = START[input + 1];
    while (low < high) {
        unsigned middle = low + ((high - low) >> 1);
        if (EDGE[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low > first ? CODE[low - 1] : 1;
}
