//! Lines of a plain or compressed file, truncated at a limit. Lines that a container runtime split are joined.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use memchr::{memchr, memchr_iter, memrchr};

use super::recogniser::{MarkMatch, Recogniser};
use super::split_lines::{JoinResult, SHORTEST_FIRST_PART_BYTES, SplitLineJoiner};

/// Size of the buffer that lines are read into.
const BUFFER_BYTES: usize = 128 * 1024;
/// Memory of a longer line is freed before the next one, because there may be many open files.
const KEPT_COPY_BYTES: usize = 128 * 1024;
/// Maximum window of a zstd frame: 2^27 bytes, as `zstd` itself accepts without `--long`.
const ZSTD_WINDOW_LOG: u32 = 27;
/// The longer of the two line ends.
const LONGEST_LINE_END: &[u8] = b"\r\n";
/// Number of bytes that show how a file is compressed.
const MAGIC_BYTES: usize = 4;

/// A line of a file.
pub(super) struct LogLine<'b> {
    /// Text without the line end.
    pub(super) text: &'b [u8],
    /// Whether the line was longer than the limit.
    pub(super) is_truncated: bool,
    /// First mark in the text.
    pub(super) mark: Option<MarkMatch>,
}

/// Reader of the lines of one file.
pub(super) struct LineReader {
    file: BufferedLines,
    joiner: SplitLineJoiner,
    max_line_bytes: usize,
    /// Bytes of text returned so far.
    pub(super) text_bytes: u64,
}

/// Lines as they are in the file. A line is in the buffer, or copied if it is longer.
struct BufferedLines {
    source: Box<dyn Read>,
    buffer: Box<[u8]>,
    /// The current line in the buffer, with its line end. Empty if it was copied.
    line_range: Range<usize>,
    /// Number of bytes in the buffer.
    filled_bytes: usize,
    /// Number of bytes in the buffer up to the end of the last complete line.
    complete_bytes: usize,
    /// Result of the last search for a mark. All complete lines are searched at once.
    next_mark: Option<NextMark>,
    /// The source has no more bytes.
    is_at_end: bool,
    /// The current line, if it is longer than the buffer.
    copied_line: Vec<u8>,
}

/// First mark in the rest of the buffer's complete lines.
#[derive(Clone, Copy)]
struct NextMark {
    /// Its index in the buffer; the end of the complete lines if there is none.
    at: usize,
    mark: Option<MarkMatch>,
}

/// A file that counts the bytes read from the disk.
struct CountingFile {
    file: File,
    read_bytes: Arc<AtomicU64>,
}

impl Read for CountingFile {
    /// Reads from the file, and counts the bytes.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(into)?;
        self.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl LineReader {
    /// Opens a plain, gzip or zstd file. `read_bytes` counts the bytes read from the disk.
    pub(super) fn open(path: &Path, max_line_bytes: usize, read_bytes: Arc<AtomicU64>) -> io::Result<Self> {
        let mut file = CountingFile { file: File::open(path)?, read_bytes };
        // The first bytes show how the file is compressed. Its name does not, because names of rotated files vary.
        let mut magic = Vec::with_capacity(MAGIC_BYTES);
        file.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut magic)?;
        // A pipe cannot be rewound, so the bytes are read again from memory.
        let from_start = io::Cursor::new(magic.clone()).chain(file);
        let text = decompress(from_start, &magic)?;
        Ok(Self::from_reader(text, BUFFER_BYTES, max_line_bytes))
    }

    /// Creates a reader of the lines of `source`, which reads `buffer_bytes` at once and cuts lines that are longer than `max_line_bytes`.
    fn from_reader(source: Box<dyn Read>, buffer_bytes: usize, max_line_bytes: usize) -> Self {
        // Nothing has been read yet, so the buffer holds no line.
        let file = BufferedLines {
            source,
            buffer: vec![0; buffer_bytes].into_boxed_slice(),
            line_range: 0..0,
            filled_bytes: 0,
            complete_bytes: 0,
            next_mark: None,
            is_at_end: false,
            copied_line: Vec::new(),
        };
        Self { file, joiner: SplitLineJoiner::default(), max_line_bytes, text_bytes: 0 }
    }

    /// Returns the next line; `None` at the end of the file. Joins the parts of a line that a container runtime has split. With a
    /// recogniser, the line comes with its first mark, the text that shows a known record.
    pub(super) fn next_line(&mut self, recogniser: Option<&Recogniser>) -> io::Result<Option<LogLine<'_>>> {
        loop {
            let line_bytes = self.file.advance_line_and_count_bytes(self.max_line_bytes + LONGEST_LINE_END.len())?;
            if line_bytes == 0 {
                // The file may end before the last part of a line.
                return Ok(self
                    .joiner
                    .take_stream_of_unfinished_line()
                    .map(|stream| self.joined_line(stream, recogniser)));
            }
            self.text_bytes += line_bytes;
            match self.joiner.add_line(self.file.current_line(), self.max_line_bytes) {
                JoinResult::Whole => {
                    let mark = recogniser.and_then(|recogniser| self.file.find_mark(recogniser));
                    return Ok(Some(limit_line(self.file.current_line(), mark, self.max_line_bytes)));
                }
                // The rest of a split line follows.
                JoinResult::Pending => {}
                JoinResult::Complete(stream) => return Ok(Some(self.joined_line(stream, recogniser))),
            }
        }
    }

    /// The line that was joined from its parts, with its first mark. `stream`: 0 for the container's standard output, 1 for its standard
    /// error.
    fn joined_line(&self, stream: usize, recogniser: Option<&Recogniser>) -> LogLine<'_> {
        let text = self.joiner.joined_line(stream);
        let mark = recogniser.and_then(|recogniser| recogniser.find_mark(text));
        limit_line(text, mark, self.max_line_bytes)
    }

    /// Skips the lines up to the next one with a mark, because lines without a mark hold no known record. Returns how many it skipped.
    /// Stops before a line that may need to be truncated or joined. If there are more than `max_lines` to skip, skips none.
    pub(super) fn skip_unmarked_lines(&mut self, recogniser: &Recogniser, max_lines: usize) -> usize {
        // The next lines may be further parts of an unfinished line.
        if !self.joiner.is_idle() {
            return 0;
        }
        // A line of at most so many bytes needs no truncation, and is no first part of a split line.
        let max_bytes = self.max_line_bytes.min(SHORTEST_FIRST_PART_BYTES);
        let skipped = self.file.range_of_unmarked_lines(recogniser, max_bytes);
        let lines = memchr_iter(b'\n', &self.file.buffer[skipped.clone()]).count();
        if lines > max_lines {
            return 0;
        }
        self.text_bytes += skipped.len() as u64;
        // The next line begins where this range ends.
        self.file.line_range = skipped;
        lines
    }
}

impl BufferedLines {
    /// Makes the next line the current one. Returns its length in bytes with its line end; 0 after the last line. If the line is longer
    /// than the buffer, keeps only its first `max_kept_bytes`.
    fn advance_line_and_count_bytes(&mut self, max_kept_bytes: usize) -> io::Result<u64> {
        // Removes the previous line, which was copied if it was longer than the buffer.
        self.copied_line.clear();
        self.copied_line.shrink_to(KEPT_COPY_BYTES);
        let start = self.line_range.end;
        let has_no_further_line = start == self.complete_bytes;
        if has_no_further_line {
            return self.read_next_line(max_kept_bytes);
        }
        // Only the last line of a file may lack its end.
        let end = memchr(b'\n', &self.buffer[start..self.complete_bytes])
            .map_or(self.complete_bytes, |newline| start + newline + 1);
        self.line_range = start..end;
        Ok((end - start) as u64)
    }

    /// Reads from the source until the buffer holds the end of a line, and makes that line the current one. A line that is longer than the
    /// buffer is copied. Returns the length of the line in bytes with its line end; 0 after the last line.
    fn read_next_line(&mut self, max_kept_bytes: usize) -> io::Result<u64> {
        self.move_rest_to_front();
        let copied_bytes = self.read_until_line_end(max_kept_bytes)?;
        let end = memchr(b'\n', &self.buffer[..self.complete_bytes]).map_or(self.complete_bytes, |newline| newline + 1);
        if copied_bytes == 0 {
            self.line_range = 0..end;
            return Ok(end as u64);
        }
        // The beginning of the line was copied, so its end is copied too.
        Ok(copied_bytes + self.move_bytes_to_copied_line(end, max_kept_bytes))
    }

    /// Reads from the source until the buffer holds the end of a line, or the end of the file. If a line is longer than the buffer, moves
    /// its bytes to the copied line each time the buffer is full. Returns the number of moved bytes.
    fn read_until_line_end(&mut self, max_kept_bytes: usize) -> io::Result<u64> {
        let mut copied_bytes = 0;
        // `complete_bytes` is the end of the last complete line in the buffer, 0 without one.
        while self.complete_bytes == 0 && !self.is_at_end {
            let is_buffer_full = self.filled_bytes == self.buffer.len();
            if is_buffer_full {
                copied_bytes += self.move_bytes_to_copied_line(self.filled_bytes, max_kept_bytes);
            }
            let read_from = self.filled_bytes;
            self.fill_buffer()?;
            let added = &self.buffer[read_from..self.filled_bytes];
            // Searches only the added bytes, because the earlier ones have no line end.
            self.complete_bytes = memrchr(b'\n', added).map_or(0, |newline| read_from + newline + 1);
        }
        // The last line of a file may lack its end.
        if self.is_at_end && self.complete_bytes == 0 {
            self.complete_bytes = self.filled_bytes;
        }
        Ok(copied_bytes)
    }

    /// Moves the beginning of an incomplete line to the front of the buffer, so that the rest fits behind it. All complete lines before it
    /// were returned.
    fn move_rest_to_front(&mut self) {
        self.buffer.copy_within(self.line_range.end..self.filled_bytes, 0);
        self.filled_bytes -= self.line_range.end;
        self.line_range = 0..0;
        self.complete_bytes = 0;
        self.next_mark = None;
    }

    /// Reads bytes behind those in the buffer, or finds that the source has ended.
    fn fill_buffer(&mut self) -> io::Result<()> {
        loop {
            match self.source.read(&mut self.buffer[self.filled_bytes..]) {
                Ok(count) => {
                    self.is_at_end = count == 0;
                    self.filled_bytes += count;
                    return Ok(());
                }
                // A signal interrupted the read, which is repeated.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Moves the first `byte_count` bytes of the buffer to the copied line. Drops bytes that would make that line longer than
    /// `max_kept_bytes`. Returns `byte_count`, because dropped bytes also count as bytes of the line.
    fn move_bytes_to_copied_line(&mut self, byte_count: usize, max_kept_bytes: usize) -> u64 {
        let kept = byte_count.min(max_kept_bytes.saturating_sub(self.copied_line.len()));
        self.copied_line.extend_from_slice(&self.buffer[..kept]);
        self.buffer.copy_within(byte_count..self.filled_bytes, 0);
        self.filled_bytes -= byte_count;
        self.complete_bytes = self.complete_bytes.saturating_sub(byte_count);
        byte_count as u64
    }

    /// The current line without its end.
    fn current_line(&self) -> &[u8] {
        // A line that was too long for the buffer has no range in it.
        let is_copied = self.line_range.is_empty();
        let line_with_end = if is_copied { &self.copied_line } else { &self.buffer[self.line_range.clone()] };
        strip_line_end(line_with_end)
    }

    /// First mark in the current line, with indices from the start of the line. `None` if the line has no mark. The search covers all
    /// complete lines in the buffer at once, and its result is kept for the next lines.
    fn find_mark(&mut self, recogniser: &Recogniser) -> Option<MarkMatch> {
        // The range is empty if the line was copied out of the buffer.
        if self.line_range.is_empty() {
            return recogniser.find_mark(self.current_line());
        }
        // `at` is the mark's index in the buffer, or the end of the last complete line if there is no further mark.
        let first = self.next_mark_from(self.line_range.start, recogniser);
        let is_in_later_line = first.at >= self.line_range.end;
        if is_in_later_line {
            return None;
        }
        let mark = first.mark?;
        let start = first.at - self.line_range.start;
        let end = start + (mark.end - mark.start);
        // Searches behind the mark, because the line may have another one. If it has none, the result serves the next lines.
        let following = self.next_mark_from(self.line_range.start + end, recogniser);
        let is_last = following.at >= self.line_range.end;
        Some(MarkMatch { start, end, is_last, ..mark })
    }

    /// First mark in the complete lines of the buffer from `start` on. Uses the result of the last search if that mark is not before
    /// `start`.
    fn next_mark_from(&mut self, start: usize, recogniser: &Recogniser) -> NextMark {
        if let Some(known) = self.next_mark
            && known.at >= start
        {
            return known;
        }
        let mark = recogniser.find_mark(&self.buffer[start..self.complete_bytes]);
        // If no mark is found, its place is the end of the searched bytes, so that later calls need no search either.
        let next = NextMark { at: mark.map_or(self.complete_bytes, |mark| start + mark.start), mark };
        self.next_mark = Some(next);
        next
    }

    /// Range of the next lines without a mark, as indices in the buffer. It has at most `max_bytes`. Empty if the next line has a mark or
    /// is longer.
    fn range_of_unmarked_lines(&mut self, recogniser: &Recogniser, max_bytes: usize) -> Range<usize> {
        let start = self.line_range.end;
        let next = self.next_mark_from(start, recogniser);
        let unmarked = &self.buffer[start..next.at.min(start + max_bytes)];
        // Leaves out the last line of these bytes if it is incomplete, because its rest may have the mark.
        let end = memrchr(b'\n', unmarked).map_or(start, |line_end| start + line_end + 1);
        start..end
    }
}

/// The text of a file, decompressed if its first bytes are those of a gzip or zstd file.
fn decompress(file: impl Read + 'static, file_start: &[u8]) -> io::Result<Box<dyn Read>> {
    let text: Box<dyn Read> = match file_start {
        // gzip
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER_BYTES, file))),
        // zstd
        [0x28, 0xb5, 0x2f, 0xfd] => {
            let mut decoder = zstd::stream::Decoder::with_buffer(BufReader::with_capacity(BUFFER_BYTES, file))?;
            // A larger window, which takes more memory, is an error.
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            Box::new(decoder)
        }
        _ => Box::new(file),
    };
    Ok(text)
}

/// The line without its line end, if it has one.
fn strip_line_end(line: &[u8]) -> &[u8] {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    text.strip_suffix(b"\r").unwrap_or(text)
}

/// The line `text`, cut to the limit. A mark beyond the limit is dropped.
fn limit_line(text: &[u8], mark: Option<MarkMatch>, max_line_bytes: usize) -> LogLine<'_> {
    let kept = &text[..text.len().min(max_line_bytes)];
    LogLine { text: kept, is_truncated: text.len() > max_line_bytes, mark: mark.filter(|mark| mark.end <= kept.len()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::recogniser::{LineForm, LogLines};
    use super::*;

    fn all(mut lines: LineReader) -> (Vec<(Vec<u8>, bool)>, u64) {
        let mut found = Vec::new();
        while let Some(line) = lines.next_line(None).unwrap() {
            found.push((line.text.to_vec(), line.is_truncated));
        }
        (found, lines.text_bytes)
    }

    proptest! {
        #[test]
        fn lines_match_the_lines_of_the_text(lengths in proptest::collection::vec(0_usize..40, 0..60), drip in 1_usize..50, ends: bool) {
            let max_line_bytes = 16;
            let mut text = Vec::new();
            for (n, length) in lengths.iter().enumerate() {
                text.extend(std::iter::repeat_n(b'a' + (n % 26) as u8, *length));
                text.push(b'\n');
            }
            if !ends {
                text.pop();
            }
            let mut wanted: Vec<(Vec<u8>, bool)> = text
                .split(|b| *b == b'\n')
                .map(|l| (l[..l.len().min(max_line_bytes)].to_vec(), l.len() > max_line_bytes))
                .collect();
            if wanted.last().is_some_and(|l| l.0.is_empty()) {
                wanted.pop();
            }
            // Its buffer has a few bytes at a time.
            let (found, bytes) = all(LineReader::from_reader(Box::new(io::Cursor::new(text.clone())), drip, max_line_bytes));
            prop_assert_eq!(found, wanted);
            prop_assert_eq!(bytes, text.len() as u64);
        }
    }

    proptest! {
        #[test]
        fn each_line_has_its_own_first_mark(kinds in proptest::collection::vec(0_usize..6, 0..80), buffer_bytes in 1_usize..200) {
            let text: String = kinds.iter().flat_map(|&kind| [TEXTS[kind], "\n"]).collect();
            let recogniser = Recogniser::new(&[&OneMark]);
            let mut lines = LineReader::from_reader(Box::new(io::Cursor::new(text.into_bytes())), buffer_bytes, 1 << 20);
            for kind in kinds {
                let line = lines.next_line(Some(&recogniser)).unwrap().unwrap();
                prop_assert_eq!(line.text, TEXTS[kind].trim_end_matches('\r').as_bytes());
                prop_assert_eq!(line.mark.map(|mark| mark.start..mark.end), TEXTS[kind].find("mark=").map(|at| at..at + 5));
                // A line that is longer than the buffer is searched again.
                if buffer_bytes > 20 {
                    prop_assert_eq!(line.mark.is_some_and(|mark| mark.is_last), TEXTS[kind].matches("mark=").count() == 1);
                }
            }
            prop_assert!(lines.next_line(Some(&recogniser)).unwrap().is_none());
        }

        #[test]
        fn skipped_lines_have_no_mark(kinds in proptest::collection::vec(0_usize..6, 0..80), buffer_bytes in 1_usize..200, max_lines in 0_usize..5) {
            let text: String = kinds.iter().flat_map(|&kind| [TEXTS[kind], "\n"]).collect();
            let recogniser = Recogniser::new(&[&OneMark]);
            let mut lines = LineReader::from_reader(Box::new(io::Cursor::new(text.clone().into_bytes())), buffer_bytes, 1 << 20);
            let (mut number, mut marked) = (0, Vec::new());
            loop {
                let skipped = lines.skip_unmarked_lines(&recogniser, max_lines);
                prop_assert!(skipped <= max_lines);
                number += skipped;
                let Some(line) = lines.next_line(Some(&recogniser)).unwrap() else { break };
                prop_assert_eq!(line.text, TEXTS[kinds[number]].trim_end_matches('\r').as_bytes());
                marked.extend(line.mark.map(|_| number));
                number += 1;
            }
            let wanted: Vec<usize> = (0..kinds.len()).filter(|&number| TEXTS[kinds[number]].contains("mark=")).collect();
            prop_assert_eq!((marked, number, lines.text_bytes), (wanted, kinds.len(), text.len() as u64));
        }
    }

    const TEXTS: [&str; 6] = ["", "mark=", "x mark= y mark=", "mark", "=mark", "no m\u{e4}rk at all\r"];

    /// An engine with one form of lines.
    struct OneMark;

    impl LogLines for OneMark {
        fn engine_name(&self) -> &'static str {
            "test"
        }

        fn forms_summary(&self) -> &'static str {
            ""
        }

        fn line_forms(&self) -> &'static [LineForm] {
            &[LineForm { mark: "mark=", name: "form", parse: |_, _, _| Ok(()) }]
        }
    }

    #[test]
    fn compressed_files_read_like_plain_ones() {
        use std::io::Write as _;
        let text = b"one\r\ntwo\nthree";
        let folder = tempfile::tempdir().unwrap();
        let gz = folder.path().join("a");
        let mut encoder = flate2::write::GzEncoder::new(File::create(&gz).unwrap(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap();
        let zst = folder.path().join("b");
        std::fs::write(&zst, zstd::encode_all(&text[..], 1).unwrap()).unwrap();
        let plain = folder.path().join("c");
        std::fs::write(&plain, text).unwrap();
        for path in [gz, zst, plain] {
            let read = Arc::new(AtomicU64::new(0));
            let (lines, bytes) = all(LineReader::open(&path, 100, Arc::clone(&read)).unwrap());
            let texts: Vec<&[u8]> = lines.iter().map(|l| &*l.0).collect();
            assert_eq!((texts, bytes), (vec![&b"one"[..], b"two", b"three"], 14));
            assert_eq!(read.load(Ordering::Relaxed), std::fs::metadata(&path).unwrap().len());
        }
    }
}
