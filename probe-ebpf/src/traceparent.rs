//! Search for the header `traceparent` (W3C Trace Context) in the head of an HTTP/1.x request. The kernel side runs it, so that only the
//! parsed ids reach user space.

/// Maximum number of bytes of a request that are searched.
pub const MAX_HEAD: usize = 4000;

/// Maximum number of [`HeadSearch::step`]s: one for each line and [`STEP_WORDS`]. A head of more lines is not searched to its end.
pub const MAX_STEPS: u32 = 512;

/// Maximum number of words searched in a step, whose call costs as much as some of them.
const STEP_WORDS: usize = 8;

const NAME: &[u8; 12] = b"traceparent:";
/// Length of a value of version 00, the only version.
const VALUE_BYTES: usize = 55;
/// Maximum number of blanks before the value.
const MAX_BLANKS: usize = 4;

/// A power of two, so that a mask bounds an index, which the verifier and the compiler understand alike.
const WORDS: usize = 512;
const EVERY_BYTE: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = EVERY_BYTE << 7;

/// Span of a request's caller.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallerSpan {
    /// Halves of the trace's id, the upper one first. Both are 0 unless the span is known.
    pub trace_id: [u64; 2],
    /// Id of the span.
    pub span_id: u64,
    /// Flags of the trace.
    pub flags: u32,
    /// Why the span is unknown: an [`UnknownSpan`] as a number, or 0.
    pub unknown: u32,
}

/// Why the span of a request's caller is unknown, although the request may name one.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownSpan {
    /// The header's value is invalid.
    Malformed = 1,
    /// The head of the request was not in the first read, or is longer than [`MAX_HEAD`].
    Incomplete = 2,
}

impl CallerSpan {
    /// A request without the header.
    pub const ABSENT: Self = Self { trace_id: [0; 2], span_id: 0, flags: 0, unknown: 0 };
    /// A request whose head was not read to its end.
    pub const INCOMPLETE: Self = Self { unknown: UnknownSpan::Incomplete as u32, ..Self::ABSENT };
    /// A request whose header has an invalid value.
    pub const MALFORMED: Self = Self { unknown: UnknownSpan::Malformed as u32, ..Self::ABSENT };

    /// Parses the bytes of a record; `None` if they are cut short.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| bytes.get(at..at + 8)?.try_into().map(u64::from_ne_bytes).ok();
        let half = |at: usize| bytes.get(at..at + 4)?.try_into().map(u32::from_ne_bytes).ok();
        Some(Self { trace_id: [word(0)?, word(8)?], span_id: word(16)?, flags: half(24)?, unknown: half(28)? })
    }

    /// Why the span is unknown, although the request may name one.
    pub fn unknown(&self) -> Option<UnknownSpan> {
        [UnknownSpan::Malformed, UnknownSpan::Incomplete].into_iter().find(|why| *why as u32 == self.unknown)
    }
}

/// A search in progress.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct HeadSearch {
    /// The first bytes of the request, little-endian. Those from `length` on belong to earlier requests.
    pub words: [u64; WORDS + 1],
    /// Number of bytes of the request, at most [`MAX_HEAD`].
    pub length: usize,
    /// Number of searched bytes.
    pub at: usize,
    /// The result.
    pub caller: CallerSpan,
}

impl HeadSearch {
    /// Begins to search the first `length` bytes of `words`. Returns whether they are the beginning of a request that generates tokens. TLS,
    /// HTTP/2 and the rest of a request's body are not.
    #[inline(always)]
    pub fn begin(&mut self, length: usize) -> bool {
        const POST: u64 = u64::from_le_bytes(*b"POST \0\0\0");
        const PUT: u64 = u64::from_le_bytes(*b"PUT \0\0\0\0");
        (self.length, self.at, self.caller) = (length, 0, CallerSpan::INCOMPLETE);
        let word = self.word_at(0);
        length < 5 || word & 0x00ff_ffff_ffff == POST || word & 0xffff_ffff == PUT
    }

    /// Searches the next line of the request's head, or [`STEP_WORDS`] words of 8 bytes of it. Returns whether the search goes on.
    #[inline(always)]
    pub fn step(&mut self) -> bool {
        let (mut at, mut line_ends) = (self.at, 0);
        for _ in 0..STEP_WORDS {
            line_ends = find_byte(self.words[(at / 8) & (WORDS - 1)], b'\n') & (u64::MAX << (at % 8 * 8));
            if line_ends != 0 {
                break;
            }
            at = (at | 7) + 1;
        }
        if line_ends == 0 {
            self.at = at;
            return at < self.length;
        }
        let line = (at & !7) + bytes_up_to_first(line_ends);
        self.at = line;
        if line >= self.length {
            return false;
        }
        let [begin, rest] = [self.word_at(line), self.word_at(line + 8)];
        if matches!(begin as u8, b'\r' | b'\n') {
            self.caller = CallerSpan::ABSENT;
            return false;
        }
        if !is_name(begin, rest) {
            return true;
        }
        let mut value = line + NAME.len();
        for _ in 0..MAX_BLANKS {
            value += usize::from(is_blank(self.word_at(value) as u8));
        }
        if value + VALUE_BYTES < self.length {
            self.caller = self.parse_value(value);
        }
        false
    }

    /// Parses the value at `at`, as <https://www.w3.org/TR/trace-context/#traceparent-header> asks: `00-TRACE_ID-SPAN_ID-FLAGS`.
    #[inline(always)]
    fn parse_value(&self, at: usize) -> CallerSpan {
        const VERSION: u64 = u64::from_le_bytes(*b"00-\0\0\0\0\0");
        let mut is_hex = true;
        let mut number = |digits: u64| {
            let (number, is_number) = parse_hex(digits);
            is_hex &= is_number;
            number
        };
        let trace_id =
            [3, 19].map(|part| (number(self.word_at(at + part)) << 32) | number(self.word_at(at + part + 8)));
        let span_id = (number(self.word_at(at + 36)) << 32) | number(self.word_at(at + 44));
        // The separator, both digits of the flags and the end.
        let end = self.word_at(at + 52);
        let flags = number((u64::from((end >> 8) as u16) << 48) | (u64::from(b'0') * (EVERY_BYTE >> 16)));
        let is_separated = self.word_at(at) & 0xff_ffff == VERSION
            && self.word_at(at + 35) as u8 == b'-'
            && end as u8 == b'-'
            && (is_blank((end >> 24) as u8) || matches!((end >> 24) as u8, b'\r' | b'\n'));
        if is_hex && is_separated && trace_id != [0; 2] && span_id != 0 {
            CallerSpan { trace_id, span_id, flags: flags as u32, unknown: 0 }
        } else {
            CallerSpan::MALFORMED
        }
    }

    /// The eight bytes from this one on. Words are read aligned, as the compiler reads others byte by byte.
    #[inline(always)]
    fn word_at(&self, at: usize) -> u64 {
        let (index, shift) = ((at / 8) & (WORDS - 1), at % 8 * 8);
        (self.words[index] >> shift) | (self.words[index + 1] << 1 << (63 - shift))
    }
}

#[inline(always)]
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Whether a line with these first 16 bytes has the header's name, whose letters have any case.
#[inline(always)]
fn is_name(begin: u64, rest: u64) -> bool {
    const LETTERS: u64 = EVERY_BYTE << 5;
    const BEGIN: u64 = u64::from_le_bytes(*b"tracepar");
    const REST: u64 = u64::from_le_bytes(*b"ent:\0\0\0\0");
    begin | LETTERS == BEGIN && (rest | (LETTERS & 0xff_ffff)) & 0xffff_ffff == REST
}

/// Sets the high bit of each byte that equals `wanted`, and no other bit.
#[inline(always)]
fn find_byte(word: u64, wanted: u8) -> u64 {
    let differs = word ^ (u64::from(wanted) * EVERY_BYTE);
    !(((differs & !HIGH_BITS) + !HIGH_BITS) | differs) & HIGH_BITS
}

/// Number of bytes up to the first with its high bit set, inclusive.
#[inline(always)]
fn bytes_up_to_first(high_bits: u64) -> usize {
    let first = high_bits & high_bits.wrapping_neg();
    (((first - 1) & EVERY_BYTE).wrapping_mul(EVERY_BYTE) >> 56) as usize
}

/// Parses eight lower-case hexadecimal digits, one a byte, all at once. Returns the number, and whether all bytes are such digits.
#[inline(always)]
fn parse_hex(digits: u64) -> (u64, bool) {
    let low = digits & !HIGH_BITS;
    // Bytes from `first` to `last`, by carries into the high bit.
    let between = |first: u8, last: u8| {
        (low + u64::from(0x80 - first) * EVERY_BYTE) & !(low + u64::from(0x7f - last) * EVERY_BYTE) & HIGH_BITS
    };
    let is_number = (between(b'0', b'9') | between(b'a', b'f')) & !digits & HIGH_BITS == HIGH_BITS;
    let values = (low & (EVERY_BYTE * 15)) + ((low >> 6) & EVERY_BYTE) * 9;
    let pairs = values.swap_bytes();
    let bytes = ((pairs >> 4) | pairs) & 0x00ff_00ff_00ff_00ff;
    let halves = ((bytes >> 8) | bytes) & 0x0000_ffff_0000_ffff;
    (((halves >> 16) | halves) & 0xffff_ffff, is_number)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const VALUE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const SPAN: CallerSpan = CallerSpan {
        trace_id: [0x4bf9_2f35_77b3_4da6, 0xa3ce_929d_0e0e_4736],
        span_id: 0x00f0_67aa_0ba9_02b7,
        flags: 1,
        unknown: 0,
    };

    /// Searches a request as the kernel side does, in a buffer with the bytes of an earlier one.
    fn search_after(earlier: &[u8], request: &[u8]) -> CallerSpan {
        let mut search = HeadSearch { words: [0; WORDS + 1], length: 0, at: 0, caller: CallerSpan::ABSENT };
        for bytes in [earlier, request] {
            for (at, byte) in bytes.iter().take(MAX_HEAD).enumerate() {
                let shift = at % 8 * 8;
                search.words[at / 8] = (search.words[at / 8] & !(0xff << shift)) | (u64::from(*byte) << shift);
            }
        }
        if !search.begin(request.len().min(MAX_HEAD)) {
            return CallerSpan::ABSENT;
        }
        let _ = (0..MAX_STEPS).all(|_| search.step());
        search.caller
    }

    fn search(request: &str) -> CallerSpan {
        search_after(b"", request.as_bytes())
    }

    fn request(headers: &str) -> String {
        format!("POST /v1/completions HTTP/1.1\r\nHost: engine:8000\r\n{headers}\r\n{{\"prompt\":\"a\"}}")
    }

    fn header(value: &str) -> String {
        format!("traceparent: {value}\r\n")
    }

    #[test]
    fn the_header_is_found_by_its_name_alone() {
        for name in ["traceparent: ", "Traceparent:", "TRACEPARENT:  \t", "tRACEpARENT: \t\t "] {
            let headers = format!("accept: */*\r\n{name}{VALUE} \r\nx: y\r\n");
            assert_eq!(search(&request(&headers)), SPAN, "{name}");
        }
        for headers in ["tracestate: a=b\r\n", "x-traceparent: 1\r\n", "traceparent2: a\r\n", "traceparent : a\r\n", ""]
        {
            assert_eq!(search(&request(headers)), CallerSpan::ABSENT, "{headers}");
        }
        assert_eq!(search(&request(&header(&VALUE.replace("-01", "-00")))), CallerSpan { flags: 0, ..SPAN });
        assert_eq!(search(&format!("PUT{}", &request(&header(VALUE))[4..])), SPAN);
    }

    #[test]
    fn invalid_values_are_malformed() {
        let mut values: Vec<String> = ["", "00", "cc", "0"].map(String::from).into();
        values.push(format!("00-{:032}-00f067aa0ba902b7-01", 0));
        values.push(format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{:016}-01", 0));
        values.extend([format!("{VALUE}-00"), format!("{VALUE}0"), format!("01{}", &VALUE[2..]), VALUE.to_uppercase()]);
        for at in 0..VALUE.len() {
            for byte in ["g", "F", "/", ":", "`", "\u{e4}", "-", "0"] {
                let value = format!("{}{byte}{}", &VALUE[..at], &VALUE[at + 1..]);
                if value != VALUE && (byte != "0" || VALUE[at..].starts_with('-')) {
                    values.push(value);
                }
            }
        }
        for value in values {
            let body = "b".repeat(60);
            assert_eq!(search(&(request(&header(&value)) + &body)), CallerSpan::MALFORMED, "{value}");
        }
    }

    #[test]
    fn bodies_and_other_protocols_are_not_searched() {
        let header = header(VALUE);
        assert_eq!(search(&format!("{}\r\n{header}\r\n", request(""))), CallerSpan::ABSENT);
        for begin in
            ["\x16\x03\x01\r\n", "PRI * HTTP/2.0\r\n", "{\"a\":1}\r\n", "GET / HTTP/1.1\r\n", "post / HTTP/1.1\r\n", ""]
        {
            assert_eq!(search(&format!("{begin}{header}\r\n")), CallerSpan::ABSENT, "{begin}");
        }
    }

    #[test]
    fn a_head_is_searched_up_to_the_limit() {
        for (bytes, expected) in [(3000, SPAN), (MAX_HEAD, CallerSpan::INCOMPLETE)] {
            let cookie = format!("Cookie: {}\r\n", "c".repeat(bytes));
            assert_eq!(search(&request(&format!("{cookie}{}", header(VALUE)))), expected, "{bytes}");
        }
        let lines = "a:b\r\n".repeat(MAX_HEAD / 5);
        assert_eq!(search(&request(&lines)), CallerSpan::INCOMPLETE);
    }

    fn header_line() -> impl Strategy<Value = String> {
        "[A-Za-z-]{1,20}: ?[ -~]{0,80}\r\n"
    }

    proptest! {
        #[test]
        fn a_cut_head_gives_the_span_or_says_that_it_is_incomplete(
            before in prop::collection::vec(header_line(), 0..6), after in prop::collection::vec(header_line(), 0..6), cut in 0_usize..800,
        ) {
            let head = request(&(before.concat() + &header(VALUE) + &after.concat()));
            let whole = head.find(VALUE).unwrap() + VALUE.len() + 1;
            let expected = match cut.min(head.len()) {
                cut if cut < whole => CallerSpan::INCOMPLETE,
                _ => SPAN,
            };
            // The earlier request differs in its ids and has the same length, so that its bytes end the cut header.
            let earlier = head.replace("4736", "4737");
            let cut = &head.as_bytes()[..cut.min(head.len())];
            prop_assert_eq!(search_after(earlier.as_bytes(), cut), expected);
        }

        #[test]
        fn any_bytes_end_the_search(line in "[ -~]{0,60}", bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            search_after(b"", &bytes);
            search_after(&bytes, request(&format!("traceparent:{line}\r\n")).as_bytes());
        }

        #[test]
        fn hexadecimal_digits_are_read(number: u32, bytes: [u8; 8]) {
            let digits = format!("{number:08x}");
            prop_assert_eq!(parse_hex(u64::from_le_bytes(digits.as_bytes().try_into().unwrap())), (number.into(), true));
            let is_number = bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            prop_assert_eq!(parse_hex(u64::from_le_bytes(bytes)).1, is_number);
        }

        #[test]
        fn spans_of_records_are_parsed(words: [u64; 3], halves: [u32; 2], cut in 0_usize..32) {
            let span = CallerSpan { trace_id: [words[0], words[1]], span_id: words[2], flags: halves[0], unknown: halves[1] };
            let mut raw: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            raw.extend(halves.iter().flat_map(|half| half.to_ne_bytes()));
            prop_assert_eq!(CallerSpan::parse(&raw), Some(span));
            prop_assert_eq!(CallerSpan::parse(&raw[..cut]), None);
        }
    }
}
