# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled encoder: runs an encode program over typed columns and gives Avro records, block by block.

Rule: program and columns are trusted; ``floeplan.metadata.avro.encoder`` has held their lengths against each other.
``_avro_fallback`` is the same machine in Python; both must be changed together.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

cdef enum:
    END = 0
    VARINT = 1
    BYTES = 2
    BOOL = 3
    FLOAT = 4
    DOUBLE = 5
    FIXED = 6
    OPTIONAL = 7
    LIST = 8

cdef enum:
    FAILED = -1
    MAX_VARINT = 10

ctypedef struct Column:
    const int64_t *values    # numbers (doubles by their bits), item counts; for bytes the offsets of the rows
    const uint8_t *valid     # NULL when every row is valid
    const uint8_t *data

ctypedef struct State:
    Column *columns
    int64_t *rows            # the row to be written next in each domain
    uint8_t *out
    int64_t size
    int64_t capacity


cdef int reserve(State *s, int64_t more) noexcept nogil:
    cdef int64_t capacity
    cdef void *moved
    if s.size + more <= s.capacity:
        return 0
    capacity = 2 * s.capacity
    if capacity < s.size + more:
        capacity = s.size + more
    if capacity < 4096:
        capacity = 4096
    moved = realloc(s.out, capacity)
    if moved == NULL:
        return FAILED
    s.out = <uint8_t *> moved
    s.capacity = capacity
    return 0


cdef inline int put_varint(State *s, int64_t value) noexcept nogil:
    cdef uint64_t bits = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    if reserve(s, MAX_VARINT) < 0:
        return FAILED
    while bits > 0x7F:
        s.out[s.size] = <uint8_t> (bits & 0x7F) | 0x80
        s.size += 1
        bits >>= 7
    s.out[s.size] = <uint8_t> bits
    s.size += 1
    return 0


cdef inline int put_raw(State *s, const void *start, int64_t size) noexcept nogil:
    if reserve(s, size) < 0:
        return FAILED
    if size:
        memcpy(s.out + s.size, start, size)
    s.size += size
    return 0


cdef int put_bytes(State *s, Column *column, int64_t row, bint with_length) noexcept nogil:
    cdef int64_t start = column.values[row], size = column.values[row + 1] - column.values[row]
    if with_length and put_varint(s, size) < 0:
        return FAILED
    return put_raw(s, column.data + start, size)


cdef int put_list(State *s, Column *column, int64_t row, const int32_t *operands) noexcept nogil:
    """All items as one block, then the empty block that ends a list."""
    cdef int domain = operands[0]
    cdef int64_t item, count = column.values[row]
    if count:
        if put_varint(s, count) < 0:
            return FAILED
        for item in range(count):
            if run(s, operands + 2, domain) < 0:
                return FAILED
            s.rows[domain] += 1
    return put_varint(s, 0)


cdef int run(State *s, const int32_t *pc, int domain) noexcept nogil:
    """Run code up to its END for the next row of a domain."""
    cdef int op
    cdef int64_t row = s.rows[domain]
    cdef Column *column
    cdef double number
    cdef float single
    cdef uint8_t flag
    while True:
        op = pc[0]
        if op == END:
            return 0
        column = s.columns + pc[1]
        if op == VARINT:
            if put_varint(s, column.values[row]) < 0:
                return FAILED
            pc += 2
        elif op == BYTES:
            if put_bytes(s, column, row, True) < 0:
                return FAILED
            pc += 2
        elif op == OPTIONAL:
            if column.valid == NULL or column.valid[row]:
                if put_varint(s, 1) < 0:
                    return FAILED
                pc += 3
            else:
                if put_varint(s, 0) < 0:
                    return FAILED
                pc += 3 + pc[2]
        elif op == LIST:
            if put_list(s, column, row, pc + 2) < 0:
                return FAILED
            pc += 4 + pc[3]
        elif op == FIXED:
            if put_bytes(s, column, row, False) < 0:
                return FAILED
            pc += 2
        elif op == BOOL:
            flag = column.values[row] != 0
            if put_raw(s, &flag, 1) < 0:
                return FAILED
            pc += 2
        elif op == DOUBLE:
            if put_raw(s, column.values + row, 8) < 0:
                return FAILED
            pc += 2
        else:  # FLOAT
            memcpy(&number, column.values + row, 8)
            single = <float> number
            if put_raw(s, &single, 4) < 0:
                return FAILED
            pc += 2


cdef class Encoder:
    """Writes the rows of domain 0 as records, in order."""

    cdef State state
    cdef object _kept
    cdef const int32_t[::1] _code
    cdef int64_t _records

    def __cinit__(self, const int32_t[::1] code, columns, int domains, int64_t records):
        cdef const int64_t[::1] values
        cdef const uint8_t[::1] some
        cdef int number
        self._kept = [code, list(columns)]
        self._code = code
        self._records = records
        self.state.columns = <Column *> calloc(len(columns) + 1, sizeof(Column))
        self.state.rows = <int64_t *> calloc(domains, sizeof(int64_t))
        if self.state.columns == NULL or self.state.rows == NULL:
            raise MemoryError
        for number, (numbers, valid, data) in enumerate(columns):
            values = numbers
            self.state.columns[number].values = &values[0] if values.shape[0] else NULL
            if valid is not None:
                some = valid
                self.state.columns[number].valid = &some[0] if some.shape[0] else NULL
            some = data
            self.state.columns[number].data = &some[0] if some.shape[0] else NULL

    def __dealloc__(self):
        free(self.state.columns)
        free(self.state.rows)
        free(self.state.out)

    def encode(self, int64_t limit):
        """The next records, as many as it takes to have ``limit`` bytes, and their number."""
        cdef int outcome = 0
        cdef int64_t first = self.state.rows[0]
        self.state.size = 0
        with nogil:
            while self.state.rows[0] < self._records and self.state.size < limit:
                outcome = run(&self.state, &self._code[0], 0)
                if outcome < 0:
                    break
                self.state.rows[0] += 1
        if outcome < 0:
            raise MemoryError
        return (<char *> self.state.out)[:self.state.size], self.state.rows[0] - first
