# cython: boundscheck=False, wraparound=False, cdivision=True
"""Compiled decoder of Thrift's compact protocol, with the same results as ``thrift.read_struct_in_python``."""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    MAX_DEPTH = 64

cdef struct Cursor:
    const unsigned char* data
    Py_ssize_t pos
    Py_ssize_t size


def read_struct(bytes data, Py_ssize_t pos, object shape):
    """Decode a struct into ``{field id: value}``, skipping fields outside the shape; also return its end."""
    cdef Cursor cursor
    cursor.data = <const unsigned char*>PyBytes_AS_STRING(data)
    cursor.size = len(data)
    cursor.pos = pos
    if pos < 0:
        raise IndexError
    return _struct(&cursor, shape, 0), cursor.pos


cdef dict _struct(Cursor* c, object shape, int depth):
    cdef dict result = {}
    cdef int64_t field = 0
    cdef int header, kind
    cdef object key
    _check_depth(depth)
    while True:
        header = _byte(c)
        if header == 0:
            return result
        kind = header & 15
        if header > 15:
            field += header >> 4
        else:
            field = _zigzag(c)
        key = field
        if shape is not None and key not in shape:
            _skip_field(c, kind, depth)
        elif kind == 1 or kind == 2:
            result[key] = kind == 1
        else:
            result[key] = _value(c, kind, None if shape is None else shape[key], depth + 1)


cdef object _value(Cursor* c, int kind, object shape, int depth):
    cdef double number
    cdef int byte
    if 4 <= kind <= 6:
        return _zigzag(c)
    if kind == 8:
        return _binary(c)
    if kind == 9 or kind == 10 or kind == 12:
        if (shape is not None and not shape) or (shape is ... and kind == 12):
            _skip(c, kind, depth)
            return None
        return _struct(c, shape, depth) if kind == 12 else _list(c, shape, depth)
    if kind == 1 or kind == 2:
        return _byte(c) == 1
    if kind == 3:
        byte = _byte(c)
        return byte - 256 if byte > 127 else byte
    if kind == 7:
        _need(c, 8)
        memcpy(&number, c.data + c.pos, 8)
        c.pos += 8
        return number
    _skip(c, kind, depth)
    return None


cdef object _list(Cursor* c, object shape, int depth):
    cdef int kind
    cdef Py_ssize_t size, i
    cdef list values
    cdef object starts
    _check_depth(depth)
    size = _list_header(c, &kind)
    if shape is ...:
        starts = array("q", bytes(8 * (size + 1)))
        _places(c, starts, size, kind, depth)
        return starts
    values = []
    for i in range(size):
        values.append(_value(c, kind, shape, depth + 1))
    return values


cdef int _places(Cursor* c, int64_t[:] starts, Py_ssize_t size, int kind, int depth) except -1:
    cdef Py_ssize_t i
    for i in range(size):
        starts[i] = c.pos
        _skip(c, kind, depth)
    starts[size] = c.pos
    return 0


cdef Py_ssize_t _list_header(Cursor* c, int* kind) except -1:
    cdef int header = _byte(c)
    cdef uint64_t size = header >> 4
    cdef uint64_t width
    kind[0] = header & 15
    if size == 15:
        size = _varint(c)
    width = 8 if kind[0] == 7 else 16 if kind[0] == 13 else 1
    if size > <uint64_t>(c.size - c.pos) // width:
        raise ValueError(f"a list claims {size} elements, more than the bytes that are left")
    return <Py_ssize_t>size


cdef int _skip_field(Cursor* c, int kind, int depth) except -1:
    if kind == 1 or kind == 2:
        return 0
    return _skip(c, kind, depth + 1)


cdef int _skip(Cursor* c, int kind, int depth) except -1:
    cdef Py_ssize_t size, i
    cdef int element, header
    cdef uint64_t length
    if 4 <= kind <= 6:
        _varint(c)
    elif kind == 8:
        length = _varint(c)
        _need(c, length)
        c.pos += <Py_ssize_t>length
    elif kind == 12:
        _check_depth(depth)
        while True:
            header = _byte(c)
            if header == 0:
                break
            if header <= 15:
                _varint(c)
            _skip_field(c, header & 15, depth)
    elif kind == 9 or kind == 10:
        size = _list_header(c, &element)
        _check_depth(depth)
        for i in range(size):
            _skip(c, element, depth + 1)
    elif kind == 11:
        _skip_map(c, depth)
    elif kind == 1 or kind == 2 or kind == 3 or kind == 7 or kind == 13:
        length = 8 if kind == 7 else 16 if kind == 13 else 1
        _need(c, length)
        c.pos += <Py_ssize_t>length
    else:
        raise ValueError(f"{kind} is no type of the compact protocol")
    return 0


cdef int _skip_map(Cursor* c, int depth) except -1:
    cdef uint64_t size, i
    cdef int kinds
    _check_depth(depth)
    size = _varint(c)
    if size == 0:
        return 0
    kinds = _byte(c)
    if size > <uint64_t>(c.size - c.pos) // 2:
        raise ValueError(f"a map claims {size} entries, more than the bytes that are left")
    for i in range(size):
        _skip(c, kinds >> 4, depth + 1)
        _skip(c, kinds & 15, depth + 1)
    return 0


cdef bytes _binary(Cursor* c):
    cdef uint64_t size = _varint(c)
    cdef Py_ssize_t at = c.pos
    _need(c, size)
    c.pos += <Py_ssize_t>size
    return PyBytes_FromStringAndSize(<const char*>c.data + at, <Py_ssize_t>size)


cdef inline int _byte(Cursor* c) except -1:
    if c.pos >= c.size:
        raise IndexError
    c.pos += 1
    return c.data[c.pos - 1]


cdef uint64_t _varint(Cursor* c) except? 18446744073709551615:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef int byte
    while True:
        byte = _byte(c)
        value |= <uint64_t>(byte & 127) << shift
        if byte < 128:
            return value
        shift += 7
        if shift > 63:
            raise ValueError("an integer of more than ten bytes")


cdef inline int64_t _zigzag(Cursor* c) except? -1:
    cdef uint64_t value = _varint(c)
    return <int64_t>((value >> 1) ^ (~(value & 1) + 1))


cdef inline int _need(Cursor* c, uint64_t size) except -1:
    if size > <uint64_t>(c.size - c.pos):
        raise IndexError
    return 0


cdef inline int _check_depth(int depth) except -1:
    if depth > MAX_DEPTH:
        raise ValueError(f"nesting deeper than {MAX_DEPTH}")
    return 0
