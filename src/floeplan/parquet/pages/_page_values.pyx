# cython: boundscheck=False, wraparound=False, cdivision=True
"""Compiled operations on encoded Parquet values that no library offers without decoding every value.

``thin_numbers`` and ``thin_byte_arrays`` filter plain values; ``byte_array_places`` computes the offsets of byte arrays
and ``entry_bounds`` their minimum and maximum; ``unpack`` and ``pack`` are the hybrid of RLE and bit packing;
``renumber`` maps dictionary indexes and ``mark`` flags the used ones; ``data_page_header`` encodes a page header.

Fail-safe: lengths are checked against the data; anything invalid is a ``ValueError``. The GIL is released meanwhile.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from floeplan.parquet.pages.hybrid cimport GROUP, unpacked

cdef enum:
    MOST_GROUPS = 63
    DATA_PAGE = 0
    I32 = 5
    STRUCT = 12


def thin_numbers(const unsigned char[::1] values, const unsigned char[::1] keep, int width, unsigned char[::1] out):
    """Copy the kept numbers of 4 or 8 bytes to a buffer that has room for all of them."""
    cdef Py_ssize_t count = keep.shape[0], i, at = 0
    cdef const unsigned char* source
    cdef unsigned char* target
    if width not in (4, 8) or values.shape[0] != count * width or out.shape[0] != values.shape[0]:
        raise ValueError("the values are not as many as there should be")
    if not count:
        return
    source, target = &values[0], &out[0]
    with nogil:
        if width == 8:
            for i in range(count):
                memcpy(target + 8 * at, source + 8 * i, 8)
                at += keep[i] != 0
        else:
            for i in range(count):
                memcpy(target + 4 * at, source + 4 * i, 4)
                at += keep[i] != 0


def thin_byte_arrays(const unsigned char[::1] values, const unsigned char[::1] keep, unsigned char[::1] out):
    """Copy the kept length-prefixed byte arrays.

    Returns:
        The bytes written to ``out``, and the smallest and the largest of what is there (``None`` if nothing is).
    """
    cdef Py_ssize_t size = values.shape[0], count = keep.shape[0]
    cdef Thinned found
    if out.shape[0] < size:
        raise ValueError("there is no room for the values")
    with nogil:
        found = _thinned(&values[0] if size else NULL, size, &keep[0] if count else NULL, count, &out[0] if size else NULL)
    if found.written < 0:
        raise ValueError("the values are not as many as there should be")
    if found.lowest == NULL:
        return found.written, None, None
    return (
        found.written,
        PyBytes_FromStringAndSize(<const char*>found.lowest, found.lowest_size),
        PyBytes_FromStringAndSize(<const char*>found.highest, found.highest_size),
    )


cdef struct Thinned:
    Py_ssize_t written
    const unsigned char* lowest
    Py_ssize_t lowest_size
    const unsigned char* highest
    Py_ssize_t highest_size


cdef Thinned _thinned(
    const unsigned char* values, Py_ssize_t size, const unsigned char* keep, Py_ssize_t count, unsigned char* out
) noexcept nogil:
    cdef Thinned found
    cdef Py_ssize_t at = 0, run = 0, i, length
    cdef uint64_t head, lowest_head = 0, highest_head = 0
    cdef const unsigned char* value
    memset(&found, 0, sizeof(found))
    for i in range(count):
        if size - at < 4:
            found.written = -1
            return found
        length = _length(values + at)
        if length > size - at - 4:
            found.written = -1
            return found
        if not keep[i]:
            if at > run:
                memcpy(out + found.written, values + run, at - run)
                found.written += at - run
            at += 4 + length
            run = at
            continue
        value = values + at + 4
        at += 4 + length
        head = _head(value, length)
        if found.lowest == NULL:
            found.lowest, found.lowest_size, lowest_head = value, length, head
            found.highest, found.highest_size, highest_head = value, length, head
            continue
        if head <= lowest_head and (head < lowest_head or _compared(value, length, found.lowest, found.lowest_size) < 0):
            found.lowest, found.lowest_size, lowest_head = value, length, head
        elif head >= highest_head and (
            head > highest_head or _compared(value, length, found.highest, found.highest_size) > 0
        ):
            found.highest, found.highest_size, highest_head = value, length, head
    if at != size:
        found.written = -1
        return found
    if at > run:
        memcpy(out + found.written, values + run, at - run)
        found.written += at - run
    return found


cdef inline Py_ssize_t _length(const unsigned char* at) noexcept nogil:
    return at[0] | <Py_ssize_t>at[1] << 8 | <Py_ssize_t>at[2] << 16 | <Py_ssize_t>at[3] << 24


cdef inline uint64_t _head(const unsigned char* value, Py_ssize_t length) noexcept nogil:
    """The first bytes as a number that is ordered as they are."""
    cdef uint64_t head = 0
    cdef Py_ssize_t i
    if length >= 8:
        for i in range(8):
            head = head << 8 | value[i]
        return head
    for i in range(length):
        head |= <uint64_t>value[i] << (56 - 8 * i)
    return head


cdef inline int _compared(
    const unsigned char* one, Py_ssize_t one_size, const unsigned char* other, Py_ssize_t other_size
) noexcept nogil:
    cdef int order = memcmp(one, other, one_size if one_size < other_size else other_size)
    if order:
        return order
    return (one_size > other_size) - (one_size < other_size)


def byte_array_places(const unsigned char[::1] values, int32_t[::1] out):
    """Fill ``out`` with the offsets of length-prefixed byte arrays, and of the end of the last one."""
    cdef Py_ssize_t size = values.shape[0], at = 0, i
    for i in range(out.shape[0] - 1):
        if size - at < 4 or _length(&values[at]) > size - at - 4:
            raise ValueError("the values are not as many as there should be")
        out[i] = <int32_t>at
        at += 4 + _length(&values[at])
    if at != size or size > 0x7FFFFFFF or not out.shape[0]:
        raise ValueError("the values are not as many as there should be")
    out[out.shape[0] - 1] = <int32_t>at


def entry_bounds(const int32_t[::1] numbers, const unsigned char[::1] values, const int32_t[::1] places):
    """The indexes of the smallest and the largest byte array among the given indexes."""
    cdef Py_ssize_t count = places.shape[0] - 1, i
    cdef int32_t lowest = -1, highest = -1
    for i in range(numbers.shape[0]):
        if numbers[i] < 0 or numbers[i] >= count:
            raise ValueError("a number that the dictionary does not have")
        if i == 0:
            lowest, highest = numbers[0], numbers[0]
        elif _before(values, places, numbers[i], lowest):
            lowest = numbers[i]
        elif _before(values, places, highest, numbers[i]):
            highest = numbers[i]
    return lowest, highest


cdef inline bint _before(
    const unsigned char[::1] values, const int32_t[::1] places, int32_t one, int32_t other
) noexcept:
    return _compared(
        &values[places[one]] + 4,
        places[one + 1] - places[one] - 4,
        &values[places[other]] + 4,
        places[other + 1] - places[other] - 4,
    ) < 0


def unpack(const unsigned char[::1] data, int width, int32_t[::1] out):
    """Decode integers of ``width`` bits from RLE runs and bit-packed groups; return the bytes read."""
    cdef Py_ssize_t size = data.shape[0], count = out.shape[0], taken
    if not 0 <= width <= 31:
        raise ValueError(f"numbers of {width} bits")
    if not count:
        return 0
    with nogil:
        taken = unpacked(&data[0] if size else NULL, size, width, &out[0], count)
    if taken < 0:
        raise ValueError("the numbers are not as many as there should be")
    return taken


def mark(const int32_t[::1] numbers, unsigned char[::1] out):
    """Set the flag of each number."""
    cdef Py_ssize_t known = out.shape[0], i
    cdef bint wrong = False
    with nogil:
        for i in range(numbers.shape[0]):
            if numbers[i] < 0 or numbers[i] >= known:
                wrong = True
                break
            out[numbers[i]] = 1
    if wrong:
        raise ValueError("a number that the dictionary does not have")


def renumber(int32_t[::1] numbers, const unsigned char[::1] keep, const int32_t[::1] new):
    """Map the kept numbers to new ones, in place; return how many are kept."""
    cdef Py_ssize_t count = numbers.shape[0], known = new.shape[0], i, at = 0
    cdef bint wrong = False
    cdef int32_t number
    if keep.shape[0] != count:
        raise ValueError("the numbers are not as many as there should be")
    with nogil:
        for i in range(count):
            number = numbers[i]
            if number < 0 or number >= known:
                wrong = True
                break
            numbers[at] = new[number]
            at += keep[i] != 0
    if wrong:
        raise ValueError("a number that the dictionary does not have")
    return at


def pack(const int32_t[::1] numbers, int width):
    """Encode integers of ``width`` bits as RLE runs, where they repeat, and bit-packed groups of eight."""
    cdef Py_ssize_t count = numbers.shape[0], written
    if not 1 <= width <= 31:
        raise ValueError(f"numbers of {width} bits")
    if not count:
        return b""
    cdef bytes out = PyBytes_FromStringAndSize(NULL, (count // GROUP + 1) * (width + 9) + 16)
    cdef unsigned char* place = <unsigned char*>PyBytes_AS_STRING(out)
    with nogil:
        written = _packed(&numbers[0], count, width, place)
    return out[:written]


cdef Py_ssize_t _packed(const int32_t* numbers, Py_ssize_t count, int width, unsigned char* out) noexcept nogil:
    cdef Py_ssize_t written = 0, literal = 0, at = 0, end, i
    cdef uint64_t header
    while at < count:
        end = at + 1
        while end < count and numbers[end] == numbers[at]:
            end += 1
        if end - at < GROUP:
            at = at + GROUP if count - at > GROUP else count
            continue
        written += _literals(numbers + literal, at - literal, width, out + written)
        header = <uint64_t>(end - at) << 1
        while header > 127:
            out[written] = <unsigned char>(header & 127 | 128)
            written += 1
            header >>= 7
        out[written] = <unsigned char>header
        written += 1
        for i in range((width + 7) // 8):
            out[written] = <unsigned char>(numbers[at] >> 8 * i & 255)
            written += 1
        at = literal = end
    return written + _literals(numbers + literal, count - literal, width, out + written)


cdef Py_ssize_t _literals(const int32_t* numbers, Py_ssize_t count, int width, unsigned char* out) noexcept nogil:
    """Bit-packed groups of eight, the last one padded with zeros, in runs whose header is one byte."""
    cdef Py_ssize_t written = 0, at = 0, groups, i, end
    cdef uint64_t word
    cdef int bits
    while at < count:
        groups = (count - at + GROUP - 1) // GROUP
        if groups > MOST_GROUPS:
            groups = MOST_GROUPS
        out[written] = <unsigned char>(groups << 1 | 1)
        written += 1
        end = at + groups * GROUP
        if width <= 8:
            while at + GROUP <= count and at < end:
                word = 0
                for i in range(GROUP):
                    word |= <uint64_t><uint32_t>numbers[at + i] << i * width
                memcpy(out + written, &word, width)
                written += width
                at += GROUP
        word, bits = 0, 0
        for i in range(at, end):
            if i < count:
                word |= <uint64_t><uint32_t>numbers[i] << bits
            bits += width
            while bits >= 8:
                out[written] = <unsigned char>(word & 255)
                written += 1
                word >>= 8
                bits -= 8
        at = end
    return written


def data_page_header(uint32_t size, uint32_t stored, uint32_t rows, uint32_t encoding, uint32_t levels):
    """Encode the header of a v1 data page: sizes, rows, and the encodings of values and levels."""
    cdef unsigned char out[64]
    cdef Py_ssize_t written = 0
    cdef uint32_t number
    for number in (DATA_PAGE, size, stored):
        written += _number_field(out + written, number)
    out[written] = 2 << 4 | STRUCT
    written += 1
    for number in (rows, encoding, levels, levels):
        written += _number_field(out + written, number)
    out[written] = out[written + 1] = 0
    return PyBytes_FromStringAndSize(<const char*>out, written + 2)


cdef inline Py_ssize_t _number_field(unsigned char* out, uint32_t number) noexcept nogil:
    """The field after the last one, a number that is not negative, in compact Thrift."""
    cdef uint64_t left = <uint64_t>number << 1
    cdef Py_ssize_t written = 1
    out[0] = 1 << 4 | I32
    while left > 127:
        out[written] = <unsigned char>(left & 127 | 128)
        left >>= 7
        written += 1
    out[written] = <unsigned char>left
    return written + 1
