"""Parquet's hybrid of RLE runs and bit-packed groups, for the kernels of this package."""

from libc.stdint cimport int32_t, uint64_t
from libc.string cimport memcpy, memset

cdef enum:
    GROUP = 8


cdef inline Py_ssize_t unpacked(
    const unsigned char* data, Py_ssize_t size, int width, int32_t* out, Py_ssize_t count
) noexcept nogil:
    """Decode integers of ``width`` bits; returns the bytes read, or -1 if the data is invalid."""
    cdef Py_ssize_t at = 0, done = 0, many, i, bytes_ = (width + 7) // 8
    cdef uint64_t header, number, mask = (<uint64_t>1 << width) - 1
    cdef int shift
    while done < count:
        header, shift = 0, 0
        while True:
            if at >= size or shift > 28:
                return -1
            header |= <uint64_t>(data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                break
        many = <Py_ssize_t>(header >> 1)
        if header & 1:
            if many * width > size - at:
                return -1
            i = many * GROUP
            _bits(data + at, size - at, width, mask, out + done, i if i < count - done else count - done)
            at += many * width
            many = i
        else:
            if bytes_ > size - at:
                return -1
            number = 0
            for i in range(bytes_):
                number |= <uint64_t>data[at + i] << 8 * i
            if number > mask:
                return -1
            at += bytes_
            for i in range(done, done + many if many < count - done else count):
                out[i] = <int32_t>number
        done += many
    return at


cdef inline void _bits(
    const unsigned char* data, Py_ssize_t size, int width, uint64_t mask, int32_t* out, Py_ssize_t count
) noexcept nogil:
    cdef Py_ssize_t i = 0, k, bit, at, whole = 0
    cdef uint64_t word, upper
    if not width:  # a dictionary of one entry
        memset(out, 0, count * sizeof(int32_t))
        return
    if width <= 8:
        # A group fits into one word, which is loaded once.
        while i + GROUP <= count and size - (i >> 3) * width >= 8:
            memcpy(&word, data + (i >> 3) * width, 8)
            for k in range(GROUP):
                out[i + k] = <int32_t>(word >> k * width & mask)
            i += GROUP
    elif width <= 16:
        # A group is two halves, of which the second one may begin within a byte.
        while i + GROUP <= count and size - (i >> 3) * width - (width >> 1) >= 8:
            memcpy(&word, data + (i >> 3) * width, 8)
            memcpy(&upper, data + (i >> 3) * width + (width >> 1), 8)
            upper >>= 4 * (width & 1)
            for k in range(GROUP // 2):
                out[i + k] = <int32_t>(word >> k * width & mask)
                out[i + GROUP // 2 + k] = <int32_t>(upper >> k * width & mask)
            i += GROUP
    bit = i * width
    if size >= 8:
        whole = ((size - 8) * 8 + 7) // width + 1
    for i in range(i, whole if whole < count else count):
        memcpy(&word, data + (bit >> 3), 8)
        out[i] = <int32_t>(word >> (bit & 7) & mask)
        bit += width
    for i in range(bit // width, count):
        at = bit >> 3
        word = 0
        memcpy(&word, data + at, 8 if size - at >= 8 else size - at)
        out[i] = <int32_t>(word >> (bit & 7) & mask)
        bit += width
