//! Lines of a plain or compressed file, truncated at a limit. Lines that a container runtime split are joined.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use memchr::memchr;

use super::parts::{Joined, Parts};

const BUFFER: usize = 128 * 1024;
/// Memory of a longer line is freed before the next one, because there may be many open files.
const USUAL_LINE: usize = 128 * 1024;
/// Maximum window of a zstd frame: 2^27 bytes, as `zstd` itself accepts without `--long`.
const ZSTD_WINDOW_LOG: u32 = 27;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line<'b> {
    /// Text without the line end.
    pub(super) text: &'b [u8],
    /// Whether the line was longer than the limit.
    pub(super) cut: bool,
}

pub(super) struct Lines {
    file: FileLines,
    parts: Parts,
    longest: usize,
    /// Bytes of text returned so far.
    pub(super) text_bytes: u64,
}

/// Lines as they are in the file. A line is lent from the reader's buffer if that holds all of it, and copied otherwise.
struct FileLines {
    from: Box<dyn BufRead>,
    /// Length of the current line in the reader's buffer, with its end; 0 if it was copied.
    lent_bytes: usize,
    copied: Vec<u8>,
}

/// Counts bytes read from the disk.
struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(into)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

impl Lines {
    /// Opens a plain, gzip or zstd file; `read` counts the bytes read from the disk.
    pub(super) fn open(path: &Path, longest: usize, read: Arc<AtomicU64>) -> io::Result<Self> {
        let mut file = BufReader::with_capacity(BUFFER, Counted { file: File::open(path)?, read });
        let from: Box<dyn BufRead> = match file.fill_buf()? {
            [0x1f, 0x8b, ..] => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(file))),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => {
                let mut decoder = zstd::stream::Decoder::with_buffer(file)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                Box::new(BufReader::with_capacity(BUFFER, decoder))
            }
            _ => Box::new(file),
        };
        Ok(Self::of(from, longest))
    }

    fn of(from: Box<dyn BufRead>, longest: usize) -> Self {
        let file = FileLines { from, lent_bytes: 0, copied: Vec::new() };
        Self { file, parts: Parts::default(), longest, text_bytes: 0 }
    }

    /// Returns the next line; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let joined = loop {
            // A line of the maximum length, with its end.
            let line_bytes = self.file.advance(self.longest + 2)?;
            if line_bytes == 0 {
                break self.parts.unfinished();
            }
            self.text_bytes += line_bytes;
            match self.parts.enter(self.file.line()?, self.longest) {
                Joined::Whole => return Ok(Some(limited(self.file.line()?, self.longest))),
                Joined::Pending => {}
                Joined::Complete(stream) => break Some(stream),
            }
        };
        Ok(joined.map(|stream| limited(self.parts.line(stream), self.longest)))
    }
}

impl FileLines {
    /// Goes to the next line and returns its length with its end; 0 after the last line. Skips the part of a line beyond `limit` bytes.
    fn advance(&mut self, limit: usize) -> io::Result<u64> {
        self.from.consume(std::mem::take(&mut self.lent_bytes));
        self.copied.clear();
        self.copied.shrink_to(USUAL_LINE);
        let end = match self.from.fill_buf() {
            Ok(buffer) => memchr(b'\n', &buffer[..buffer.len().min(limit)]),
            // Copying repeats the read.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            Err(error) => return Err(error),
        };
        let Some(end) = end else { return self.copy_line(limit as u64) };
        self.lent_bytes = end + 1;
        Ok(self.lent_bytes as u64)
    }

    fn copy_line(&mut self, limit: u64) -> io::Result<u64> {
        let mut got = self.from.by_ref().take(limit).read_until(b'\n', &mut self.copied)? as u64;
        if got == limit && !self.copied.ends_with(b"\n") {
            got += self.from.skip_until(b'\n')? as u64;
        }
        Ok(got)
    }

    /// The current line without its end.
    fn line(&mut self) -> io::Result<&[u8]> {
        let line = match self.lent_bytes {
            0 => &self.copied,
            // The buffer is not empty, so this reads nothing.
            lent => &self.from.fill_buf()?[..lent],
        };
        Ok(without_end(line))
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    text.strip_suffix(b"\r").unwrap_or(text)
}

fn limited(text: &[u8], longest: usize) -> Line<'_> {
    Line { text: &text[..text.len().min(longest)], cut: text.len() > longest }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(mut lines: Lines) -> (Vec<(Vec<u8>, bool)>, u64) {
        let mut found = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            found.push((line.text.to_vec(), line.cut));
        }
        (found, lines.text_bytes)
    }

    proptest! {
        #[test]
        fn lines_match_the_lines_of_the_text(lengths in proptest::collection::vec(0_usize..40, 0..60), drip in 1_usize..50, ends: bool) {
            let longest = 16;
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
                .map(|l| (l[..l.len().min(longest)].to_vec(), l.len() > longest))
                .collect();
            if wanted.last().is_some_and(|l| l.0.is_empty()) {
                wanted.pop();
            }
            // Its buffer has a few bytes at a time.
            let from = BufReader::with_capacity(drip, io::Cursor::new(text.clone()));
            let (found, bytes) = all(Lines::of(Box::new(from), longest));
            prop_assert_eq!(found, wanted);
            prop_assert_eq!(bytes, text.len() as u64);
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
            let (lines, bytes) = all(Lines::open(&path, 100, Arc::clone(&read)).unwrap());
            let texts: Vec<&[u8]> = lines.iter().map(|l| &*l.0).collect();
            assert_eq!((texts, bytes), (vec![&b"one"[..], b"two", b"three"], 14));
            assert_eq!(read.load(Ordering::Relaxed), std::fs::metadata(&path).unwrap().len());
        }
    }
}
