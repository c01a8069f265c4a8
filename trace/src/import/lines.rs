//! Lines of a plain or compressed file, truncated at a limit.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memchr;

const BUFFER: usize = 256 * 1024;
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
    from: Box<dyn Read>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    over: bool,
    longest: usize,
    /// Bytes of text returned so far.
    pub(super) text_bytes: u64,
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
        let file = File::open(path)?;
        let mut magic = [0; 4];
        let got = peek(&file, &mut magic)?;
        let counted = Counted { file, read };
        let from: Box<dyn Read> = match &magic[..got] {
            [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(counted)),
            [0x28, 0xb5, 0x2f, 0xfd] => {
                let mut decoder = zstd::stream::Decoder::new(counted)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                Box::new(decoder)
            }
            _ => Box::new(counted),
        };
        Ok(Self::over(from, longest))
    }

    fn over(from: Box<dyn Read>, longest: usize) -> Self {
        Self {
            from,
            buffer: vec![0; BUFFER.max(longest + 1)].into_boxed_slice(),
            start: 0,
            end: 0,
            over: false,
            longest,
            text_bytes: 0,
        }
    }

    /// Returns the next line; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let mut searched = self.start;
        loop {
            if let Some(at) = memchr(b'\n', &self.buffer[searched..self.end]) {
                let (from, to) = (self.start, searched + at);
                self.start = to + 1;
                self.text_bytes += (self.start - from) as u64;
                return Ok(Some(self.line(from, to)));
            }
            if self.end - self.start > self.longest {
                return self.long().map(Some);
            }
            searched = self.end;
            if self.over {
                let (from, to) = (self.start, self.end);
                self.start = self.end;
                self.text_bytes += (to - from) as u64;
                return Ok((from < to).then(|| self.line(from, to)));
            }
            let moved = self.start;
            self.fill()?;
            if self.start != moved {
                searched -= moved;
            }
        }
    }

    fn line(&self, from: usize, to: usize) -> Line<'_> {
        let text = &self.buffer[from..to];
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        Line { text: &text[..text.len().min(self.longest)], cut: text.len() > self.longest }
    }

    /// Keeps the start of a long line at the front of the buffer and skips the rest.
    fn long(&mut self) -> io::Result<Line<'_>> {
        self.buffer.copy_within(self.start..self.start + self.longest, 0);
        self.text_bytes += (self.end - self.start) as u64;
        loop {
            let got = pull(&mut *self.from, &mut self.buffer[self.longest..])?;
            let fresh = &self.buffer[self.longest..self.longest + got];
            let newline = memchr(b'\n', fresh);
            let used = newline.map_or(got, |at| at + 1);
            self.text_bytes += used as u64;
            (self.start, self.end) = (self.longest + used, self.longest + got);
            if got == 0 {
                self.over = true;
            }
            if got == 0 || newline.is_some() {
                return Ok(Line { text: &self.buffer[..self.longest], cut: true });
            }
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let got = pull(&mut *self.from, &mut self.buffer[self.end..])?;
        self.end += got;
        self.over = got == 0;
        Ok(())
    }
}

fn pull(from: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Reads the first bytes without advancing.
fn peek(file: &File, into: &mut [u8]) -> io::Result<usize> {
    use std::os::unix::fs::FileExt;
    let mut got = 0;
    while got < into.len() {
        match file.read_at(&mut into[got..], got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A pipe is not seekable (ESPIPE), so it is read as plain text.
            Err(error) if error.raw_os_error() == Some(29) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns its bytes a few at a time.
    struct Dripping(Vec<u8>, usize, usize);

    impl Read for Dripping {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let left = &self.0[self.1..];
            let n = left.len().min(into.len()).min(self.2);
            into[..n].copy_from_slice(&left[..n]);
            self.1 += n;
            Ok(n)
        }
    }

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
            let mut lines = Lines::over(Box::new(Dripping(text.clone(), 0, drip)), longest);
            lines.buffer = vec![0; longest + 1 + drip].into_boxed_slice();
            let (found, bytes) = all(lines);
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
