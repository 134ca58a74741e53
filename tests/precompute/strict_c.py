"""How the tests compile C: with every warning an error, and with sanitizers."""

STRICT = [
    *("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wdouble-promotion", "-Werror", "-O1"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover"),
]
