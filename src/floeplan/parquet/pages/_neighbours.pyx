# cython: boundscheck=False, wraparound=False, cdivision=True
"""Compiled search for the bytes that each value of a page shares with the previous one: matches for Zstandard.

Numbers share their last (high) bytes, byte arrays their length and first bytes. A match is a ``ZSTD_Sequence`` of four
integers: offset, literal length, match length, and 0. One without a match length ends a block; each block but the last
has ``BLOCK`` bytes.

Fail-safe: from a value with an invalid length on, all bytes are literals. A buffer that is too small is a ``ValueError``.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    BLOCK = 131072
    FARTHEST = 65536
    COLUMNS = 4

cdef struct Matches:
    uint32_t* rows
    Py_ssize_t room
    Py_ssize_t count
    Py_ssize_t done
    Py_ssize_t block_end
    Py_ssize_t least


def neighbours(const unsigned char[::1] content, Py_ssize_t start, int width, uint32_t[:, ::1] out):
    """Fill ``out`` with the matches of values that begin at ``start``, and return their number.

    ``width`` is 4 or 8 for numbers of this size, and 0 for length-prefixed byte arrays.
    """
    cdef Py_ssize_t size = content.shape[0]
    cdef Matches found
    cdef bint good
    if not 0 <= start <= size or width not in (0, 4, 8) or out.shape[1] != COLUMNS:
        raise ValueError("there are no such values")
    if not size or not out.shape[0]:
        raise ValueError("there is nothing to match")
    found.rows, found.room, found.count = &out[0, 0], out.shape[0], 0
    found.done, found.block_end, found.least = 0, BLOCK, 3 if width == 4 else 4
    with nogil:
        if width == 8:
            good = _numbers8(&content[0], start, size, &found)
        elif width == 4:
            good = _numbers4(&content[0], start, size, &found)
        else:
            good = _byte_arrays(&content[0], start, size, &found)
        good = good and _end(&found, size)
    if not good:
        raise ValueError("there is no room for the matches")
    return found.count


cdef bint _numbers8(const unsigned char* content, Py_ssize_t start, Py_ssize_t size, Matches* found) noexcept nogil:
    cdef uint64_t last, number, differing
    cdef Py_ssize_t at, own
    if size - start < 8:
        return True
    memcpy(&last, content + start, 8)
    for at in range(start + 8, size - 7, 8):
        memcpy(&number, content + at, 8)
        differing, last = number ^ last, number
        if differing >> 32:
            continue
        own = (differing > 0) + (differing > 0xFF) + (differing > 0xFFFF) + (differing > 0xFFFFFF)
        if not _add(found, 8, at + own, 8 - own):
            return False
    return True


cdef bint _numbers4(const unsigned char* content, Py_ssize_t start, Py_ssize_t size, Matches* found) noexcept nogil:
    cdef uint32_t last, number, differing
    cdef Py_ssize_t at, own
    if size - start < 4:
        return True
    memcpy(&last, content + start, 4)
    for at in range(start + 4, size - 3, 4):
        memcpy(&number, content + at, 4)
        differing, last = number ^ last, number
        if differing > 255:
            continue
        own = differing != 0
        if not _add(found, 4, at + own, 4 - own):
            return False
    return True


cdef bint _byte_arrays(const unsigned char* content, Py_ssize_t start, Py_ssize_t size, Matches* found) noexcept nogil:
    cdef Py_ssize_t at = start, before = -1, own, end, same
    cdef uint32_t length
    while size - at >= 4:
        memcpy(&length, content + at, 4)
        if <Py_ssize_t>length > size - at - 4:
            break
        end = at + 4 + length
        if before >= 0 and at - before <= FARTHEST:
            own = content[at] != content[before]
            same = _alike(content + before + own, content + at + own, end - at - own)
            if same >= 4 and not _add(found, at - before, at + own, same):
                return False
        before, at = at, end
    return True


cdef inline Py_ssize_t _alike(const unsigned char* one, const unsigned char* other, Py_ssize_t most) noexcept nogil:
    """The number of equal bytes from here on; ``other`` lies after ``one`` and limits it."""
    cdef Py_ssize_t same = 0
    cdef uint64_t a, b
    while most - same >= 8:
        memcpy(&a, one + same, 8)
        memcpy(&b, other + same, 8)
        if a != b:
            break
        same += 8
    while same < most and one[same] == other[same]:
        same += 1
    return same


cdef inline bint _add(Matches* found, Py_ssize_t back, Py_ssize_t at, Py_ssize_t length) noexcept nogil:
    """Add a match: extend the last one if it continues, and split it at block ends."""
    cdef uint32_t* last
    cdef Py_ssize_t part
    while at + length > found.block_end:
        part = found.block_end - at
        if part >= found.least:
            if not _row(found, back, at - found.done, part):
                return False
            found.done = found.block_end
        if part > 0:
            at, length = at + part, length - part
        if not _end_block(found):
            return False
    if length < found.least:
        return True
    if at == found.done and found.count:
        last = found.rows + (found.count - 1) * COLUMNS
        if last[0] == back:
            last[2] += <uint32_t>length
            found.done += length
            return True
    if not _row(found, back, at - found.done, length):
        return False
    found.done = at + length
    return True


cdef inline bint _row(Matches* found, Py_ssize_t back, Py_ssize_t before, Py_ssize_t length) noexcept nogil:
    cdef uint32_t* row
    if found.count >= found.room:
        return False
    row = found.rows + found.count * COLUMNS
    row[0], row[1], row[2], row[3] = <uint32_t>back, <uint32_t>before, <uint32_t>length, 0
    found.count += 1
    return True


cdef bint _end_block(Matches* found) noexcept nogil:
    if not _row(found, 0, found.block_end - found.done, 0):
        return False
    found.done = found.block_end
    found.block_end += BLOCK
    return True


cdef bint _end(Matches* found, Py_ssize_t size) noexcept nogil:
    """End the last block, and those before it."""
    while size > found.block_end:
        if not _end_block(found):
            return False
    return _row(found, 0, size - found.done, 0)
