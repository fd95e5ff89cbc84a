# cython: boundscheck=False, wraparound=False, cdivision=True
"""Decodes the data pages of a flat column chunk to Arrow's buffers, without the rows that are not kept.

A plain page of numbers is decompressed to where its values belong, so that decoding it takes no time of its own. A page
without kept rows is not decompressed. Page headers are read here, and the GIL is released for the whole chunk.

Fail-safe: all sizes, counts and indexes are checked. Anything invalid or unknown is a ``ValueError``, and the caller
leaves the column to another decoder.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from floeplan.parquet.pages.hybrid cimport GROUP, _bits, unpacked

NUMBERS_4, NUMBERS_8, DECIMALS_4, DECIMALS_8, TEXT, INDEXES, COUNTS = range(7)
"""What the values become: numbers as they are, integers as 128-bit decimals, byte arrays, dictionary indexes, or the
number of rows of each dictionary entry, and of nulls after them."""
HEADROOM = 64
"""Bytes that are free in front of the output."""

cdef enum:
    NUMBERS_4_ = 0
    NUMBERS_8_ = 1
    DECIMALS_4_ = 2
    DECIMALS_8_ = 3
    TEXT_ = 4
    INDEXES_ = 5
    COUNTS_ = 6
    HEADROOM_ = 64
    SHORT = 16
    DATA_PAGE = 0
    DATA_PAGE_V2 = 3
    PLAIN = 0
    PLAIN_DICTIONARY = 2
    RLE = 3
    RLE_DICTIONARY = 8
    NO = -1
    DEEPEST = 8
    STOP = 0  # types of compact Thrift
    TRUE = 1
    FALSE = 2
    BYTE = 3
    I16 = 4
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    SET = 10
    STRUCT = 12

ctypedef size_t (*Decompress)(void* context, void* out, size_t room, const void* data, size_t size) noexcept nogil

cdef struct Header:
    int64_t kind
    int64_t size
    int64_t stored
    int64_t count
    int64_t rows
    int64_t encoding
    int64_t levels_encoding
    int64_t levels
    int64_t repeated
    bint compressed

cdef struct Bytes:
    const unsigned char* data
    Py_ssize_t size

cdef struct Reader:
    const unsigned char* data
    Py_ssize_t size
    Py_ssize_t at
    bint wrong

cdef struct Column:
    Decompress decompress
    void* context
    int kind
    int max_def
    Py_ssize_t most  # bytes of an uncompressed page
    Bytes dictionary  # numbers, or the text of all entries
    const int64_t* entry_ends  # where entries of text begin, and where the last one ends
    int64_t entries
    int64_t longest  # entry of text; -1 if some cannot be copied in blocks of a constant size
    const unsigned char* flags  # of each row, whether it is kept
    unsigned char* page  # the uncompressed page
    Py_ssize_t page_room
    int32_t* numbers  # dictionary indexes or levels
    int32_t* take  # of each kept row of a page with nulls, which value of the page it has; -1 for null
    unsigned char* out
    int64_t* ends  # of text
    unsigned char* text
    int64_t room
    int64_t written
    unsigned char* valid
    bint nulls
    Py_ssize_t done


cdef class Kept:
    """Which rows of a row group are kept; it cannot be changed, so that decoding need not check it.

    A flag is its lowest bit.
    """

    cdef unsigned char* flags
    cdef int32_t* rows  # the kept ones, ascending
    cdef Py_ssize_t total, count

    def __cinit__(self, const unsigned char[::1] flags):
        cdef Py_ssize_t i, count = 0, total = flags.shape[0]
        cdef const unsigned char* given = &flags[0] if total else NULL
        cdef unsigned char* own
        cdef int32_t* rows
        if total > INT32_MAX:
            raise ValueError("too many rows")
        self.flags, self.rows = <unsigned char*>malloc(total + 1), <int32_t*>malloc(4 * (total + 1))
        if self.flags == NULL or self.rows == NULL:
            raise MemoryError
        own, rows = self.flags, self.rows
        with nogil:
            for i in range(total):
                own[i] = given[i] & 1
            for i in range(total):
                rows[count] = <int32_t>i  # without a branch on the flag
                count += own[i]
        self.total, self.count = total, count

    def __dealloc__(self):
        free(self.flags)
        free(self.rows)

    def __len__(self):
        return self.count


def decode_column(
    const unsigned char[::1] chunk,
    uintptr_t decompress,
    uintptr_t context,
    int kind,
    int max_def,
    Py_ssize_t most,
    Py_ssize_t rows,
    Kept kept,
    const unsigned char[::1] dictionary,
    const int64_t[::1] entries,
    unsigned char[::1] out,
    unsigned char[::1] text,
    unsigned char[::1] valid,
):
    """Decode the data pages of a column chunk.

    Args:
        chunk: Its pages after the dictionary page.
        decompress: The address of ``ZSTD_decompressDCtx``; 0 if the pages are not compressed.
        context: Its context.
        kind: What the values become.
        max_def: The maximum definition level, 0 or 1.
        most: The uncompressed size of the chunk.
        rows: Rows of the row group.
        kept: Which of them to keep; ``None`` for all.
        dictionary: The entries: numbers, or the text of all of them.
        entries: Where the entries of text begin, and where the last one ends.
        out: ``HEADROOM``, then room for the kept values. Of text, for the offset of each end, after one for the start.
            Of counts, a zero for each entry, and one for nulls.
        text: Room for the bytes of kept text.
        valid: One flag for each kept row; filled only if some are null.

    Returns:
        The bytes of text, and whether some rows are null.
    """
    cdef Column column
    cdef Py_ssize_t count = rows if kept is None else kept.count, size = chunk.shape[0], width = _width(kind)
    cdef Py_ssize_t needed = HEADROOM_ + width * (count + (kind == TEXT_))
    cdef bint done
    if kind == COUNTS_:
        needed = HEADROOM_ + width * entries.shape[0]
        if kept is not None or not entries.shape[0]:
            raise ValueError("counts of some rows, or without entries")
    if not 0 <= max_def <= 1 or rows < 0 or most < 0 or out.shape[0] < needed or valid.shape[0] < count:
        raise ValueError("invalid sizes")
    if kept is not None and kept.total != rows:
        raise ValueError("flags that are not those of the row group")
    memset(&column, 0, sizeof(column))
    column.decompress, column.context = <Decompress>decompress, <void*>context
    column.kind, column.max_def, column.most = kind, max_def, most
    column.out, column.valid = &out[0] + HEADROOM_, &valid[0] if count else NULL
    column.dictionary.size = dictionary.shape[0]
    column.dictionary.data = &dictionary[0] if dictionary.shape[0] else NULL
    column.entry_ends, column.entries = &entries[0] if entries.shape[0] else NULL, entries.shape[0] - 1
    if kind in (NUMBERS_4_, DECIMALS_4_):
        column.entries = dictionary.shape[0] // 4
    elif kind in (NUMBERS_8_, DECIMALS_8_):
        column.entries = dictionary.shape[0] // 8
    else:
        _check_entries(entries, dictionary.shape[0])
    if kind == TEXT_:
        column.ends = <int64_t*>column.out
        column.ends[0] = 0
        column.text, column.room = &text[0] if text.shape[0] else NULL, text.shape[0]
        column.longest = _longest_entry(entries, dictionary.shape[0])
    cdef const int32_t* chosen = NULL
    if kept is not None:
        chosen, column.flags = kept.rows, kept.flags
    with nogil:
        column.numbers = <int32_t*>malloc(4 * (rows + 1))
        column.take = <int32_t*>malloc(4 * (rows + 1))
        done = column.numbers != NULL and column.take != NULL
        done = done and _decoded(&column, &chunk[0] if size else NULL, size, rows, chosen, count)
        free(column.page)
        free(column.numbers)
        free(column.take)
    if not done:
        raise ValueError("pages that are invalid or not supported")
    return column.written, column.nulls


def decode_text(const unsigned char[::1] values, int64_t[::1] ends, unsigned char[::1] out):
    """Copy length-prefixed byte arrays without their lengths; ``ends`` gets where they begin and the last one ends.

    ``out`` has room for all of ``values``.
    """
    cdef Column column
    cdef Bytes plain
    cdef Py_ssize_t count = ends.shape[0] - 1
    if count < 0 or out.shape[0] < values.shape[0]:
        raise ValueError("invalid sizes")
    memset(&column, 0, sizeof(column))
    plain.data, plain.size = &values[0] if values.shape[0] else NULL, values.shape[0]
    column.ends, column.text, column.room = &ends[0], &out[0] if out.shape[0] else NULL, out.shape[0]
    ends[0] = 0
    if not _write_plain_text(&column, plain, count, NULL, 0, count):
        raise ValueError("the values are not as many as there should be")


cdef Py_ssize_t _width(int kind) except -1:
    if kind in (NUMBERS_4_, INDEXES_):
        return 4
    if kind in (NUMBERS_8_, TEXT_, COUNTS_):
        return 8
    if kind in (DECIMALS_4_, DECIMALS_8_):
        return 16
    raise ValueError(f"kind {kind}")


cdef int _check_entries(const int64_t[::1] ends, Py_ssize_t size) except -1:
    cdef Py_ssize_t i
    for i in range(ends.shape[0]):
        if not (0 if i == 0 else ends[i - 1]) <= ends[i] <= size:
            raise ValueError("invalid offsets of entries")
    return 0


cdef int64_t _longest_entry(const int64_t[::1] ends, Py_ssize_t size) noexcept:
    """The length of the longest entry, if each may be copied with the bytes that follow it."""
    cdef Py_ssize_t i
    cdef int64_t found = 0
    for i in range(ends.shape[0] - 1):
        if ends[i + 1] - ends[i] > SHORT or ends[i] + SHORT > size:
            return NO
        found = max(found, ends[i + 1] - ends[i])
    return found


cdef Py_ssize_t _below(const int32_t* kept, Py_ssize_t count, Py_ssize_t row) noexcept nogil:
    """How many of the kept rows are before a row."""
    cdef Py_ssize_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) // 2
        if kept[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


cdef bint _decoded(
    Column* column, const unsigned char* chunk, Py_ssize_t size, Py_ssize_t rows, const int32_t* kept, Py_ssize_t count
) noexcept nogil:
    cdef Py_ssize_t at = 0, row = 0, first = 0, last, taken
    cdef bint everything = kept == NULL and count == rows
    cdef Header header
    while at < size:
        taken = _read_header(chunk + at, size - at, &header)
        if taken < 0:
            return False
        at += taken
        if not (0 <= header.size <= column.most and 0 <= header.stored <= size - at and 0 <= header.count <= rows - row):
            return False
        last = header.count
        if not everything:
            last = _below(kept + first, count - first, row + header.count)
        if last and not _decode_page(column, &header, chunk + at, NULL if last == header.count else kept + first, row, last):
            return False
        first += last
        row += header.count
        at += header.stored
    return row == rows and column.done == count


cdef bint _decode_page(
    Column* column, const Header* header, const unsigned char* body, const int32_t* kept, Py_ssize_t row, Py_ssize_t count
) noexcept nogil:
    """The kept rows of a page that begins at ``row``; all of them if ``kept`` is NULL."""
    cdef Bytes values, levels
    cdef Py_ssize_t rows = header.count, present, i, end
    cdef bint is_v2 = header.kind == DATA_PAGE_V2
    if not is_v2 and header.kind != DATA_PAGE:
        return False
    if kept == NULL and not is_v2 and header.encoding == PLAIN and _decompressed_in_place(column, header, body):
        return True
    levels.data, levels.size = NULL, 0
    if is_v2:
        # In v2 the levels are never compressed, and the values only if the header says so.
        if header.repeated > 0 or header.rows != rows or not 0 <= header.levels <= header.size:
            return False
        if header.levels > header.stored or (header.levels and not column.max_def):
            return False
        levels.data, levels.size = body, header.levels
        values = _uncompressed(
            column, body + header.levels, header.stored - header.levels, header.size - header.levels, header.compressed
        )
        if values.size < 0:
            return False
    else:
        values = _uncompressed(column, body, header.stored, header.size, True)
        if column.max_def:
            if header.levels_encoding != RLE or values.size < 4:
                return False
            end = _length(values.data)
            if end > values.size - 4:
                return False
            levels.data, levels.size = values.data + 4, end
            values.data, values.size = values.data + 4 + end, values.size - 4 - end
        elif values.size < 0:
            return False
    present = rows
    if column.max_def and not _all_present(levels, rows):
        if unpacked(levels.data, levels.size, 1, column.numbers, rows) < 0:
            return False
        present = 0
        for i in range(rows):
            present += column.numbers[i]
    if present < rows and column.kind != COUNTS_:
        _take_present(column, kept, row, rows, count)
        kept, row = column.take, 0
    if column.nulls:
        for i in range(count):
            column.valid[column.done + i] = present == rows or column.take[i] >= 0
    if not _write(column, header, values, present, kept, <int32_t>row, count):
        return False
    column.done += count
    return True


cdef void _take_present(
    Column* column, const int32_t* kept, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t count
) noexcept nogil:
    """Which value each kept row has; ``numbers`` has the definition levels of all rows."""
    cdef Py_ssize_t i
    cdef int32_t before = 0, level
    if not column.nulls:
        column.nulls = True
        memset(column.valid, 1, column.done)
    if kept == NULL:
        for i in range(rows):
            column.take[i] = before if column.numbers[i] else -1
            before += column.numbers[i]
        return
    for i in range(rows):
        level = column.numbers[i]
        column.numbers[i] = before if level else -1
        before += level
    for i in range(count):
        column.take[i] = column.numbers[kept[i] - row]


cdef bint _write(
    Column* column,
    const Header* header,
    Bytes values,
    Py_ssize_t present,
    const int32_t* take,
    int32_t base,
    Py_ssize_t count,
) noexcept nogil:
    """Write some values of a page, or all of them in order if ``take`` is NULL.

    ``take`` has the number of each value plus ``base``, in ascending order, and -1 for nulls, which have no base.
    """
    cdef Py_ssize_t i, width = 4 if column.kind in (NUMBERS_4_, DECIMALS_4_) else 8
    cdef int32_t beyond = 0, last = <int32_t>min(column.entries, INT32_MAX) - 1
    cdef int32_t* codes = column.numbers
    cdef bint nulls = take != NULL and take == column.take
    if header.encoding == PLAIN:
        if column.kind in (INDEXES_, COUNTS_):
            return False
        if column.kind == TEXT_:
            return _write_plain_text(column, values, present, take, base, count)
        return values.size == present * width and _write_numbers(column, values.data, take, base, nulls, count)
    if header.encoding not in (RLE_DICTIONARY, PLAIN_DICTIONARY):
        return False
    if column.kind == INDEXES_ and take == NULL:
        codes = <int32_t*>column.out + column.done
    if present and (not values.size or values.data[0] > 31 or column.entries < 1):
        return False
    if column.kind == COUNTS_:
        (<int64_t*>column.out)[column.entries] += count - present
        return not present or _count(column, values.data + 1, values.size - 1, values.data[0], present)
    if present:
        if unpacked(values.data + 1, values.size - 1, values.data[0], codes, present) < 0:
            return False
    for i in range(present):
        beyond |= last - codes[i]  # negative for an index that is too large; no index is negative
    if beyond < 0:
        return False
    if nulls:
        for i in range(count):
            if take[i] >= 0:
                column.take[i] = codes[take[i]]
        codes = column.take
    elif take != NULL and column.kind == NUMBERS_4_:
        _gather_entries(column.dictionary.data, codes, take, base, count, <uint32_t*>column.out + column.done)
        return True
    elif take != NULL and column.kind == NUMBERS_8_:
        _gather_entries(column.dictionary.data, codes, take, base, count, <uint64_t*>column.out + column.done)
        return True
    elif take != NULL:
        for i in range(count):  # in place: a value moves to the front
            codes[i] = codes[take[i] - base]
    if column.kind == INDEXES_:
        if take != NULL:
            for i in range(count):
                (<int32_t*>column.out)[column.done + i] = codes[i] if codes[i] >= 0 else 0
        return True
    if column.kind == TEXT_:
        return _write_entries(column, codes, count)
    return _write_numbers(column, column.dictionary.data, codes, 0, nulls, count)


cdef bint _count(Column* column, const unsigned char* data, Py_ssize_t size, int width, Py_ssize_t count) noexcept nogil:
    """Add the number of times that each dictionary index occurs.

    Where a byte holds whole indexes, its values are counted instead, which takes less time than unpacking them.
    """
    cdef int64_t* found = <int64_t*>column.out
    cdef int64_t entries = column.entries
    cdef int64_t seen[4][256]
    cdef Py_ssize_t at = 0, done = 0, many, taken, whole, i
    cdef uint64_t header, number, mask = (<uint64_t>1 << width) - 1
    cdef int shift, k
    memset(seen, 0, sizeof(seen))
    while done < count:
        header, shift = 0, 0
        while True:
            if at >= size or shift > 28:
                return False
            header |= <uint64_t>(data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                break
        many = <Py_ssize_t>(header >> 1)
        if header & 1:
            if many * width > size - at:
                return False
            taken = many * GROUP if many * GROUP < count - done else count - done
            whole = 0
            if width in (1, 2, 4, 8):
                whole = taken * width // 8
                for i in range(whole & ~<Py_ssize_t>3):
                    seen[i & 3][data[at + i]] += 1  # four counters: equal ones would wait for each other
                for i in range(whole & ~<Py_ssize_t>3, whole):
                    seen[0][data[at + i]] += 1
            i = whole * 8 // width if width else 0
            _bits(data + at + whole, size - at - whole, width, mask, column.numbers, taken - i)
            for i in range(taken - i):
                if column.numbers[i] >= entries:
                    return False
                found[column.numbers[i]] += 1
            at += many * width
            many *= GROUP
        else:
            if (width + 7) // 8 > size - at:
                return False
            number = 0
            for i in range((width + 7) // 8):
                number |= <uint64_t>data[at + i] << 8 * i
            if number > mask or <int64_t>number >= entries:
                return False
            at += (width + 7) // 8
            found[number] += many if many < count - done else count - done
        done += many
    if width in (1, 2, 4, 8):
        for i in range(256):
            many = seen[0][i] + seen[1][i] + seen[2][i] + seen[3][i]
            for k in range(8 // width if many else 0):
                number = <uint64_t>i >> k * width & mask
                if <int64_t>number >= entries:
                    return False
                found[number] += many
    return True


cdef bint _write_numbers(
    Column* column, const unsigned char* data, const int32_t* take, int32_t base, bint nulls, Py_ssize_t count
) noexcept nogil:
    cdef unsigned char* out = column.out
    if column.kind == NUMBERS_4_:
        _gather(data, take, base, nulls, count, <uint32_t*>out + column.done)
    elif column.kind == NUMBERS_8_:
        _gather(data, take, base, nulls, count, <uint64_t*>out + column.done)
    elif column.kind == DECIMALS_4_:
        _widen(data, take, base, nulls, count, <int64_t*>out + 2 * column.done, <int32_t>0)
    else:
        _widen(data, take, base, nulls, count, <int64_t*>out + 2 * column.done, <int64_t>0)
    return True


ctypedef fused Number:
    uint32_t
    uint64_t


cdef inline void _gather(
    const unsigned char* data, const int32_t* take, int32_t base, bint nulls, Py_ssize_t count, Number* out
) noexcept nogil:
    cdef Py_ssize_t i
    if take == NULL:
        memcpy(out, data, count * sizeof(Number))
    elif not nulls:
        for i in range(count):
            memcpy(&out[i], data + (take[i] - base) * <Py_ssize_t>sizeof(Number), sizeof(Number))
    else:
        for i in range(count):
            out[i] = 0
            if take[i] >= 0:
                memcpy(&out[i], data + take[i] * <Py_ssize_t>sizeof(Number), sizeof(Number))


cdef inline void _gather_entries(
    const unsigned char* dictionary,
    const int32_t* codes,
    const int32_t* take,
    int32_t base,
    Py_ssize_t count,
    Number* out,
) noexcept nogil:
    """The entries of the values that are taken; none is null."""
    cdef Py_ssize_t i
    for i in range(count):
        memcpy(&out[i], dictionary + codes[take[i] - base] * <Py_ssize_t>sizeof(Number), sizeof(Number))


ctypedef fused Integer:
    int32_t
    int64_t


cdef inline void _widen(
    const unsigned char* data,
    const int32_t* take,
    int32_t base,
    bint nulls,
    Py_ssize_t count,
    int64_t* out,
    Integer value,
) noexcept nogil:
    """Integers of the type of ``value`` as 128-bit ones."""
    cdef Py_ssize_t i
    for i in range(count):
        if take == NULL:
            memcpy(&value, data + i * <Py_ssize_t>sizeof(Integer), sizeof(Integer))
        elif nulls and take[i] < 0:
            value = 0
        else:
            memcpy(&value, data + (take[i] - base) * <Py_ssize_t>sizeof(Integer), sizeof(Integer))
        out[2 * i] = value
        out[2 * i + 1] = <int64_t>value >> 63


cdef bint _write_plain_text(
    Column* column, Bytes values, Py_ssize_t present, const int32_t* take, int32_t base, Py_ssize_t count
) noexcept nogil:
    # Local variables: a byte that is stored may be any field of the column, which would be loaded again.
    cdef const unsigned char* at = values.data
    cdef const unsigned char* end = values.data + values.size
    cdef unsigned char* start = column.text
    cdef unsigned char* text = start + column.written
    cdef unsigned char* last = start + column.room
    cdef int64_t* ends = column.ends + 1 + column.done
    cdef bint nulls = take != NULL and take == column.take
    cdef const unsigned char* flags = NULL if take == NULL or nulls else column.flags + base
    cdef Py_ssize_t i, row = 0, length
    cdef bint wanted = True
    for i in range(present):
        if end - at < 4:
            return False
        length = _length(at)
        at += 4
        if length > end - at:
            return False
        while nulls and row < count and take[row] < 0:
            ends[row] = text - start
            row += 1
        if row == count:
            at += length
            continue
        if flags != NULL:
            wanted = flags[i]
        elif nulls:
            wanted = take[row] == i
        # A copy of a constant size needs no call; the bytes after the value are overwritten by the next one. A value
        # that is not kept is overwritten, too: a branch on that takes longer, because it cannot be predicted.
        if length <= SHORT and end - at >= SHORT and last - text >= SHORT:
            memcpy(text, at, SHORT)
        elif wanted:
            if length > last - text:
                return False
            if length:
                memcpy(text, at, length)
        at += length
        text += length & -<Py_ssize_t>wanted
        ends[row] = text - start
        row += wanted
    for row in range(row, count):
        ends[row] = text - start
    column.written = text - start
    return at == end


cdef bint _write_entries(Column* column, const int32_t* take, Py_ssize_t count) noexcept nogil:
    cdef const unsigned char* dictionary = column.dictionary.data
    cdef const int64_t* entry_ends = column.entry_ends
    cdef unsigned char* start = column.text
    cdef unsigned char* text = start + column.written
    cdef unsigned char* last = start + column.room
    cdef int64_t* ends = column.ends + 1 + column.done
    cdef int64_t first
    cdef Py_ssize_t i
    if column.longest >= 0 and last - text >= SHORT and (last - text - SHORT) // (column.longest + 1) >= count:
        for i in range(count):
            if take[i] >= 0:
                first = entry_ends[take[i]]
                memcpy(text, dictionary + first, SHORT)
                text += entry_ends[take[i] + 1] - first
            ends[i] = text - start
    else:
        for i in range(count):
            if take[i] >= 0:
                first = entry_ends[take[i]]
                if entry_ends[take[i] + 1] - first > last - text:
                    return False
                memcpy(text, dictionary + first, entry_ends[take[i] + 1] - first)
                text += entry_ends[take[i] + 1] - first
            ends[i] = text - start
    column.written = text - start
    return True


cdef bint _decompressed_in_place(Column* column, const Header* header, const unsigned char* body) noexcept nogil:
    """Whether this was a page of numbers without nulls, which is in its place now.

    Its levels come first, and overwrite the end of the page before it, which is then restored.
    """
    cdef unsigned char levels[16]
    cdef unsigned char before[16]
    cdef unsigned char* target
    cdef Py_ssize_t prefix = 0, width = 4 if column.kind == NUMBERS_4_ else 8
    cdef bint done
    if column.kind not in (NUMBERS_4_, NUMBERS_8_):
        return False
    if column.max_def:
        if header.levels_encoding != RLE:
            return False
        memset(levels, 0, 4)
        prefix = 4 + _present_run(header.count, levels + 4)
        levels[0] = <unsigned char>(prefix - 4)
    if header.size != prefix + header.count * width:
        return False
    target = column.out + column.done * width - prefix
    memcpy(before, target, prefix)
    if column.decompress == NULL:
        done = header.stored == header.size
        if done:
            memcpy(target, body, header.size)
    else:
        done = column.decompress(column.context, target, header.size, body, header.stored) == <size_t>header.size
    done = done and memcmp(target, levels, prefix) == 0
    memcpy(target, before, prefix)
    if done:
        if column.nulls:
            memset(column.valid + column.done, 1, header.count)
        column.done += header.count
    return done


cdef Bytes _uncompressed(
    Column* column, const unsigned char* data, Py_ssize_t stored, Py_ssize_t size, bint compressed
) noexcept nogil:
    """Decompress part of a page; a size of -1 is an error."""
    cdef Bytes found
    found.data, found.size = data, size
    if column.decompress == NULL or not compressed:
        if stored != size:
            found.size = -1
    elif size:
        if column.page_room < size:
            free(column.page)
            column.page, column.page_room = <unsigned char*>malloc(size), size
        found.data = column.page
        if column.page == NULL:
            column.page_room, found.size = 0, -1
        elif column.decompress(column.context, column.page, size, data, stored) != <size_t>size:
            found.size = -1
    return found


cdef bint _all_present(Bytes levels, Py_ssize_t rows) noexcept nogil:
    """Whether definition levels are one run of 1, as writers encode rows without nulls."""
    cdef unsigned char run[12]
    cdef Py_ssize_t size = _present_run(rows, run)
    return levels.size == size and memcmp(levels.data, run, size) == 0


cdef Py_ssize_t _present_run(Py_ssize_t rows, unsigned char* out) noexcept nogil:
    cdef uint64_t left = <uint64_t>rows << 1
    cdef Py_ssize_t written = 0
    while left > 127:
        out[written] = <unsigned char>(left & 127 | 128)
        left >>= 7
        written += 1
    out[written] = <unsigned char>left
    out[written + 1] = 1
    return written + 2


cdef inline Py_ssize_t _length(const unsigned char* at) noexcept nogil:
    return at[0] | <Py_ssize_t>at[1] << 8 | <Py_ssize_t>at[2] << 16 | <Py_ssize_t>at[3] << 24


cdef Py_ssize_t _read_header(const unsigned char* data, Py_ssize_t size, Header* found) noexcept nogil:
    """Read a page header in compact Thrift; returns its size, or -1 if it is invalid."""
    cdef Reader reader
    cdef int id_ = 0, type_
    reader.data, reader.size, reader.at, reader.wrong = data, size, 0, False
    memset(found, 0xFF, sizeof(Header))  # -1
    found.compressed = True
    while True:
        type_ = _next_field(&reader, &id_)
        if reader.wrong:
            return NO
        if type_ == STOP:
            return reader.at
        if type_ == I32 and id_ == 1:
            found.kind = _integer(&reader)
        elif type_ == I32 and id_ == 2:
            found.size = _integer(&reader)
        elif type_ == I32 and id_ == 3:
            found.stored = _integer(&reader)
        elif type_ == STRUCT and (id_ == 5 and found.kind == DATA_PAGE or id_ == 8 and found.kind == DATA_PAGE_V2):
            _read_details(&reader, found)
        else:
            _skip(&reader, type_, 0)


cdef void _read_details(Reader* reader, Header* found) noexcept nogil:
    """DataPageHeader or DataPageHeaderV2."""
    cdef int id_ = 0, type_
    cdef bint is_v2 = found.kind == DATA_PAGE_V2
    cdef int64_t value
    while True:
        type_ = _next_field(reader, &id_)
        if reader.wrong or type_ == STOP:
            return
        if type_ != I32:
            if is_v2 and id_ == 7 and type_ in (TRUE, FALSE):
                found.compressed = type_ == TRUE
            _skip(reader, type_, 0)
            continue
        value = _integer(reader)
        if id_ == 1:
            found.count = value
        elif id_ == (4 if is_v2 else 2):
            found.encoding = value
        elif id_ == 3 and is_v2:
            found.rows = value
        elif id_ == 3:
            found.levels_encoding = value
        elif id_ == 5 and is_v2:
            found.levels = value
        elif id_ == 6 and is_v2:
            found.repeated = value


cdef inline int _next_field(Reader* reader, int* id_) noexcept nogil:
    """The type of the next field of a struct, and its id from that of the last one."""
    cdef int head = _byte(reader)
    if head & 15 == STOP:
        return STOP
    id_[0] = id_[0] + (head >> 4) if head >> 4 else <int>_integer(reader)
    return head & 15


cdef void _skip(Reader* reader, int type_, int depth) noexcept nogil:
    cdef int64_t many
    cdef int id_ = 0, inner
    if depth > DEEPEST:
        reader.wrong = True
    if reader.wrong or type_ in (TRUE, FALSE):
        return
    if type_ == BYTE:
        _byte(reader)
    elif type_ in (I16, I32, I64):
        _varint(reader)
    elif type_ == DOUBLE:
        _advance(reader, 8)
    elif type_ == BINARY:
        _advance(reader, <int64_t>_varint(reader))
    elif type_ == LIST or type_ == SET:
        inner = _byte(reader)
        many = inner >> 4
        if many == 15:
            many = <int64_t>_varint(reader)
        inner = inner & 15
        while many > 0 and not reader.wrong:
            _skip(reader, BYTE if inner in (TRUE, FALSE) else inner, depth + 1)
            many -= 1
    elif type_ == STRUCT:
        while True:
            inner = _next_field(reader, &id_)
            if inner == STOP or reader.wrong:
                return
            _skip(reader, inner, depth + 1)
    else:  # a map, which no page header has
        reader.wrong = True


cdef inline int _byte(Reader* reader) noexcept nogil:
    if reader.at >= reader.size:
        reader.wrong = True
        return 0
    reader.at += 1
    return reader.data[reader.at - 1]


cdef inline void _advance(Reader* reader, int64_t bytes_) noexcept nogil:
    if 0 <= bytes_ <= reader.size - reader.at:
        reader.at += bytes_
    else:
        reader.wrong = True


cdef inline uint64_t _varint(Reader* reader) noexcept nogil:
    cdef uint64_t found = 0
    cdef int shift = 0, one = 128
    while one & 128 and not reader.wrong:
        one = _byte(reader)
        if shift > 63:
            reader.wrong = True
            return 0
        found |= <uint64_t>(one & 127) << shift
        shift += 7
    return found


cdef inline int64_t _integer(Reader* reader) noexcept nogil:
    cdef uint64_t found = _varint(reader)
    return <int64_t>(found >> 1) ^ -<int64_t>(found & 1)
