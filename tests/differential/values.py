"""Numbers that C++ and Python compute alike, to the bit: see values.h."""
import numpy
import torch

WORD = 0xFFFFFFFF


def mix(x):
    x = (x ^ (x >> 15)) * 0x2C1B3C6D & WORD
    x = (x ^ (x >> 12)) * 0x297A2D39 & WORD
    return x ^ (x >> 15)


def start_of(name, seed):
    value = mix(seed + 1)
    for byte in name.encode():
        value = mix(value ^ byte)
    return value


def draws(name, seed, n):
    indices = numpy.arange(n, dtype=numpy.uint64)
    first = numpy.uint64(start_of(name, seed))
    x = (first + indices * numpy.uint64(0x9E3779B1)) & numpy.uint64(WORD)
    return (mix_all(x) & numpy.uint64(0xFFFF)).astype(numpy.int64)


def mix_all(x):
    word = numpy.uint64(WORD)
    x = (x ^ (x >> numpy.uint64(15))) * numpy.uint64(0x2C1B3C6D) & word
    x = (x ^ (x >> numpy.uint64(12))) * numpy.uint64(0x297A2D39) & word
    return x ^ (x >> numpy.uint64(15))


def uniform(name, seed, sizes):
    numbers = draws(name, seed, int(numpy.prod(sizes)))
    return ((torch.from_numpy(numbers) - 32768).float() / 32768).reshape(sizes)


def whole(name, seed, sizes, bound):
    numbers = draws(name, seed, int(numpy.prod(sizes)))
    return (torch.from_numpy(numbers) % bound).reshape(sizes)


def scale_of(sizes):
    fan_in = int(numpy.prod(sizes[1:]))
    scale, square = 2.0, 1
    while square < fan_in:
        scale, square = scale / 2, square * 4
    return scale


def start(name, seed, sizes):
    noise = uniform(name, seed, sizes)
    if len(sizes) > 1:
        return noise * scale_of(sizes)
    return 1 + noise / 4 if name.endswith("weight") else noise / 4
