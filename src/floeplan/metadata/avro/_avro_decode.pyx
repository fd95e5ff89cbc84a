# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled decoder: runs a decode program over inflated Avro blocks and appends to typed columns.

Rule: no byte is read without knowing that it is there. Every length is held against the bytes that remain, every count
against the same (an item takes at least one byte), varints end after ten bytes. The program itself is trusted: it comes
from ``floeplan.metadata.avro.program``. ``_avro_fallback`` is the same machine in Python; both must be changed together.
"""

from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from cpython.buffer cimport PyBuffer_FillInfo

from floeplan.metadata.avro.program import BadAvro

cdef enum:
    END = 0
    VARINT = 1
    BYTES = 2
    BOOL = 3
    FLOAT = 4
    DOUBLE = 5
    FIXED = 6
    MARK = 7
    OPTIONAL = 8
    UNION = 9
    LIST = 10
    KEYED_VARINT = 11
    KEYED_BYTES = 12
    SKIP_ARRAY = 13
    SKIP_MAP = 14

cdef enum:
    KIND_BYTES = 2
    MOST_RESERVED = 1 << 30   # bytes set aside on a guess

cdef uint64_t LAST_BYTES = 0x8080808080808080   # clear in the last byte of a variable-length number
cdef uint64_t LOWEST_BITS = 0x0101010101010101

cdef enum:
    FAILED = -1
    TRUNCATED = 0
    LONG_VARINT = 1
    BAD_LENGTH = 2
    BAD_COUNT = 3
    BAD_BRANCH = 4
    BAD_BOOLEAN = 5
    LEFT_OVER = 6
    NO_MEMORY = 7

ctypedef struct Sink:
    int kind
    int domain
    int64_t rows
    int64_t expected     # rows to make room for at once; a guess, 0 for none
    int64_t capacity
    int64_t *values      # numbers (doubles by their bits); for bytes the end of each row, after a leading zero
    uint8_t *valid
    uint8_t *data
    int64_t data_size
    int64_t data_capacity

ctypedef struct State:
    const uint8_t *p
    const uint8_t *end
    Sink *sinks
    int64_t *rows        # rows so far in each domain
    int error


cdef class Memory:
    """A finished column's memory, exposed through the buffer protocol."""

    cdef void *address
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.address)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.address, self.size, 0, flags)


cdef Memory lend(void **owner, Py_ssize_t size):
    """Transfer memory from its owner, releasing what was reserved beyond ``size``."""
    cdef Memory memory = Memory.__new__(Memory)
    cdef void *shrunk = realloc(owner[0], size if size else 1)
    memory.address = owner[0] if shrunk == NULL else shrunk
    memory.size = size
    owner[0] = NULL
    return memory


cdef inline int fail(State *s, int error) noexcept nogil:
    s.error = error
    return FAILED


cdef int grow(Sink *sink, int64_t needed) noexcept nogil:
    cdef int64_t capacity = sink.capacity * 2 if sink.capacity else sink.expected
    cdef void *moved
    if capacity < needed:
        capacity = needed
    if capacity < 256:
        capacity = 256
    moved = realloc(sink.values, (capacity + 1) * sizeof(int64_t))
    if moved == NULL:
        return FAILED
    sink.values = <int64_t *> moved
    if sink.capacity == 0:
        sink.values[0] = 0
    moved = realloc(sink.valid, capacity)
    if moved == NULL:
        return FAILED
    sink.valid = <uint8_t *> moved
    sink.capacity = capacity
    return 0


cdef int pad(Sink *sink, int64_t row) noexcept nogil:
    """Fill with nulls up to ``row``, which is beyond the last row written."""
    cdef int64_t at
    if row > sink.capacity and grow(sink, row) < 0:
        return FAILED
    memset(sink.valid + sink.rows, 0, row - sink.rows)
    if sink.kind == KIND_BYTES:
        for at in range(sink.rows, row):
            sink.values[at + 1] = sink.data_size
    else:
        memset(sink.values + sink.rows, 0, (row - sink.rows) * sizeof(int64_t))
    sink.rows = row
    return 0


cdef inline void cut(Sink *sink, int64_t row) noexcept nogil:
    """Remove ``row`` and all after it."""
    if sink.rows > row:
        sink.rows = row
        if sink.kind == KIND_BYTES:
            sink.data_size = sink.values[row]


cdef inline bint has_value(const Sink *sink, int64_t row, int64_t value) noexcept nogil:
    return sink.rows > row and sink.valid[row] and sink.values[row] == value


cdef inline int claim(Sink *sink, int64_t row) noexcept nogil:
    """Make ``row`` the last row and mark it valid; a row that was already written is overwritten."""
    if row >= sink.capacity and grow(sink, row + 1) < 0:
        return FAILED
    if sink.rows < row:
        if pad(sink, row) < 0:
            return FAILED
    elif sink.rows > row and sink.kind == KIND_BYTES:
        sink.data_size = sink.values[row]
    sink.valid[row] = 1
    sink.rows = row + 1
    return 0


cdef inline int put_number(State *s, int number, int64_t value) noexcept nogil:
    cdef Sink *sink = s.sinks + number
    cdef int64_t row = s.rows[sink.domain]
    if claim(sink, row) < 0:
        return fail(s, NO_MEMORY)
    sink.values[row] = value
    return 0


cdef int grow_data(Sink *sink, int64_t needed) noexcept nogil:
    """Room for twice as much or, once the length of some rows is known, for all expected rows."""
    cdef int64_t capacity = sink.data_capacity * 2
    cdef int64_t likely = (needed // sink.rows + 1) * sink.expected if sink.rows >= 16 else 0
    cdef void *moved
    if capacity < likely <= MOST_RESERVED:
        capacity = likely
    if capacity < needed:
        capacity = needed
    if capacity < 4096:
        capacity = 4096
    moved = realloc(sink.data, capacity)
    if moved == NULL:
        return FAILED
    sink.data = <uint8_t *> moved
    sink.data_capacity = capacity
    return 0


cdef inline int put_bytes(State *s, int number, const uint8_t *start, int64_t size) noexcept nogil:
    cdef Sink *sink = s.sinks + number
    cdef int64_t row = s.rows[sink.domain]
    if claim(sink, row) < 0:
        return fail(s, NO_MEMORY)
    if sink.data_size + size > sink.data_capacity and grow_data(sink, sink.data_size + size) < 0:
        return fail(s, NO_MEMORY)
    if size:
        memcpy(sink.data + sink.data_size, start, size)
    sink.data_size += size
    sink.values[row + 1] = sink.data_size
    return 0


cdef inline int read_varint(State *s, int64_t *value) noexcept nogil:
    cdef const uint8_t *p = s.p
    cdef uint64_t bits
    cdef int shift = 7
    if p >= s.end:
        return fail(s, TRUNCATED)
    bits = p[0]
    p += 1
    if bits >= 0x80:
        bits &= 0x7F
        while True:
            if p >= s.end:
                return fail(s, TRUNCATED)
            if shift == 63 and p[0] > 1:
                return fail(s, LONG_VARINT)
            bits |= (<uint64_t> (p[0] & 0x7F)) << shift
            if p[0] < 0x80:
                p += 1
                break
            p += 1
            shift += 7
    s.p = p
    value[0] = <int64_t> (bits >> 1) ^ -(<int64_t> (bits & 1))
    return 0


cdef inline const uint8_t *take_varint(State *s, const uint8_t *p, int64_t *value) noexcept nogil:
    """As ``read_varint``, but from the local pointer ``p`` of hot loops; returns the position after it, or NULL."""
    if p < s.end and p[0] < 0x80:
        value[0] = (p[0] >> 1) ^ -(<int64_t> (p[0] & 1))
        return p + 1
    s.p = p
    return s.p if read_varint(s, value) == 0 else NULL


cdef int skip_varints(State *s, int64_t count) noexcept nogil:
    """Skip numbers by their last bytes, eight at a time; longer ones are read."""
    cdef const uint8_t *p = s.p
    cdef int64_t unused
    cdef uint64_t word
    cdef int ended, size
    while count:
        ended = 0
        if s.end - p >= 8:
            memcpy(&word, p, 8)
            ended = <int> ((((~word & LAST_BYTES) >> 7) * LOWEST_BITS) >> 56)
        if ended == 0 or ended > count:
            p = take_varint(s, p, &unused)
            if p == NULL:
                return FAILED
            count -= 1
        else:
            size = 8
            while p[size - 1] >= 0x80:
                size -= 1
            p += size
            count -= ended
    s.p = p
    return 0


cdef inline int read_length(State *s, int64_t *length) noexcept nogil:
    cdef const uint8_t *start = s.p
    if read_varint(s, length) < 0:
        return FAILED
    if length[0] < 0 or length[0] > s.end - s.p:
        s.p = start
        return fail(s, BAD_LENGTH)
    return 0


cdef inline int read_count(State *s, int64_t *count, int64_t *size) noexcept nogil:
    """The item count of an array or map block; ``size`` is its length in bytes if the writer gave it, else -1."""
    cdef const uint8_t *start = s.p
    size[0] = -1
    if read_varint(s, count) < 0:
        return FAILED
    if count[0] < 0:
        if count[0] == INT64_MIN:
            s.p = start
            return fail(s, BAD_COUNT)
        count[0] = -count[0]
        if read_length(s, size) < 0:
            return FAILED
    if count[0] > s.end - s.p:
        s.p = start
        return fail(s, BAD_COUNT)
    return 0


cdef inline int read_branch(State *s, int64_t branches, int64_t *branch) noexcept nogil:
    cdef const uint8_t *start = s.p
    if read_varint(s, branch) < 0:
        return FAILED
    if branch[0] < 0 or branch[0] >= branches:
        s.p = start
        return fail(s, BAD_BRANCH)
    return 0


cdef inline int sink_for(const int32_t *keys, int count, int64_t key, int *cursor) noexcept nogil:
    """The position of a key, or -1; writers sort keys, so the search continues where the last one ended."""
    cdef int at = cursor[0]
    if at and keys[at - 1] >= key:
        at = 0
    while at < count and keys[at] < key:
        at += 1
    cursor[0] = at
    return at if at < count and keys[at] == key else -1


cdef int read_keyed(State *s, const int32_t *operands, bint is_bytes) noexcept nogil:
    """A map with integer keys, of which some are wanted."""
    cdef int keys = operands[0], null_branch = operands[1], cursor = 0
    cdef int64_t count, size
    while True:
        if read_count(s, &count, &size) < 0:
            return FAILED
        if count == 0:
            return 0
        if keys == 0 and size >= 0:
            s.p += size
        elif keys == 0 and not is_bytes and null_branch < 0:
            if skip_varints(s, 2 * count) < 0:
                return FAILED
        elif read_pairs(s, operands, count, &cursor, is_bytes) < 0:
            return FAILED


cdef int read_pairs(State *s, const int32_t *operands, int64_t count, int *cursor, bint is_bytes) noexcept nogil:
    """Some pairs of a map; ``cursor`` is that of ``sink_for``."""
    cdef int keys = operands[0], null_branch = operands[1], position, sink
    cdef int64_t key, value, branch, item
    cdef const uint8_t *p = s.p
    cdef const uint8_t *after
    for item in range(count):
        p = take_varint(s, p, &key)
        if p == NULL:
            return FAILED
        if null_branch >= 0:
            s.p = p
            if read_branch(s, 2, &branch) < 0:
                return FAILED
            p = s.p
            if branch == null_branch:
                continue
        position = sink_for(operands + 2, keys, key, cursor)
        sink = operands[2 + keys + position] if position >= 0 else -1
        after = take_varint(s, p, &value)
        if after == NULL:
            return FAILED
        if is_bytes:
            if value < 0 or value > s.end - after:
                s.p = p
                return fail(s, BAD_LENGTH)
            if sink >= 0 and put_bytes(s, sink, after, value) < 0:
                return FAILED
            after += value
        elif sink >= 0 and put_number(s, sink, value) < 0:
            return FAILED
        p = after
    s.p = p
    return 0


cdef int read_list(State *s, const int32_t *operands) noexcept nogil:
    cdef int domain = operands[1]
    cdef int64_t count, size, item, first = s.rows[domain]
    while True:
        if read_count(s, &count, &size) < 0:
            return FAILED
        if count == 0:
            return put_number(s, operands[0], s.rows[domain] - first)
        for item in range(count):
            if run(s, operands + 3) < 0:
                return FAILED
            s.rows[domain] += 1


cdef int skip_items(State *s, const int32_t *code, bint has_keys) noexcept nogil:
    cdef int64_t count, size, item, length
    while True:
        if read_count(s, &count, &size) < 0:
            return FAILED
        if count == 0:
            return 0
        if size >= 0:
            s.p += size
            continue
        for item in range(count):
            if has_keys:
                if read_length(s, &length) < 0:
                    return FAILED
                s.p += length
            if run(s, code) < 0:
                return FAILED


cdef int read_real(State *s, int sink, bint is_double) noexcept nogil:
    cdef float single
    cdef double number
    cdef int64_t bits
    cdef int size = 8 if is_double else 4
    if s.end - s.p < size:
        return fail(s, TRUNCATED)
    if sink >= 0:
        if is_double:
            memcpy(&number, s.p, 8)
        else:
            memcpy(&single, s.p, 4)
            number = single
        memcpy(&bits, &number, 8)
        if put_number(s, sink, bits) < 0:
            return FAILED
    s.p += size
    return 0


cdef int run(State *s, const int32_t *pc) noexcept nogil:
    """Run code up to its END."""
    cdef int op
    cdef int64_t value
    cdef const uint8_t *p
    cdef const uint8_t *after
    while True:
        op = pc[0]
        p = s.p
        if op == END:
            return 0
        elif op == VARINT:
            after = take_varint(s, p, &value)
            if after == NULL or (pc[1] >= 0 and put_number(s, pc[1], value) < 0):
                return FAILED
            s.p = after
            pc += 2
        elif op == BYTES:
            after = take_varint(s, p, &value)
            if after == NULL:
                return FAILED
            if value < 0 or value > s.end - after:
                s.p = p
                return fail(s, BAD_LENGTH)
            if pc[1] >= 0 and put_bytes(s, pc[1], after, value) < 0:
                return FAILED
            s.p = after + value
            pc += 2
        elif op == OPTIONAL:
            if read_branch(s, 2, &value) < 0:
                return FAILED
            pc += 3 + (pc[2] if value == pc[1] else 0)
        elif op == KEYED_VARINT or op == KEYED_BYTES:
            if read_keyed(s, pc + 1, op == KEYED_BYTES) < 0:
                return FAILED
            pc += 3 + 2 * pc[1]
        elif op == SKIP_ARRAY or op == SKIP_MAP:
            if skip_items(s, pc + 2, op == SKIP_MAP) < 0:
                return FAILED
            pc += 2 + pc[1]
        elif op == LIST:
            if read_list(s, pc + 1) < 0:
                return FAILED
            pc += 4 + pc[3]
        elif op == FIXED:
            if s.end - s.p < pc[2]:
                return fail(s, TRUNCATED)
            if pc[1] >= 0 and put_bytes(s, pc[1], s.p, pc[2]) < 0:
                return FAILED
            s.p += pc[2]
            pc += 3
        elif op == MARK:
            if put_number(s, pc[1], 1) < 0:
                return FAILED
            pc += 2
        elif op == BOOL:
            if s.p >= s.end:
                return fail(s, TRUNCATED)
            if s.p[0] > 1:
                return fail(s, BAD_BOOLEAN)
            if pc[1] >= 0 and put_number(s, pc[1], s.p[0]) < 0:
                return FAILED
            s.p += 1
            pc += 2
        elif op == FLOAT or op == DOUBLE:
            if read_real(s, pc[1], op == DOUBLE) < 0:
                return FAILED
            pc += 2
        else:  # UNION
            if read_branch(s, pc[1], &value) < 0:
                return FAILED
            if run(s, pc + 3 + pc[1] + pc[3 + value]) < 0:
                return FAILED
            pc += 3 + pc[1] + pc[2]


cdef class Decoder:
    """Columns that grow as blocks are decoded into them. Domain 0 holds the records, for whose expected number there is
    room at once: memory that grows is copied, and new pages cost more than what is written to them.
    """

    cdef Sink *sinks
    cdef int64_t *rows
    cdef int64_t *before   # the same, when the record being decoded began
    cdef int sink_count
    cdef int domain_count
    cdef int64_t expected  # records

    def __cinit__(self, int64_t expected=0):
        self.expected = expected
        self.add_domain()

    def __dealloc__(self):
        cdef int number
        for number in range(self.sink_count):
            free(self.sinks[number].values)
            free(self.sinks[number].valid)
            free(self.sinks[number].data)
        free(self.sinks)
        free(self.rows)
        free(self.before)

    def add_domain(self):
        """A new row space; returns its number."""
        cdef void *moved = realloc(self.rows, (self.domain_count + 1) * sizeof(int64_t))
        if moved == NULL:
            raise MemoryError
        self.rows = <int64_t *> moved
        moved = realloc(self.before, (self.domain_count + 1) * sizeof(int64_t))
        if moved == NULL:
            raise MemoryError
        self.before = <int64_t *> moved
        self.rows[self.domain_count] = 0
        self.domain_count += 1
        return self.domain_count - 1

    def add_sink(self, int kind, int domain):
        """A new column in a domain, null for the rows so far; returns its number."""
        cdef void *moved = realloc(self.sinks, (self.sink_count + 1) * sizeof(Sink))
        if moved == NULL:
            raise MemoryError
        if not 0 <= domain < self.domain_count:
            raise IndexError(domain)
        self.sinks = <Sink *> moved
        memset(self.sinks + self.sink_count, 0, sizeof(Sink))
        self.sinks[self.sink_count].kind = kind
        self.sinks[self.sink_count].domain = domain
        self.sinks[self.sink_count].expected = self.expected if domain == 0 else 0
        self.sink_count += 1
        return self.sink_count - 1

    def row_count(self, int domain):
        """Rows so far."""
        if not 0 <= domain < self.domain_count:
            raise IndexError(domain)
        return self.rows[domain]

    def decode(
        self, const int32_t[::1] code, const uint8_t[::1] data, int64_t count, int drop_sink=-1, int64_t drop_value=0
    ):
        """Append ``count`` records; the block must hold exactly those.

        Records that have ``drop_value`` in ``drop_sink``, if one is given, leave nothing behind.
        """
        cdef State s
        cdef int64_t record
        cdef int outcome = 0
        cdef const uint8_t *start = &data[0] if data.shape[0] else NULL
        if drop_sink >= self.sink_count:
            raise IndexError(drop_sink)
        s.p = start
        s.end = start + data.shape[0]
        s.sinks = self.sinks
        s.rows = self.rows
        s.error = 0
        with nogil:
            if count < 0 or count > data.shape[0]:
                outcome = fail(&s, BAD_COUNT)
            else:
                for record in range(count):
                    memcpy(self.before, self.rows, self.domain_count * sizeof(int64_t))
                    outcome = run(&s, &code[0])
                    if outcome < 0:
                        break
                    if drop_sink >= 0 and has_value(self.sinks + drop_sink, s.rows[0], drop_value):
                        self.forget_record()
                    else:
                        s.rows[0] += 1
                if outcome == 0 and s.p != s.end:
                    outcome = fail(&s, LEFT_OVER)
        if outcome < 0:
            if s.error == NO_MEMORY:
                raise MemoryError
            raise BadAvro(s.error, s.p - start)

    cdef void forget_record(self) noexcept nogil:
        cdef int number
        memcpy(self.rows, self.before, self.domain_count * sizeof(int64_t))
        for number in range(self.sink_count):
            cut(self.sinks + number, self.rows[self.sinks[number].domain])

    def finish(self):
        """Every sink's (values, validity, data) as buffers; the decoder is empty afterwards."""
        cdef Sink *sink
        cdef int number
        cdef int64_t rows
        columns = []
        for number in range(self.sink_count):
            sink = self.sinks + number
            rows = self.rows[sink.domain]
            if (sink.capacity == 0 and grow(sink, 1) < 0) or (sink.rows < rows and pad(sink, rows) < 0):
                raise MemoryError
            columns.append((
                lend(<void **> &sink.values, (rows + (sink.kind == KIND_BYTES)) * sizeof(int64_t)),
                lend(<void **> &sink.valid, rows),
                lend(<void **> &sink.data, sink.data_size),
            ))
        self.sink_count = 0
        memset(self.rows, 0, self.domain_count * sizeof(int64_t))
        return columns
